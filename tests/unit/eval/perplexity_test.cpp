#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

constexpr int64_t kWindow = 128;

// Loss of a token given what precedes it in its window: a fixed table of the token id, plus `context_share`
// for each token of context, so that tests can see the context that was given.
WindowLosses table(double (*loss)(int32_t), std::map<int32_t, int>* scored = nullptr,
                   std::map<int32_t, int64_t>* context = nullptr) {
  return [=](const RaggedBatch& batch, const std::vector<int32_t>& tokens, const std::vector<int32_t>& labels,
             std::vector<double>& out) {
    ASSERT_EQ(tokens.size(), size_t(batch.tokens()));
    ASSERT_EQ(labels.size(), tokens.size());
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      EXPECT_LE(batch.q_len(s), kWindow);
      EXPECT_EQ(batch.past_len[size_t(s)], 0);
      for (int64_t i = batch.cu_q[size_t(s)]; i < batch.cu_q[size_t(s) + 1]; ++i) {
        const int32_t label = labels[size_t(i)];
        if (label == kIgnoreLabel) {
          out[size_t(i)] = 1e9;  // must not be counted
          continue;
        }
        // Inputs of a window are neighbours in the text: the label follows its input.
        EXPECT_EQ(label, tokens[size_t(i)] + 1);
        out[size_t(i)] = loss(label);
        if (scored) ++(*scored)[label];
        if (context) (*context)[label] = i - batch.cu_q[size_t(s)] + 1;
      }
    }
  };
}

std::vector<int32_t> numbered(int64_t n, int32_t first = 1000) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(first + int32_t(i));
  return out;
}

double uneven(int32_t token) {
  return 0.5 + double(hash_words({uint64_t(token)}) % 1000) / 300;
}

const std::vector<int64_t> kLengths{1, 2, kWindow - 1, kWindow, kWindow + 1, 3 * kWindow + 5};

TEST(Perplexity, UniformModelGivesTheVocabularySize) {
  for (const int64_t stride : {int64_t(1), int64_t(7), int64_t(64), kWindow})
    for (const int64_t batch : {1, 3, 8}) {
      PerplexityOptions o;
      o.window = kWindow;
      o.stride = stride;
      o.batch = batch;
      Perplexity p(table([](int32_t) { return std::log(97.0); }), o);
      for (const int64_t n : kLengths) p.add(numbered(n));
      const PerplexityResult r = p.finish();
      EXPECT_NEAR(r.perplexity(), 97, 97 * 1e-12);
      EXPECT_NEAR(r.standard_error, 0, 1e-12);
    }
}

TEST(Perplexity, EachTokenAfterTheFirstIsScoredOnce) {
  for (const int64_t stride : {int64_t(1), int64_t(7), int64_t(64), kWindow})
    for (const int64_t batch : {1, 5}) {
      SCOPED_TRACE(testing::Message() << "stride " << stride << " batch " << batch);
      double sum = 0;
      int64_t count = 0, bytes = 0;
      std::map<int32_t, int> scored;
      std::map<int32_t, int64_t> context;
      PerplexityOptions o;
      o.window = kWindow;
      o.stride = stride;
      o.batch = batch;
      o.token_bytes = [](int32_t t) { return int64_t(t % 5); };
      Perplexity p(table(uneven, &scored, &context), o);
      int32_t first = 10000;
      for (const int64_t n : kLengths) {
        p.add(numbered(n, first));
        for (int64_t i = 1; i < n; ++i) {
          sum += uneven(first + int32_t(i));
          bytes += (first + i) % 5;
          ++count;
        }
        first += 10000;
      }
      const PerplexityResult r = p.finish();
      EXPECT_EQ(r.documents, int64_t(kLengths.size()));
      EXPECT_EQ(r.tokens, count);
      EXPECT_EQ(r.bytes, bytes);
      EXPECT_NEAR(r.nats, sum, 1e-9);
      EXPECT_NEAR(r.nats_per_token(), sum / double(count), 1e-12);
      EXPECT_NEAR(r.bits_per_byte(), sum / std::log(2) / double(bytes), 1e-12);
      EXPECT_EQ(int64_t(scored.size()), count);
      for (const auto& [token, times] : scored) EXPECT_EQ(times, 1) << token;
      // Context: all that precedes within the first window, at least window - stride + 1 inputs after it.
      for (const auto& [token, inputs] : context) {
        const int64_t before = token % 10000;
        EXPECT_GE(inputs, std::min(before, kWindow - stride + 1)) << token;
      }
    }
}

// By position in the document, whatever window a token was scored in.
TEST(Perplexity, Positions) {
  for (const int64_t stride : {int64_t(7), kWindow}) {
    PerplexityOptions o;
    o.window = kWindow;
    o.stride = stride;
    o.batch = 3;
    o.token_bytes = [](int32_t) { return int64_t(2); };
    Perplexity p(table([](int32_t t) { return double(t % 1000); }), o);  // the loss is the position
    p.add(numbered(300));
    p.add(numbered(65));
    const PerplexityResult r = p.finish();
    const std::vector<std::pair<int64_t, int64_t>> bands{{1, 64}, {64, 128}, {128, 256}, {256, 512}};
    ASSERT_EQ(r.by_position.size(), bands.size());
    int64_t tokens = 0;
    double nats = 0;
    for (size_t b = 0; b < bands.size(); ++b) {
      const PositionBand& band = r.by_position[b];
      EXPECT_EQ(band.from, bands[b].first);
      EXPECT_EQ(band.to, bands[b].second);
      double sum = 0;
      int64_t count = 0;
      for (const int64_t length : {300, 65})
        for (int64_t i = band.from; i < std::min(band.to, length); ++i) sum += double(i), ++count;
      EXPECT_EQ(band.tokens, count);
      EXPECT_EQ(band.bytes, 2 * count);
      EXPECT_DOUBLE_EQ(band.nats, sum);
      tokens += count;
      nats += sum;
    }
    EXPECT_EQ(r.tokens, tokens);
    EXPECT_DOUBLE_EQ(r.nats, nats);
  }
}

TEST(Perplexity, NothingToScore) {
  Perplexity p(table(uneven), {});
  p.add({});
  p.add({5});
  const PerplexityResult r = p.finish();
  EXPECT_EQ(r.tokens, 0);
  EXPECT_TRUE(std::isnan(r.nats_per_token()));
  EXPECT_TRUE(std::isnan(r.bits_per_byte()));
}

TEST(Perplexity, ACutDocumentCountsOnlyWhatWasScored) {
  for (const int64_t limit : {1, 100, 128, 300}) {
    PerplexityOptions o;
    o.window = kWindow;
    o.stride = 64;
    o.max_tokens = limit;
    o.token_bytes = [](int32_t) { return int64_t(3); };
    Perplexity p(table(uneven), o);
    p.add(numbered(80));
    p.add(numbered(500, 5000));
    EXPECT_EQ(p.full(), true);
    p.add(numbered(500, 9000));
    const PerplexityResult r = p.finish();
    double sum = 0;
    for (int64_t i = 1; i <= limit; ++i) sum += uneven(i < 80 ? 1000 + int32_t(i) : 5000 + int32_t(i - 79));
    EXPECT_EQ(r.tokens, limit);
    EXPECT_EQ(r.bytes, 3 * limit);
    EXPECT_NEAR(r.nats, sum, 1e-9);
  }
}

// Known answers: single tokens while they are few; then blocks, which see that neighbours move together.
TEST(Perplexity, StandardError) {
  PerplexityOptions o;
  o.window = kWindow;
  o.stride = kWindow;
  Perplexity few(table([](int32_t t) { return t % 2 ? 1.0 : 3.0; }), o);
  few.add(numbered(101));
  const PerplexityResult a = few.finish();
  EXPECT_NEAR(a.standard_error, std::sqrt(100.0 / 99 / 100), 1e-12);

  // Losses that alternate every 64 tokens: independent tokens would claim an 8 times smaller error.
  Perplexity blocks(table([](int32_t t) { return (t - 1) / 64 % 2 ? 1.0 : 3.0; }), o);
  blocks.add(numbered(64 * 20 + 1, 0));
  const PerplexityResult b = blocks.finish();
  EXPECT_NEAR(b.nats_per_token(), 2, 1e-12);
  EXPECT_NEAR(b.standard_error, std::sqrt(20.0 / 19 / 20), 1e-12);
}

TEST(Perplexity, BadOptionsAndBrokenLosses) {
  const auto refused = [](int64_t window, int64_t stride) {
    PerplexityOptions o;
    o.window = window;
    o.stride = stride;
    EXPECT_THROW(Perplexity(table(uneven), o), Error) << window << " " << stride;
  };
  refused(0, 1);
  refused(16, 0);
  refused(16, 17);
  refused(16, -1);
  Perplexity p(table([](int32_t) { return std::nan(""); }), {});
  p.add(numbered(10));
  EXPECT_THROW(p.finish(), Error);
}

}  // namespace
}  // namespace hysparse
