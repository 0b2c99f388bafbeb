// Drafts for speculative decoding by looking the last tokens up in the sequence itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hysparse {

struct NgramOptions {
  int64_t longest = 4;   // tokens of the longest tail that is looked up, then each shorter one
  int64_t shortest = 2;  // of the shortest
  int64_t draft = 8;     // most tokens proposed

  // Throws Error(input) naming the field that is out of range.
  void check() const;
};

// What followed the latest earlier occurrence of the longest tail of `tokens` that has one; at most `draft`
// tokens, none where nothing matches. An occurrence that ends right before the tail proposes the repetition
// that it shows: a b a b -> a b a b ... O(tokens) a tail length; depends on the tokens alone.
std::vector<int32_t> propose_ngram(std::span<const int32_t> tokens, const NgramOptions& options);

}  // namespace hysparse
