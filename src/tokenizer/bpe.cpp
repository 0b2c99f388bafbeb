#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace hysparse {
namespace {
constexpr size_t kShort = 48;  // up to here scanning all ranks beats a heap
}  // namespace

Bpe::Bpe(Tables tables) : tables_(std::move(tables)), ranks_(tables_.merges.size()) {
  for (size_t i = 0; i < tables_.merges.size(); ++i) {
    bool fresh = false;
    uint32_t& rank = ranks_.get(pair_key(tables_.merges[i].left, tables_.merges[i].right), fresh);
    HYSPARSE_CHECK(fresh, "merge {} appears twice", i);
    rank = static_cast<uint32_t>(i);
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
  if (!tables_.whole_words.empty()) {
    if (const auto it = tables_.whole_words.find(std::string(piece)); it != tables_.whole_words.end()) {
      out.push_back(it->second);
      return;
    }
  }
  std::vector<int32_t>& ids = scratch.ids;
  ids.clear();
  bool after_unknown = false;
  for (const char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    const int32_t id = tables_.byte_ids[byte];
    if (id >= 0) {
      ids.push_back(id);
    } else if (tables_.unk_id < 0) {
      throw input_error(
          "tokenizer", fmt::format("the text has byte 0x{:02x}, for which the vocabulary has no token", byte),
          "a byte-level vocabulary should hold all 256 bytes, or name an unk_token");
    } else if (!(tables_.fuse_unk && after_unknown)) {
      ids.push_back(tables_.unk_id);
    }
    after_unknown = id < 0;
  }
  if (ids.size() <= 1)
    out.insert(out.end(), ids.begin(), ids.end());
  else if (ids.size() <= kShort)
    merge_short(out, scratch);
  else
    merge_long(out, scratch);
}

// Repeatedly merges the leftmost pair of lowest rank.
void Bpe::merge_short(std::vector<int32_t>& out, Scratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  size_t n = ids.size();
  uint32_t ranks[kShort];  // of the pair that starts at i
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank_of(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    ids[best] = tables_.merges[ranks[best]].result;
    for (size_t i = best + 1; i + 1 < n; ++i)
      ids[i] = ids[i + 1], ranks[i] = i + 2 < n ? ranks[i + 1] : kNoRank;
    --n;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
    if (best + 1 < n) ranks[best] = rank_of(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
}

// The same order of merges by a heap of (rank, position); entries whose pair has changed are skipped.
void Bpe::merge_long(std::vector<int32_t>& out, Scratch& scratch) const {
  std::vector<int32_t>&ids = scratch.ids, &next = scratch.next, &previous = scratch.previous;
  std::vector<uint32_t>& ranks = scratch.ranks;
  std::vector<uint64_t>& heap = scratch.heap;
  const size_t n = ids.size();
  if (n > size_t(1) << 31)
    throw input_error("tokenizer", fmt::format("a single piece of {} bytes; at most 2^31 are possible", n));
  next.resize(n), previous.resize(n), ranks.assign(n, kNoRank), heap.clear();
  const auto entry = [&](size_t i) { return static_cast<uint64_t>(ranks[i]) << 32 | i; };
  for (size_t i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? static_cast<int32_t>(i + 1) : -1;
    previous[i] = static_cast<int32_t>(i) - 1;
    if (i + 1 < n) ranks[i] = rank_of(ids[i], ids[i + 1]);
    if (ranks[i] != kNoRank) heap.push_back(entry(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](size_t i) {
    ranks[i] = next[i] < 0 ? kNoRank : rank_of(ids[i], ids[static_cast<size_t>(next[i])]);
    if (ranks[i] == kNoRank) return;
    heap.push_back(entry(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto i = static_cast<size_t>(static_cast<uint32_t>(top));
    const auto rank = static_cast<uint32_t>(top >> 32);
    if (ranks[i] != rank) continue;
    const auto gone = static_cast<size_t>(next[i]);
    ids[i] = tables_.merges[rank].result;
    next[i] = next[gone];
    if (next[i] >= 0) previous[static_cast<size_t>(next[i])] = static_cast<int32_t>(i);
    ranks[gone] = kNoRank;
    update(i);
    if (previous[i] >= 0) update(static_cast<size_t>(previous[i]));
  }
  for (int32_t i = 0; i >= 0; i = next[static_cast<size_t>(i)]) out.push_back(ids[static_cast<size_t>(i)]);
}

}  // namespace hysparse
