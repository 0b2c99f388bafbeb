// The merge machine of byte-pair encoding: one pre-tokenized piece of bytes in, token ids out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/pair_table.h"

namespace hysparse {

struct BpeMerge {
  int32_t left, right, result;
};

class Bpe {
 public:
  struct Tables {
    std::array<int32_t, 256> byte_ids;  // -1: the vocabulary has no token for this byte
    std::vector<BpeMerge> merges;       // in order of rank
    std::unordered_map<std::string, int32_t>
        whole_words;        // ignore_merges: pieces that are a token as they stand
    int32_t unk_id = -1;    // stands for bytes without a token; -1: they are an error
    bool fuse_unk = false;  // neighbouring unknown bytes become one token
  };
  explicit Bpe(Tables tables);

  // Buffers of one thread; they only save allocations.
  struct Scratch {
    std::vector<int32_t> ids, next, previous;
    std::vector<uint32_t> ranks;
    std::vector<uint64_t> heap;
  };

  // Appends the ids of `piece`. O(n log n) in the piece's length, about 24 bytes of memory for each byte.
  void encode(std::string_view piece, std::vector<int32_t>& out, Scratch& scratch) const;

  // For pieces of any length in bounded memory: the first part, of at least `least` bytes, that no merge can
  // join with what follows it; the whole where there is none. merge() of the parts gives what encode() of the
  // piece gives, unless the piece is a whole word.
  size_t part(std::string_view piece, size_t least) const;
  bool whole_word(std::string_view piece, std::vector<int32_t>& out) const;
  void merge(std::string_view part, std::vector<int32_t>& out, Scratch& scratch) const;

 private:
  void find_joints();
  static constexpr uint32_t kNoRank = ~0u;
  uint32_t rank_of(int32_t left, int32_t right) const {
    const uint32_t* r = ranks_.find(pair_key(left, right));
    return r == nullptr ? kNoRank : *r;
  }
  void merge_short(std::vector<int32_t>& out, Scratch& scratch) const;
  void merge_long(std::vector<int32_t>& out, Scratch& scratch) const;

  Tables tables_;
  PairTable<uint32_t> ranks_;
  std::vector<bool>
      joints_;  // [256 x + y]: some merge may join a token that ends with byte x and one that begins with y
};

}  // namespace hysparse
