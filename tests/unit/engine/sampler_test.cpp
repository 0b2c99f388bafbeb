#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TensorView view(std::vector<float>& x) {
  return TensorView(x.data(), DType::f32, {int64_t(x.size())});
}

int32_t draw(std::vector<float> logits, const SamplerOptions& o, uint64_t index = 0) {
  return Sampler(o, int64_t(logits.size())).sample(view(logits), index);
}

std::vector<double> frequencies(std::vector<float> logits, const SamplerOptions& o, int n) {
  Sampler s(o, int64_t(logits.size()));
  std::vector<double> f(logits.size());
  for (int i = 0; i < n; ++i) f[size_t(s.sample(view(logits), uint64_t(i)))] += 1.0 / n;
  return f;
}

std::vector<double> softmax(const std::vector<double>& x) {
  std::vector<double> p(x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += p[i] = std::exp(x[i]);
  for (double& v : p) v /= sum;
  return p;
}

void expect_near(const std::vector<double>& f, const std::vector<double>& p, int n) {
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0)
      EXPECT_EQ(f[i], 0) << i;
    else
      EXPECT_NEAR(f[i], p[i], 5 * std::sqrt(p[i] * (1 - p[i]) / n) + 1e-9) << i;
  }
}

TEST(Sampler, GreedyTakesTheLowestOfEqualMaxima) {
  SamplerOptions o;
  o.temperature = 0;
  EXPECT_EQ(draw({1, 3, 2, 3}, o), 1);
  EXPECT_EQ(draw({-5, -4, -4}, o), 1);
  EXPECT_EQ(draw({0, 0, 0}, o), 0);
  EXPECT_EQ(draw({float(-kInf), -1e30f, float(-kInf)}, o), 1);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const int n = 40000;
  const std::vector<float> x{1.f, 0.f, -1.f, 2.f, float(-kInf)};
  for (const double t : {0.5, 1.0, 2.5}) {
    SamplerOptions o;
    o.temperature = t;
    expect_near(frequencies(x, o, n), softmax({1 / t, 0, -1 / t, 2 / t, -kInf}), n);
  }
}

TEST(Sampler, TopKTopPMinP) {
  const int n = 20000;
  const std::vector<float> x{0.f, 3.f, 1.f, 3.f, 2.f};
  SamplerOptions o;
  o.top_k = 1;
  expect_near(frequencies(x, o, n), {0, 1, 0, 0, 0}, n);  // of equal logits the lower id is kept
  o.top_k = 3;
  expect_near(frequencies(x, o, n), softmax({-kInf, 3, -kInf, 3, 2}), n);
  o.top_k = 100;
  expect_near(frequencies(x, o, n), softmax({0, 3, 1, 3, 2}), n);
  o = {};
  // p = .0195 .3926 .0531 .3926 .1444: the fewest whose sum reaches top_p
  o.top_p = 0.39;
  expect_near(frequencies(x, o, n), {0, 1, 0, 0, 0}, n);
  o.top_p = 0.5;
  expect_near(frequencies(x, o, n), {0, .5, 0, .5, 0}, n);
  o.top_p = 0.9;
  expect_near(frequencies(x, o, n), softmax({-kInf, 3, -kInf, 3, 2}), n);
  o.top_p = 1e-9;
  expect_near(frequencies(x, o, n), {0, 1, 0, 0, 0}, n);
  o = {};
  o.min_p = 0.3;  // e^-1 = .37 of the best stays, e^-2 goes
  expect_near(frequencies(x, o, n), softmax({-kInf, 3, -kInf, 3, 2}), n);
  o.min_p = 1;
  expect_near(frequencies(x, o, n), {0, .5, 0, .5, 0}, n);
  o = {};
  o.top_k = 3;  // top_p works on what top_k left: .4223 .4223 .1554, not .3926 .3926 .1444
  o.top_p = 0.82;
  expect_near(frequencies(x, o, n), {0, .5, 0, .5, 0}, n);
}

// A large vocabulary goes through partial orderings; the kept set must be that of a full sort.
TEST(Sampler, TopPOfALargeVocabularyEqualsAFullSort) {
  Rng rng(3);
  for (const double spread : {0.1, 3.0, 30.0}) {
    std::vector<float> x(5000);
    for (float& v : x) v = float(std::round(rng.normal() * spread * 16) / 16);  // with ties
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    const std::vector<double> p = softmax({x.begin(), x.end()});
    for (const double top_p : {0.01, 0.3, 0.9, 0.999}) {
      std::set<size_t> kept;
      double sum = 0;
      for (size_t i = 0; sum < top_p; ++i) sum += p[order[i]], kept.insert(order[i]);
      SamplerOptions o;
      o.top_p = top_p;
      Sampler s(o, 5000);
      std::set<size_t> seen;
      for (uint64_t i = 0; i < 300; ++i) {
        const auto t = size_t(s.sample(view(x), i));
        EXPECT_TRUE(kept.count(t)) << t;
        seen.insert(t);
      }
      if (kept.size() > 100) {
        EXPECT_GT(seen.size(), 10u);
      }
    }
  }
}

TEST(Sampler, TopKOfALargeVocabularyEqualsAFullSort) {
  Rng rng(4);
  for (const double spread : {0.0, 0.1, 3.0, 300.0}) {
    std::vector<float> x(5000);
    for (float& v : x) v = float(std::round(rng.normal() * spread * 4) / 4);
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    for (const size_t k : {1, 2, 17, 500, 4999}) {
      const std::set<size_t> kept(order.begin(), order.begin() + int64_t(k));
      SamplerOptions o;
      o.top_k = int64_t(k);
      o.temperature = spread == 300.0 ? 1000 : 3;
      const Sampler s(o, 5000);
      for (uint64_t i = 0; i < 300; ++i)
        EXPECT_TRUE(kept.count(size_t(s.sample(view(x), i)))) << k << ' ' << spread;
    }
  }
}

TEST(Sampler, RepetitionPenaltyLowersBothSigns) {
  SamplerOptions o;
  o.temperature = 0;
  o.repetition_penalty = 2;
  std::vector<float> x{3.f, 2.f, -1.f};
  Sampler s(o, 3);
  EXPECT_EQ(s.sample(view(x), 0), 0);
  s.see_prompt({0, 0, 0});  // once, however often seen
  EXPECT_EQ(s.sample(view(x), 1), 1);
  s.see(1);
  EXPECT_EQ(s.sample(view(x), 2), 0);  // 1.5, 1, -1
  std::vector<float> y{-1.f, -1.5f, -9.f};
  Sampler t(o, 3);
  t.see(0);
  EXPECT_EQ(t.sample(view(y), 0), 1);  // -2, -1.5
}

// logit - times * frequency - presence, over the answer's tokens alone; then the bias.
TEST(Sampler, PenaltiesAndBiasAreOpenAIs) {
  SamplerOptions o;
  o.temperature = 0;
  o.frequency_penalty = 0.5;
  o.presence_penalty = 0.25;
  std::vector<float> x{3.f, 2.6f, 0.f, -9.f};
  Sampler s(o, 4);
  s.see_prompt({0, 0, 0, 0, 0});
  EXPECT_EQ(s.sample(view(x), 0), 0);  // the prompt does not count
  s.see(0);
  EXPECT_EQ(s.sample(view(x), 1), 1);  // 3 - .5 - .25 = 2.25 < 2.6
  s.see(1);
  EXPECT_EQ(s.sample(view(x), 2), 0);  // 2.25, 1.85
  s.see(0);
  EXPECT_EQ(s.sample(view(x), 3), 1);  // 1.75, 1.85: presence only once
  o.frequency_penalty = -2;            // negative ones encourage
  o.presence_penalty = 0;
  Sampler t(o, 4);
  for (int i = 0; i < 7; ++i) t.see(3);
  EXPECT_EQ(t.sample(view(x), 0), 3);  // -9 + 14
  o = {};
  o.temperature = 0;
  o.logit_bias = {{2, 100}, {0, -100}};
  EXPECT_EQ(draw({3.f, 2.f, 0.f, 1.f}, o), 2);
  o.temperature = 1;
  o.logit_bias = {{0, -100}};
  EXPECT_EQ(frequencies({9.f, 0.f, 0.f}, o, 2000)[0], 0);
  // repetition works on the logit as it came, before the others
  o = {};
  o.temperature = 0;
  o.repetition_penalty = 2;
  o.presence_penalty = 1;
  Sampler r(o, 2);
  r.see(0);
  std::vector<float> y{4.f, 1.1f};
  EXPECT_EQ(r.sample(view(y), 0), 1);  // 4 / 2 - 1 = 1, not (4 - 1) / 2
}

TEST(Sampler, AMaskIsNeverLeft) {
  const int n = 4000;
  std::vector<float> x(200, 0.f);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = 9.f;
  TokenMask mask(200);
  for (const int32_t id : {1, 64, 127, 130, 199}) mask.set(id);
  SamplerScratch scratch;
  for (const double top_p : {1.0, 0.99}) {
    for (const int64_t top_k : {0, 3, 150}) {
      SamplerOptions o;
      o.temperature = 50;
      o.top_p = top_p;
      o.top_k = top_k;
      const Sampler s(o, 200);
      for (int i = 0; i < n; ++i) EXPECT_TRUE(mask.test(s.sample(view(x), uint64_t(i), scratch, &mask)));
    }
  }
  const TokenMask none(200);
  EXPECT_THROW(Sampler({}, 200).sample(view(x), 0, scratch, &none), Error);
  x[5] = float(kNaN);  // hidden by the mask, and broken all the same
  EXPECT_THROW(Sampler({}, 200).sample(view(x), 0, scratch, &mask), Error);
}

TEST(Sampler, ChoicesDifferAndRepeat) {
  std::vector<float> x(50, 0.f);
  SamplerOptions o;
  o.seed = 7;
  const auto tokens = [&](uint64_t choice) {
    o.choice = choice;
    const Sampler s(o, 50);
    std::vector<int32_t> out;
    for (uint64_t i = 0; i < 30; ++i) out.push_back(s.sample(view(x), i));
    return out;
  };
  const auto a = tokens(0), b = tokens(1);
  EXPECT_NE(a, b);
  EXPECT_EQ(a, tokens(0));
  EXPECT_EQ(b, tokens(1));
}

// Scores in float64 rank as exactly as those in float32: differences below a float's epsilon count.
TEST(Sampler, DoubleLogitsKeepTheirOrder) {
  std::vector<double> x{1.0, 1.0 + 1e-12, 0.5, 1.0 + 2e-12};
  const TensorView v(x.data(), DType::f64, {4});
  SamplerOptions o;
  o.top_k = 2;
  std::set<int32_t> seen;
  for (uint64_t i = 0; i < 200; ++i) seen.insert(Sampler(o, 4).sample(v, i));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 3}));
  o.temperature = 0;
  EXPECT_EQ(Sampler(o, 4).sample(v, 0), 3);
}

TEST(Sampler, ATokenDependsOnSeedAndIndexAlone) {
  std::vector<float> x(50);
  Rng rng(1);
  for (float& v : x) v = float(rng.normal());
  SamplerOptions o;
  o.seed = 7;
  Sampler a(o, 50), b(o, 50);
  std::vector<int32_t> forward, backward(100);
  for (uint64_t i = 0; i < 100; ++i) forward.push_back(a.sample(view(x), i));
  for (uint64_t i = 100; i-- > 0;) backward[i] = b.sample(view(x), i);
  EXPECT_EQ(forward, backward);
  o.seed = 8;
  Sampler c(o, 50);
  std::vector<int32_t> other;
  for (uint64_t i = 0; i < 100; ++i) other.push_back(c.sample(view(x), i));
  EXPECT_NE(forward, other);
}

TEST(Sampler, ExtremeTemperaturesStayFinite) {
  SamplerOptions o;
  o.temperature = 1e-300;
  EXPECT_EQ(draw({1, 2, 1.5}, o), 1);
  o.temperature = 1e300;
  const std::vector<double> f = frequencies({1, 2, 3}, o, 6000);
  expect_near(f, {1. / 3, 1. / 3, 1. / 3}, 6000);
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  const auto refused = [](auto set, const char* field) {
    SamplerOptions o;
    set(o);
    try {
      o.check();
      ADD_FAILURE() << field;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(field), std::string::npos) << e.what();
    }
  };
  for (const double bad : {kNaN, kInf, -kInf, -1.0}) {
    refused([&](SamplerOptions& o) { o.temperature = bad; }, "temperature");
    refused([&](SamplerOptions& o) { o.top_p = bad; }, "top_p");
    refused([&](SamplerOptions& o) { o.min_p = bad; }, "min_p");
    refused([&](SamplerOptions& o) { o.repetition_penalty = bad; }, "repetition_penalty");
  }
  refused([](SamplerOptions& o) { o.top_p = 0; }, "top_p");
  refused([](SamplerOptions& o) { o.top_p = 1.01; }, "top_p");
  refused([](SamplerOptions& o) { o.min_p = 1.01; }, "min_p");
  refused([](SamplerOptions& o) { o.repetition_penalty = 0; }, "repetition_penalty");
  refused([](SamplerOptions& o) { o.top_k = -1; }, "top_k");
  for (const double bad : {kNaN, kInf, -2.01, 2.01}) {
    refused([&](SamplerOptions& o) { o.frequency_penalty = bad; }, "frequency_penalty");
    refused([&](SamplerOptions& o) { o.presence_penalty = bad; }, "presence_penalty");
    refused([&](SamplerOptions& o) { o.logit_bias = {{0, bad * 50}}; }, "logit_bias");
  }
  SamplerOptions o;
  o.logit_bias = {{10, 1}};
  EXPECT_THROW(Sampler(o, 10), Error);
  o.logit_bias = {{-1, 1}};
  EXPECT_THROW(Sampler(o, 10), Error);
  o.logit_bias = {{3, 1}, {3, 2}};
  EXPECT_THROW(Sampler(o, 10), Error);
}

TEST(Sampler, BrokenLogitsAreAnError) {
  SamplerOptions o;
  EXPECT_THROW(draw({1, float(kNaN), 2}, o), Error);
  EXPECT_THROW(draw({float(kNaN), 1}, o), Error);
  EXPECT_THROW(draw({1, float(kInf)}, o), Error);
  EXPECT_THROW(draw({float(-kInf), float(-kInf)}, o), Error);
}

}  // namespace
}  // namespace hysparse
