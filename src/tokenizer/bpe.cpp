#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace hysparse {
namespace {
constexpr size_t kShort = 48;                 // up to here scanning all ranks beats a heap
constexpr size_t kLongest = size_t(1) << 28;  // 6 GiB of memory
}  // namespace

Bpe::Bpe(Tables tables) : tables_(std::move(tables)), ranks_(tables_.merges.size()) {
  for (size_t i = 0; i < tables_.merges.size(); ++i) {
    bool fresh = false;
    uint32_t& rank = ranks_.get(pair_key(tables_.merges[i].left, tables_.merges[i].right), fresh);
    HYSPARSE_CHECK(fresh, "merge {} appears twice", i);
    rank = static_cast<uint32_t>(i);
  }
  find_joints();
}

// The first and the last byte of every token that merges can build. A token that stands for several (in files
// that were made by hand) joins with everything.
void Bpe::find_joints() {
  constexpr int kNone = -1, kAny = 256;
  int32_t largest = tables_.unk_id;
  for (const int32_t id : tables_.byte_ids) largest = std::max(largest, id);
  for (const BpeMerge& m : tables_.merges) largest = std::max({largest, m.left, m.right, m.result});
  std::vector<int> first(static_cast<size_t>(largest + 1), kNone), last(first);
  bool grown = false;
  const auto add = [&](int& known, int value) {
    const int now = known == kNone || known == value ? value : kAny;
    grown |= now != known;
    known = now;
  };
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = tables_.byte_ids[static_cast<size_t>(byte)];
    if (id < 0) continue;
    add(first[static_cast<size_t>(id)], byte);
    add(last[static_cast<size_t>(id)], byte);
  }
  if (tables_.unk_id >= 0)
    first[static_cast<size_t>(tables_.unk_id)] = last[static_cast<size_t>(tables_.unk_id)] = kAny;
  joints_.assign(256 * 256, false);
  const auto join = [&](int x, int y) {
    for (int a = x == kAny ? 0 : x; a <= (x == kAny ? 255 : x); ++a)
      for (int b = y == kAny ? 0 : y; b <= (y == kAny ? 255 : y); ++b)
        joints_[static_cast<size_t>(256 * a + b)] = true;
  };
  do {  // a token may be built by a merge that stands behind one that needs it
    grown = false;
    for (const BpeMerge& m : tables_.merges) {
      const auto left = static_cast<size_t>(m.left), right = static_cast<size_t>(m.right);
      if (last[left] == kNone || first[right] == kNone) continue;
      join(last[left], first[right]);
      add(first[static_cast<size_t>(m.result)], first[left]);
      add(last[static_cast<size_t>(m.result)], last[right]);
    }
  } while (grown);
}

size_t Bpe::part(std::string_view piece, size_t least) const {
  for (size_t i = std::max<size_t>(least, 1); i < piece.size(); ++i) {
    const auto x = static_cast<uint8_t>(piece[i - 1]), y = static_cast<uint8_t>(piece[i]);
    if (tables_.byte_ids[x] >= 0 && tables_.byte_ids[y] >= 0 && !joints_[size_t(256) * x + y]) return i;
  }
  return piece.size();
}

bool Bpe::whole_word(std::string_view piece, std::vector<int32_t>& out) const {
  if (tables_.whole_words.empty()) return false;
  const auto it = tables_.whole_words.find(std::string(piece));
  if (it == tables_.whole_words.end()) return false;
  out.push_back(it->second);
  return true;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
  if (!whole_word(piece, out)) merge(piece, out, scratch);
}

void Bpe::merge(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const {
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
  if (n > kLongest)
    throw input_error(
        "tokenizer",
        fmt::format("{} bytes in a row that merges might join; at most {} are possible", n, kLongest),
        "the text has no spaces, punctuation or line ends there");
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
