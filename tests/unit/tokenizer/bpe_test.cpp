#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "base/rng.h"
#include "support.h"

namespace hysparse {
namespace {

// Random merges over the bytes a-d: each joins two tokens that exist.
Bpe::Tables random_tables(uint64_t seed, int merges) {
  Rng rng(seed);
  Bpe::Tables t;
  for (int b = 0; b < 256; ++b) t.byte_ids[static_cast<size_t>(b)] = b;
  std::vector<int32_t> tokens = {'a', 'b', 'c', 'd'};
  std::map<std::pair<int32_t, int32_t>, bool> seen;
  for (int i = 0; i < merges; ++i) {
    const int32_t l = tokens[rng.below(tokens.size())], r = tokens[rng.below(tokens.size())];
    if (!seen.emplace(std::pair{l, r}, true).second) continue;
    t.merges.push_back({l, r, 256 + i});
    tokens.push_back(256 + i);
  }
  return t;
}

// The definition: while any pair has a rank, merge the leftmost of the lowest.
std::vector<int32_t> by_definition(const Bpe::Tables& t, std::string_view piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(t.byte_ids[static_cast<uint8_t>(c)]);
  while (true) {
    size_t best_rank = t.merges.size(), best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t r = 0; r < best_rank; ++r)
        if (t.merges[r].left == ids[i] && t.merges[r].right == ids[i + 1]) best_rank = r, best = i;
    if (best_rank == t.merges.size()) return ids;
    ids[best] = t.merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionAtEveryLength) {
  Rng rng(2);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Bpe::Tables tables = random_tables(seed, 60);
    const Bpe bpe(tables);
    Bpe::Scratch scratch;
    for (size_t length : {1, 2, 3, 5, 16, 47, 48, 49, 50, 100, 300}) {
      std::string piece;
      const uint64_t letters = 1 + rng.below(4);
      for (size_t i = 0; i < length; ++i) piece.push_back(static_cast<char>('a' + rng.below(letters)));
      std::vector<int32_t> ids = {-7};
      bpe.encode(piece, ids, scratch);
      ASSERT_EQ(ids.front(), -7);
      ids.erase(ids.begin());
      ASSERT_EQ(ids, by_definition(tables, piece)) << piece;
    }
  }
}

TEST(Bpe, AWordOfAMebibyteIsNotQuadratic) {
  const Bpe bpe(random_tables(1, 200));
  Bpe::Scratch scratch;
  Rng rng(5);
  for (const uint64_t letters : {1u, 4u}) {
    std::string piece;
    for (size_t i = 0; i < (1u << 20); ++i) piece.push_back(static_cast<char>('a' + rng.below(letters)));
    std::vector<int32_t> ids;
    const auto start = std::chrono::steady_clock::now();
    bpe.encode(piece, ids, scratch);
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20);
    EXPECT_LT(ids.size(), piece.size());
  }
}

// A long piece is merged in parts that no merge can join: the same ids, without memory for the whole.
TEST(Bpe, PartsGiveTheIdsOfTheWhole) {
  Rng rng(3);
  size_t parts = 0, whole = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Bpe::Tables tables = random_tables(seed, 2 + int(seed % 8));
    const Bpe bpe(tables);
    Bpe::Scratch scratch;
    for (const size_t least : {1, 2, 7, 50}) {
      std::string piece;
      for (size_t i = 0; i < 300; ++i) piece.push_back(static_cast<char>('a' + rng.below(4)));
      std::vector<int32_t> ids;
      for (std::string_view rest = piece; !rest.empty(); ++parts) {
        const size_t n = bpe.part(rest, least);
        ASSERT_GE(n, std::min(least, rest.size()));
        bpe.merge(rest.substr(0, n), ids, scratch);
        rest.remove_prefix(n);
      }
      ++whole;
      ASSERT_EQ(ids, by_definition(tables, piece)) << seed << " " << piece;
    }
  }
  EXPECT_GT(parts, 10 * whole);

  // A token that is built by a later merge; one that stands for several texts; unknown bytes.
  Bpe::Tables t = random_tables(1, 0);
  t.merges = {{256, 'c', 257}, {'a', 'b', 256}};
  EXPECT_EQ(Bpe(t).part("abcabc", 1), 3u);
  t.merges.push_back({'x', 'y', 256});  // now 256 ends with b or y
  EXPECT_EQ(Bpe(t).part("aycabc", 1), 1u);
  EXPECT_EQ(Bpe(t).part("qcabc", 1), 5u - 3u);
  t.byte_ids['q'] = -1;
  t.unk_id = 'z';
  EXPECT_EQ(Bpe(t).part("aqqqab", 1), 4u + 2u);
}

TEST(Bpe, BytesWithoutATokenAreUnkOrAnError) {
  Bpe::Tables t = random_tables(1, 0);
  t.byte_ids['x'] = -1;
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  EXPECT_HAS(test::error_of([&] { Bpe(t).encode("axxb", ids, scratch); }), "0x78");
  t.unk_id = 9;
  Bpe(t).encode("axxb", ids, scratch);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 9, 9, 'b'}));
  t.fuse_unk = true;
  ids.clear();
  Bpe(t).encode("axxbx", ids, scratch);
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 9, 'b', 9}));
}

}  // namespace
}  // namespace hysparse
