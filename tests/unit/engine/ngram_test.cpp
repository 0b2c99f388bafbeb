#include "engine/ngram.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

using Ids = std::vector<int32_t>;

Ids propose(const Ids& tokens, NgramOptions o = {}) {
  return propose_ngram(tokens, o);
}

TEST(Ngram, ProposesWhatFollowedTheLongestTail) {
  NgramOptions o;
  o.draft = 3;
  EXPECT_EQ(propose({1, 2, 3, 4, 5, 9, 1, 2}, o), (Ids{3, 4, 5}));
  // the longer match wins over the later one; of equal ones the later wins
  EXPECT_EQ(propose({0, 1, 2, 7, 7, 7, 5, 1, 2, 8, 8, 8, 0, 1, 2}, o), (Ids{7, 7, 7}));
  EXPECT_EQ(propose({1, 2, 7, 7, 7, 1, 2, 8, 8, 8, 1, 2}, o), (Ids{8, 8, 8}));
  // fewer tokens than the draft: the repetition goes on
  EXPECT_EQ(propose({5, 1, 2, 1, 2}, o), (Ids{1, 2, 1}));
  EXPECT_EQ(propose({4, 4, 4}, o), (Ids{4, 4, 4}));
}

TEST(Ngram, ProposesNothingWithoutAMatch) {
  for (const Ids& tokens : {Ids{}, {1}, {1, 1}, {1, 2, 3}, {2, 1, 3, 1}})
    EXPECT_TRUE(propose(tokens).empty());
  NgramOptions o;
  o.shortest = 1;
  EXPECT_EQ(propose({2, 1, 3, 1}, o).front(), 3);
  o.draft = 0;
  EXPECT_TRUE(propose({2, 1, 3, 1}, o).empty());
}

// Held to the definition: tails from the longest down, occurrences from the last back.
TEST(Ngram, EqualsTheDefinition) {
  Rng rng(11);
  for (int round = 0; round < 3000; ++round) {
    Ids t(rng.below(24));
    for (int32_t& v : t) v = int32_t(rng.below(3));
    NgramOptions o;
    o.shortest = int64_t(1 + rng.below(2));
    o.longest = o.shortest + int64_t(rng.below(4));
    o.draft = 1;
    Ids expected;
    const auto n = int64_t(t.size());
    for (int64_t len = o.longest; len >= o.shortest && expected.empty(); --len)
      for (int64_t end = n - 1; end >= len && expected.empty(); --end)
        if (std::equal(t.begin() + end - len, t.begin() + end, t.end() - len)) expected = {t[size_t(end)]};
    EXPECT_EQ(propose_ngram(t, o), expected);
  }
}

TEST(Ngram, RefusesBadOptions) {
  for (const NgramOptions& o : {NgramOptions{4, 0, 8}, {1, 2, 8}, {4, 2, -1}}) EXPECT_THROW(o.check(), Error);
}

}  // namespace
}  // namespace hysparse
