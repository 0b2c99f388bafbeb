// A set of token ids: which may be drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hysparse {

class TokenMask {
 public:
  TokenMask() = default;
  explicit TokenMask(int64_t vocab) : vocab_(vocab), words_((static_cast<size_t>(vocab) + 63) / 64) {}
  void set(int32_t id) { words_[static_cast<size_t>(id) / 64] |= 1ull << (static_cast<unsigned>(id) % 64); }
  // Ids outside the vocabulary are not in the set.
  bool test(int32_t id) const {
    return id >= 0 && id < vocab_ &&
           (words_[static_cast<size_t>(id) / 64] >> (static_cast<unsigned>(id) % 64) & 1) != 0;
  }
  int64_t vocab() const { return vocab_; }
  const std::vector<uint64_t>& words() const { return words_; }  // bit i of word w: token 64 w + i
  int64_t count() const {
    int64_t n = 0;
    for (const uint64_t w : words_) n += __builtin_popcountll(w);
    return n;
  }

 private:
  int64_t vocab_ = 0;
  std::vector<uint64_t> words_;
};

}  // namespace hysparse
