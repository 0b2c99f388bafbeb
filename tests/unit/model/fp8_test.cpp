// Experts kept in e4m3: the rounding itself, what is kept so, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"
#include "kernels/quantise.h"
#include "model/weights.h"
#include "unit/model/tiny.h"

namespace hysparse::test {
namespace {

float value_of(int code) {
  f8 x;
  x.bits = static_cast<uint8_t>(code);
  return static_cast<float>(x);
}

TEST(F8, EveryCodeIsItsNumber) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 7 - 3);
    if ((code & 127) == 127)
      EXPECT_TRUE(std::isnan(value_of(code)));
    else
      EXPECT_EQ(value_of(code), code & 128 ? -magnitude : magnitude) << code;
  }
  EXPECT_EQ(value_of(0x7e), 448);
}

// With 448 in the row its scale is 1: what comes back are the numbers themselves, and of others the nearest,
// of two that are as near the even one.
TEST(F8, RoundsToTheNearestEven) {
  std::vector<float> x = {448};
  for (int code = 0; code < 127; ++code) x.push_back(value_of(code));
  for (int code = 0; code < 126; ++code) {
    const float low = value_of(code), high = value_of(code + 1);
    for (const float share : {0.25f, 0.5f, 0.75f}) x.push_back(low + share * (high - low));
  }
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) x.push_back(-x[i]);
  std::vector<f8> q(x.size());
  float scale = 0;
  ASSERT_TRUE(quantise_rows_f8(x.data(), 1, std::ssize(x), q.data(), &scale));
  ASSERT_EQ(scale, 1);
  for (size_t i = 0; i < x.size(); ++i) {
    int best = 0;
    for (int code = 0; code < 127; ++code) {
      const float now = std::fabs(value_of(code) - std::fabs(x[i])),
                  before = std::fabs(value_of(best) - std::fabs(x[i]));
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    EXPECT_EQ(q[i].bits & 127, best) << x[i];
    EXPECT_EQ(q[i].bits >> 7, std::signbit(x[i])) << x[i];
  }
}

TEST(F8, RowsHaveScalesOfTheirOwn) {
  const int64_t rows = 3, in = 70;
  std::vector<float> x(static_cast<size_t>(rows * in));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = i < 70 ? 0.0f : std::sin(float(i) * 1.3f) * (i < 140 ? 1e-3f : 1e6f);
  std::vector<f8> q(x.size());
  std::vector<float> scales(3);
  ASSERT_TRUE(quantise_rows_f8(x.data(), rows, in, q.data(), scales.data()));
  EXPECT_EQ(scales[0], 0.0f);
  for (size_t i = 0; i < x.size(); ++i) {
    const float scale = scales[i / 70], got = scale * static_cast<float>(q[i]);
    ASSERT_LE(std::fabs(got - x[i]), std::max(std::fabs(x[i]) / 16, scale / 1024) * 1.0001f) << i;
  }
  x[100] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(quantise_rows_f8(x.data(), rows, in, q.data(), scales.data()));
}

ModelConfig experts_config() {
  return tiny::config(AttentionKind::hysparse, [](ModelConfig& c) { tiny::with_experts(c); });
}

TEST(Fp8Weights, ExpertsAreKeptSoAndNothingElse) {
  const ModelConfig config = experts_config();
  const LayerPlan plan = build_layer_plan(config);
  Weights wide(config, plan, {.compute = DType::f32}), narrow(config, plan, {.format = WeightFormat::fp8});
  wide.init_random(config, plan, 5);
  narrow.init_random(config, plan, 5);
  int experts = 0;
  for (size_t i = 0; i < wide.all().size(); ++i) {
    const Weight &w = *wide.all()[i], &n = *narrow.all()[i];
    const bool expert = w.name.find(".experts.") != std::string::npos;
    ASSERT_EQ(bool(n.scales), expert) << w.name;
    ASSERT_EQ(n.value.dtype, expert ? DType::f8 : DType::f32) << w.name;
    if (!expert) continue;
    ++experts;
    std::vector<double> row(static_cast<size_t>(w.value.dim(1)));
    widen_row(n, 1, row.data());
    for (size_t c = 0; c < row.size(); ++c) {
      const double x = w.value.as<float>()[w.value.stride[0] + int64_t(c)];
      EXPECT_LE(std::fabs(row[c] - x), std::max(std::fabs(x) / 15, 1e-3)) << w.name;
    }
  }
  EXPECT_GT(experts, 0);
}

TEST(Fp8Weights, RefusedForTrainingAndWithoutExperts) {
  const ModelConfig dense = tiny::config(), moe = experts_config();
  EXPECT_THROW(Weights(dense, build_layer_plan(dense), {.format = WeightFormat::fp8}), Error);
  EXPECT_THROW(Weights(moe, build_layer_plan(moe), {.training = true, .format = WeightFormat::fp8}), Error);
  EXPECT_EQ(weight_format_of("fp8"), WeightFormat::fp8);
}

// What grouped products of a GPU read as one tensor.
TEST(ExpertWeights, StandAtEqualDistances) {
  const ModelConfig config = experts_config();
  const LayerPlan plan = build_layer_plan(config);
  const WeightOptions kinds[] = {{.compute = DType::bf16},
                                 {.compute = DType::f32, .training = true},
                                 {.compute = DType::bf16, .training = true},
                                 {.compute = DType::bf16, .training = true, .narrow_gradients = true},
                                 {.compute = DType::bf16, .training = true, .rank = 1, .ranks = 3},
                                 {.compute = DType::bf16, .format = WeightFormat::int8},
                                 {.compute = DType::bf16, .format = WeightFormat::fp8}};
  for (const WeightOptions& options : kinds) {
    Weights weights(config, plan, options);
    int groups = 0;
    for (LayerWeights& layer : weights.layers)
      for (auto* experts : {&layer.expert_gate, &layer.expert_up, &layer.expert_down})
        for (TensorView Weight::*which : {&Weight::value, &Weight::scales, &Weight::grad}) {
          if (experts->empty() || !(experts->front().*which)) continue;
          ++groups;
          std::set<std::ptrdiff_t> distances;
          for (size_t e = 1; e < experts->size(); ++e)
            distances.insert(static_cast<std::byte*>(((*experts)[e].*which).data) -
                             static_cast<std::byte*>(((*experts)[e - 1].*which).data));
          EXPECT_EQ(distances.size(), 1u);
          EXPECT_GT(*distances.begin(), 0);
        }
    EXPECT_GT(groups, 0);
  }
}

// A benchmark's experts: the first few drawn as ever, the others copies of them.
TEST(ExpertWeights, DistinctExperts) {
  const ModelConfig config = experts_config();
  const LayerPlan plan = build_layer_plan(config);
  Weights all(config, plan, {.compute = DType::f32}), few(config, plan, {.compute = DType::f32});
  all.init_random(config, plan, 5);
  few.init_random(config, plan, 5, nullptr, 2);
  for (size_t i = 0; i < all.layers.size(); ++i)
    for (size_t e = 0; e < all.layers[i].expert_down.size(); ++e) {
      const TensorView &a = all.layers[i].expert_down[e % 2].value, &b = few.layers[i].expert_down[e].value;
      EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << e;
    }
}

}  // namespace
}  // namespace hysparse::test
