// Remembers the ids of short pieces, since most words of a text are repetitions. Direct-mapped; one a call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/rng.h"

namespace hysparse {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 23, kMaxIds = 9;

  // Sized for a text of so many bytes, at most 1 MiB.
  explicit WordCache(size_t text_bytes) {
    size_t slots = 64;
    while (slots < text_bytes / 16 && slots < 16384) slots *= 2;
    entries_.resize(slots);
  }

  struct Entry {
    char key[24] = {};  // the piece, zeros, and its length in the last byte; empty: length 0
    int32_t ids[kMaxIds];
    int32_t count = 0;
  };
  static_assert(sizeof(Entry) == 64);

  // The slot of a piece of 1 to kMaxBytes bytes; `hit` says whether it holds the ids.
  Entry& look(std::string_view piece, bool& hit) {
    char key[24] = {};
    std::memcpy(key, piece.data(), piece.size());
    key[23] = static_cast<char>(piece.size());
    uint64_t words[3];
    std::memcpy(words, key, sizeof words);
    const uint64_t h = mix64(words[0] ^ mix64(words[1] ^ words[2] * 0x9e3779b97f4a7c15ull));
    Entry& e = entries_[h & (entries_.size() - 1)];
    hit = std::memcmp(e.key, key, sizeof key) == 0;
    if (!hit) std::memcpy(e.key, key, sizeof key);
    return e;
  }
  // Fills the slot that look() missed; too many ids, and it stays empty.
  static void fill(Entry& e, const int32_t* ids, size_t count) {
    if (count > kMaxIds) {
      e.key[23] = 0;
      return;
    }
    std::copy(ids, ids + count, e.ids);
    e.count = static_cast<int32_t>(count);
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace hysparse
