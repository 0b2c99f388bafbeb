// Weights kept as 8-bit integers: the rounding itself, what is kept so, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/quantise.h"
#include "model/weights.h"
#include "unit/model/tiny.h"

namespace hysparse::test {
namespace {

TEST(Quantise, ElementsAreOffByHalfAStepAtMost) {
  for (const int64_t in : {1, 63, 64, 65, 200}) {
    const int64_t rows = 3, groups = quant_groups(in);
    std::vector<float> x(size_t(rows * in));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(float(i) * 1.7f + 0.3f) * std::exp(float(i % 70) / 10);
    std::vector<int8_t> q(x.size());
    std::vector<float> scales(size_t(rows * groups));
    ASSERT_TRUE(quantise_rows(x.data(), rows, in, q.data(), scales.data()));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < in; ++i) {
        const float scale = scales[size_t(r * groups + i / kQuantGroup)], value = x[size_t(r * in + i)];
        ASSERT_LE(std::fabs(float(q[size_t(r * in + i)]) * scale - value), scale * 0.5001f)
            << in << ", " << i;
      }
    // The largest of a group uses the whole range.
    for (int64_t g = 0; g < groups; ++g) {
      int largest = 0;
      for (int64_t i = g * kQuantGroup; i < std::min(in, (g + 1) * kQuantGroup); ++i)
        largest = std::max(largest, std::abs(int(q[size_t(i)])));
      EXPECT_EQ(largest, 127);
    }
  }
}

TEST(Quantise, ZerosAndTinyNumbersAreZero) {
  std::vector<float> x(128, 0.0f);
  for (size_t i = 64; i < 128; ++i) x[i] = std::numeric_limits<float>::denorm_min() * float(i);
  std::vector<int8_t> q(128, 99);
  std::vector<float> scales(2, -1.0f);
  ASSERT_TRUE(quantise_rows(x.data(), 1, 128, q.data(), scales.data()));
  for (const int8_t v : q) EXPECT_EQ(v, 0);
  EXPECT_EQ(scales[0], 0.0f);
}

TEST(Quantise, SaysThatANumberIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> x(70, 1.0f);
    x[65] = bad;
    std::vector<int8_t> q(70);
    std::vector<float> scales(2);
    EXPECT_FALSE(quantise_rows(x.data(), 1, 70, q.data(), scales.data()));
  }
}

TEST(Int8Weights, MatricesAreKeptSoAndNothingElse) {
  const ModelConfig config = tiny::config();
  const LayerPlan plan = build_layer_plan(config);
  Weights wide(config, plan, {.compute = DType::f32}), narrow(config, plan, {.format = WeightFormat::int8});
  ThreadPool pool(3);
  wide.init_random(config, plan, 5, &pool);
  narrow.init_random(config, plan, 5, &pool);
  EXPECT_EQ(wide.parameters(), narrow.parameters());
  int quantised = 0;
  for (size_t i = 0; i < wide.all().size(); ++i) {
    const Weight &w = *wide.all()[i], &n = *narrow.all()[i];
    ASSERT_EQ(w.name, n.name);
    const bool gate = w.name.find("_gate.weight") != std::string::npos ||
                      w.name.find("self_attn.gate.weight") != std::string::npos;
    ASSERT_EQ(bool(n.scales), w.value.rank == 2 && !gate) << w.name;
    if (!n.scales) {
      EXPECT_EQ(n.value.dtype, DType::f32) << w.name;
      continue;
    }
    ++quantised;
    EXPECT_LT(n.bytes() * 3, w.bytes() + 256) << w.name;
    // The same numbers, rounded.
    std::vector<double> row(size_t(w.value.dim(1)));
    for (int64_t r = 0; r < w.value.dim(0); ++r) {
      widen_row(n, r, row.data());
      for (int64_t c = 0; c < w.value.dim(1); ++c) {
        const float scale = n.scales.at(r).as<float>()[c / kQuantGroup];
        ASSERT_LE(std::fabs(row[size_t(c)] - double(w.value.at(r).as<float>()[c])), scale * 0.5001) << w.name;
      }
    }
  }
  EXPECT_GT(quantised, 4);
}

TEST(Int8Weights, AreNotForTraining) {
  const ModelConfig config = tiny::config();
  try {
    Weights weights(config, build_layer_plan(config), {.training = true, .format = WeightFormat::int8});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_NE(std::string(e.what()).find("cannot be trained"), std::string::npos) << e.what();
  }
}

TEST(Int8Weights, FormatsHaveNames) {
  EXPECT_EQ(weight_format_of("dtype"), WeightFormat::compute);
  EXPECT_EQ(weight_format_of("int8"), WeightFormat::int8);
  for (const char* bad : {"", "INT8", "int4", "q8_0"}) EXPECT_THROW(weight_format_of(bad), Error) << bad;
}

TEST(Int8Weights, RefuseNumbersThatAreNotFinite) {
  const ModelConfig config = tiny::config();
  Weights weights(config, build_layer_plan(config), {.format = WeightFormat::int8});
  Weight& w = *weights.find("model.layers.0.self_attn.q_proj.weight");
  std::vector<float> values(size_t(w.value.dim(1)), 1.0f);
  weights.set_quantised(w, 1, 1, values.data());
  EXPECT_EQ(w.value.at(1).as<int8_t>()[0], 127);
  values[3] = NAN;
  EXPECT_THROW(weights.set_quantised(w, 1, 1, values.data()), Error);
}

}  // namespace
}  // namespace hysparse::test
