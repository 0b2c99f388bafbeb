#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace hysparse {
namespace {

// Pinned: shards, initial weights and selections made by one build must come out of every other. mix64 at 0
// and at its own increment are SplitMix64's first two outputs for seed 0.
TEST(Rng, PinnedValues) {
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(mix64(0x9e3779b97f4a7c15ull), 0x6e789e6aa1b965f4ull);
  EXPECT_EQ(hash_words({}), 0x243f6a8885a308d3ull);
  EXPECT_EQ(hash_words({1, 2}), 0xc7d360a7e6ccd4b8ull);
  EXPECT_EQ(hash_words({2, 1}), 0x9a538f355d4488full);
  EXPECT_EQ(hash_words({1, 2, 3, 4, 5, 6, 7}), 0x3388817415fadfcdull);

  Rng bits(42, 7);
  for (uint64_t want :
       {0x3aedb09621ed0324ull, 0x42f2f10c3a10ce20ull, 0x998f469d2de1557dull, 0xd621adf6c63834eeull})
    EXPECT_EQ(bits.next(), want);
  Rng unit(42, 7);
  EXPECT_EQ(unit.uniform(), 0x1.d76d84b10f680p-3);
  EXPECT_EQ(unit.uniform(), 0x1.0bcbc430e8432p-2);
  Rng below(42, 7);
  for (uint64_t want : {230, 261, 599, 836, 936, 20}) EXPECT_EQ(below.below(1000), want);
  Rng normal(42, 7);  // log and cos may differ in the last place between libraries
  for (double want : {-0.05230904525384496, 0.6995509392914111, 2.331031574944897})
    EXPECT_NEAR(normal.normal(), want, 1e-14);
}

TEST(Rng, ContinuesFromItsCounter) {
  Rng whole(3, 1);
  std::vector<uint64_t> all;
  for (int i = 0; i < 100; ++i) all.push_back(whole.next());
  for (uint64_t cut : {0u, 1u, 37u, 99u}) {
    Rng first(3, 1);
    for (uint64_t i = 0; i < cut; ++i) first.next();
    ASSERT_EQ(first.counter(), cut);
    Rng rest(3, 1, first.counter());
    for (uint64_t i = cut; i < 100; ++i) EXPECT_EQ(rest.next(), all[i]);
  }
}

TEST(Rng, SeedsAndStreamsDiffer) {
  std::vector<uint64_t> firsts;
  for (uint64_t seed = 0; seed < 50; ++seed)
    for (uint64_t stream = 0; stream < 50; ++stream) firsts.push_back(Rng(seed, stream).next());
  std::sort(firsts.begin(), firsts.end());
  EXPECT_EQ(std::adjacent_find(firsts.begin(), firsts.end()), firsts.end());
}

TEST(Rng, UniformAndBelowStayInRange) {
  EXPECT_EQ(to_unit(0), 0.0);
  EXPECT_LT(to_unit(~0ull), 1.0);
  Rng rng(9);
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0.0 && u < 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 1e5, 0.5, 5 / std::sqrt(12.0 * 1e5));
  std::vector<int> seen(7);
  for (int i = 0; i < 70000; ++i) ++seen[rng.below(7)];
  for (int n : seen) EXPECT_NEAR(n, 10000, 5 * std::sqrt(10000.0));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rng.below(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(rng.below(~0ull), ~0ull);
}

TEST(Rng, NormalHasItsMoments) {
  Rng rng(11);
  constexpr int kDraws = 200000;
  double m1 = 0, m2 = 0, m4 = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    m1 += x / kDraws;
    m2 += x * x / kDraws;
    m4 += x * x * x * x / kDraws;
  }
  // five standard errors each: var(x) = 1, var(x^2) = 2, var(x^4) = 96
  EXPECT_NEAR(m1, 0.0, 5 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(m2, 1.0, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(m4, 3.0, 5 * std::sqrt(96.0 / kDraws));
}

}  // namespace
}  // namespace hysparse
