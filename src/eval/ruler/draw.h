// Draws that families share.
#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "eval/ruler/words.h"

namespace hysparse::ruler {

template <class T>
void shuffle(std::vector<T>& list, Rng& rng) {
  for (size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[rng.below(i)]);
}

// Numbers in [0, n), none twice; n must be far above how many are drawn.
class Distinct {
 public:
  Distinct(Rng rng, uint64_t n) : rng_(rng), n_(n) {}
  uint64_t next() {
    uint64_t x = 0;
    do x = rng_.below(n_);
    while (!used_.insert(x).second);
    return x;
  }

 private:
  Rng rng_;
  uint64_t n_;
  std::unordered_set<uint64_t> used_;
};

inline uint64_t word_pairs() {
  return adjectives().size() * nouns().size();
}
// So many of them at most can be drawn one after the other: Distinct wants as many left.
inline int64_t most_word_pairs() {
  return static_cast<int64_t>(word_pairs() / 2);
}
// "amber-anchor"; i below word_pairs().
inline std::string word_pair(uint64_t i) {
  std::string out(adjectives()[i % adjectives().size()]);
  out += '-';
  out += nouns()[i / adjectives().size()];
  return out;
}

}  // namespace hysparse::ruler
