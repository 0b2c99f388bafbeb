// Learns merges from counted pieces.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/bpe.h"

namespace hysparse {

struct CountedWord {
  std::string bytes;
  int64_t count;
};

struct TrainedBpe {
  std::vector<std::string> tokens;  // bytes, by id; those of the reserved ids are what was handed in
  std::vector<BpeMerge> merges;
};

// `reserved` tokens get the first ids and are never built by a merge; the 256 bytes follow in the order of
// their alphabet characters, then one token a merge (two merges may build the same one) until there are
// `vocab_size` or no pair is left. Most frequent pair first, ties to the smaller (left, right). The result
// depends on the multiset of words alone.
TrainedBpe train_bpe(const std::vector<CountedWord>& words, const std::vector<std::string>& reserved,
                     size_t vocab_size);

}  // namespace hysparse
