#include "train/data.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "data_support.h"
#include "kernels/ops.h"

namespace hysparse::test_data {
namespace {

TEST(TokenData, WhatWasWrittenIsReadInBothWidths) {
  for (const int32_t vocab : {1000, 65536, 65537, 200'000}) {
    TempDir dir;
    const TokenData data = documents(dir.path(), {300'000, 5, 1, 300'000}, vocab);
    EXPECT_EQ(data.tokens(), 600'006);
    EXPECT_EQ(data.documents(), 4);
    EXPECT_EQ(data.bytes_of_text(), 3 * (600'006 - 4));
    EXPECT_EQ(data.vocab_size(), vocab);
    EXPECT_EQ(data.eos_id(), 0);
    EXPECT_EQ(data.tokenizer_fingerprint(), std::string(32, 'f'));
    EXPECT_EQ(std::filesystem::file_size(data.path()), 128 + 600'006u * (vocab <= 65536 ? 2 : 4));
    EXPECT_EQ(data.at(299'999), 0);
    EXPECT_EQ(data.at(70'000), 1 + 70'000 % (vocab - 1));
    std::vector<int32_t> some(5);
    data.read(299'998, 5, some.data());
    EXPECT_EQ(some, (std::vector<int32_t>{data.at(299'998), 0, data.at(300'000), data.at(300'001),
                                          data.at(300'002)}));
    error_of([&] { data.at(600'006); }, ErrorKind::failure);
    error_of([&] { data.read(600'005, 2, some.data()); }, ErrorKind::failure);
  }
}

TEST(TokenData, DamagedFilesAreErrorsThatSayHow) {
  TempDir dir;
  documents(dir.path(), {50, 60});
  const std::filesystem::path path = dir / "train.tokens";
  const std::string whole = read(path);
  const auto open = [&](const std::string& content) {
    write(path, content);
    return error_of([&] { TokenData(dir.path(), "train"); });
  };
  EXPECT_SAYS(open(""), "not a token file");
  EXPECT_SAYS(open("{\"text\": 1}"), "not a token file");
  EXPECT_SAYS(open(whole.substr(0, 60)), "cut off inside its header: 60 bytes of 128");
  EXPECT_SAYS(open(whole.substr(0, whole.size() - 2)), "says 110 tokens of 2 bytes, but 218 bytes follow");
  EXPECT_SAYS(open(whole + "x"), "says 110 tokens of 2 bytes, but 221 bytes follow");
  std::string other = whole;
  other[8] = 9;
  EXPECT_SAYS(open(other), "version: expected 1, got 9");
  for (const size_t byte : {13, 17, 40, 50, 81, 100, 127}) {
    other = whole;
    other[byte] ^= 1;
    EXPECT_SAYS(open(other), "header is damaged");
  }
  for (const size_t byte : {size_t(128), size_t(200), whole.size() - 1}) {
    other = whole;
    other[byte] ^= 1;
    EXPECT_SAYS(open(other), "its tokens are damaged");
  }
  write(path, whole);
  EXPECT_EQ(TokenData(dir.path(), "train").tokens(), 110);
}

TEST(TokenData, MissingPartsAreNamed) {
  TempDir dir;
  EXPECT_SAYS(error_of([&] { TokenData(dir.path(), "train"); }), "hysparse data prepare");
  documents(dir.path(), {50});
  EXPECT_SAYS(error_of([&] { TokenData(dir.path(), "holdout"); }), "this data has no holdout part");
  EXPECT_TRUE(TokenData::has(dir.path(), "train"));
  EXPECT_FALSE(TokenData::has(dir.path(), "holdout"));
}

TEST(SampleOrder, EveryEpochIsAPermutationAndEpochsDiffer) {
  for (const int64_t n : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    const SampleOrder order(n, 7);
    std::set<std::vector<int64_t>> epochs;
    for (int64_t e = 0; e < 4; ++e) {
      std::vector<int64_t> samples, sorted, all(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) samples.push_back(order.sample(e * n + i));
      sorted = samples;
      std::sort(sorted.begin(), sorted.end());
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(sorted, all) << n;
      epochs.insert(samples);
    }
    if (n >= 16) {
      EXPECT_EQ(epochs.size(), 4u) << n;
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndIndexAloneAndIsWellMixed) {
  const int64_t n = 10'000;
  const SampleOrder a(n, 1), b(n, 1), c(n, 2), plain(n, 1, false);
  int64_t same = 0, fixed = 0, neighbours = 0;
  double displacement = 0;
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(a.sample(n - 1 - i), b.sample(n - 1 - i));
    same += a.sample(i) == c.sample(i);
    fixed += a.sample(i) == i;
    neighbours += i > 0 && std::abs(a.sample(i) - a.sample(i - 1)) == 1;
    displacement += static_cast<double>(std::abs(a.sample(i) - i)) / static_cast<double>(n);
    ASSERT_EQ(plain.sample(i + 3 * n), i);
  }
  EXPECT_LT(same, 12);        // 1 expected
  EXPECT_LT(fixed, 12);       // 1 expected
  EXPECT_LT(neighbours, 20);  // 2 expected
  EXPECT_NEAR(displacement / static_cast<double>(n), 1.0 / 3, 0.01);
  // Far indices and huge orders need no more than near ones.
  const SampleOrder huge(int64_t(1) << 40, 3);
  EXPECT_LT(huge.sample((int64_t(1) << 60) + 5), int64_t(1) << 40);
  EXPECT_SAYS(error_of([] { SampleOrder(0, 1); }), "expected at least one sample, got 0");
}

// Small orders: all permutations of 3 should come up about equally often over many epochs.
TEST(SampleOrder, SmallPermutationsAreEven) {
  const SampleOrder order(3, 11);
  std::map<std::vector<int64_t>, int> seen;
  for (int64_t e = 0; e < 6000; ++e)
    ++seen[{order.sample(3 * e), order.sample(3 * e + 1), order.sample(3 * e + 2)}];
  EXPECT_EQ(seen.size(), 6u);
  for (const auto& [p, n] : seen) EXPECT_NEAR(n, 1000, 200);
}

struct Sequences {
  std::vector<int64_t> lengths, rows;
};
Sequences sequences(const TrainBatch& b) {
  Sequences out;
  for (int64_t s = 0; s < b.batch.sequences(); ++s) {
    out.lengths.push_back(b.batch.q_len(s));
    out.rows.push_back(b.batch.row[static_cast<size_t>(s)]);
  }
  return out;
}

// What holds for every batch.
void check(const TrainBatch& b, const TokenData& data, const SampleOrder& order, int64_t first, int64_t rows,
           int64_t length, bool mask) {
  ASSERT_EQ(static_cast<int64_t>(b.tokens.size()), rows * length);
  ASSERT_EQ(b.labels.size(), b.tokens.size());
  ASSERT_EQ(b.batch.tokens(), rows * length);
  ASSERT_EQ(b.batch.position.size(), b.tokens.size());
  int64_t targets = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < length; ++i) {
      const auto k = static_cast<size_t>(r * length + i);
      const int64_t at = order.sample(first + r) * length + i;
      ASSERT_EQ(b.tokens[k], data.at(at));
      const bool ends = mask && data.at(at) == data.eos_id();
      ASSERT_EQ(b.labels[k], ends ? kIgnoreLabel : data.at(at + 1));
      targets += !ends;
    }
  ASSERT_EQ(b.targets, targets);
  for (int64_t s = 0; s < b.batch.sequences(); ++s) {
    ASSERT_GT(b.batch.q_len(s), 0);  // no empty sequence, wherever a document ends
    ASSERT_EQ(b.batch.past_len[static_cast<size_t>(s)], 0);
    const int64_t begin = b.batch.cu_q[static_cast<size_t>(s)],
                  end = b.batch.cu_q[static_cast<size_t>(s) + 1];
    ASSERT_EQ(begin / length, (end - 1) / length);  // no sequence crosses a row
    for (int64_t i = begin; i < end; ++i) {
      ASSERT_EQ(b.batch.position[static_cast<size_t>(i)], i - begin);
      if (!mask) continue;
      const bool ends = b.tokens[static_cast<size_t>(i)] == data.eos_id();
      ASSERT_TRUE(!ends || i + 1 == end);
      ASSERT_EQ(b.labels[static_cast<size_t>(i)] == kIgnoreLabel, ends);
    }
  }
}

// BC-38, the data's part: documents of 100, 1, 1, 63, 64, 200 tokens in one row.
TEST(TrainBatch, DocumentsOfARowAreSequencesOfTheirOwn) {
  TempDir dir;
  const TokenData data = documents(dir.path(), {100, 1, 1, 63, 64, 200, 2});
  const SampleOrder order(1, 0);
  const TrainBatch b = make_train_batch(data, order, 0, 1, 429, true, 5);
  check(b, data, order, 0, 1, 429, true);
  EXPECT_EQ(sequences(b).lengths,
            (std::vector<int64_t>{100, 1, 1, 63, 64, 200}));  // the last ends with the row
  EXPECT_EQ(sequences(b).rows, (std::vector<int64_t>(6, 5)));
  EXPECT_EQ(b.targets, 429 - 6);
  EXPECT_EQ(b.labels.back(), kIgnoreLabel);

  const TrainBatch open = make_train_batch(data, order, 0, 1, 429, false, 5);
  check(open, data, order, 0, 1, 429, false);
  EXPECT_EQ(sequences(open).lengths, (std::vector<int64_t>{429}));
  EXPECT_EQ(open.targets, 429);
}

TEST(TrainBatch, RowsCutDocumentsAndPositionsRestart) {
  TempDir dir;
  const TokenData data = documents(dir.path(), {10, 3, 7, 1, 12, 8});  // ends at 9, 12, 19, 20, 32, 40
  const SampleOrder order(5, 0, false);
  const TrainBatch b = make_train_batch(data, order, 0, 5, 8, true, 100);
  check(b, data, order, 0, 5, 8, true);
  EXPECT_EQ(sequences(b).lengths, (std::vector<int64_t>{8, 2, 3, 3, 4, 1, 3, 8, 1, 7}));
  EXPECT_EQ(sequences(b).rows, (std::vector<int64_t>{100, 101, 101, 101, 102, 102, 102, 103, 104, 104}));
}

TEST(TrainBatch, RandomDocumentsAndRows) {
  TempDir dir;
  Rng rng(6);
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> lengths;
    for (uint64_t i = 1 + rng.below(40); i > 0; --i)
      lengths.push_back(static_cast<int64_t>(1 + rng.below(rng.below(3) == 0 ? 2 : 50)));
    lengths.push_back(40);
    const TokenData data = documents(dir.path(), lengths);
    const auto length = static_cast<int64_t>(1 + rng.below(30));
    const SampleOrder order((data.tokens() - 1) / length, rng.next());
    for (const bool mask : {false, true}) {
      const auto first = static_cast<int64_t>(rng.below(100));
      check(make_train_batch(data, order, first, 7, length, mask), data, order, first, 7, length, mask);
    }
  }
}

// An epoch of micro-batches, however it is cut, holds every sample once.
TEST(TrainBatch, AnEpochCoversEveryTokenOnce) {
  TempDir dir;
  const TokenData data = documents(dir.path(), {500, 200, 31, 269});
  const int64_t length = 16, n = (data.tokens() - 1) / length;
  const SampleOrder order(n, 3);
  std::map<int32_t, int> seen;
  for (int64_t first = 0; first < n; first += 4)
    for (const int32_t t :
         make_train_batch(data, order, first, std::min<int64_t>(4, n - first), length, true).tokens)
      ++seen[t];
  EXPECT_EQ(seen.erase(0), 1u);
  for (int64_t i = 0; i < n * length; ++i) ASSERT_EQ(data.at(i) == 0 || seen[data.at(i)] == 1, true) << i;
}

TEST(TrainBatch, TooLittleDataIsAnErrorWithTheNumbers) {
  TempDir dir;
  const TokenData data = documents(dir.path(), {20});
  const std::string message = error_of([&] { make_train_batch(data, SampleOrder(1, 0), 0, 1, 20, true); });
  EXPECT_SAYS(message, "more than 20 tokens for one sample");
  EXPECT_SAYS(message, "got 20");
  EXPECT_NO_THROW(make_train_batch(data, SampleOrder(1, 0), 0, 1, 19, true));
  EXPECT_SAYS(error_of([&] { make_train_batch(data, SampleOrder(2, 0), 0, 1, 19, true); }),
              "expected 2 samples of 19 tokens, got 1");
}

}  // namespace
}  // namespace hysparse::test_data
