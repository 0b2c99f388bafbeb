#include "engine/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

TEST(Logprobs, AreTheLogSoftmaxOfEveryRow) {
  Rng rng(5);
  for (const size_t n : {1u, 5u, 16u, 255u, 257u, 5000u}) {
    for (const double spread : {0.0, 1.0, 60.0}) {
      std::vector<float> x(n);
      for (float& v : x) v = float(rng.normal() * spread + 1000);
      long double sum = 0;
      const float top = *std::max_element(x.begin(), x.end());
      for (const float v : x) sum += std::exp(static_cast<long double>(v) - top);
      const LogSoftmax l(TensorView(x.data(), DType::f32, {int64_t(n)}));
      std::vector<double> y(x.begin(), x.end());
      const LogSoftmax d(TensorView(y.data(), DType::f64, {int64_t(n)}));
      for (size_t i = 0; i < n; ++i) {
        const double expected = double(static_cast<long double>(x[i]) - top - std::log(sum));
        EXPECT_NEAR(l.of(int32_t(i)), expected, 1e-6 + 1e-7 * std::abs(expected));
        EXPECT_NEAR(d.of(int32_t(i)), expected, 1e-6 + 1e-7 * std::abs(expected));
        EXPECT_LE(l.of(int32_t(i)), 0);
      }
    }
  }
}

TEST(Logprobs, TopIsAFullSortWithTiesToTheLowerId) {
  Rng rng(6);
  std::vector<float> x(3000);
  for (float& v : x) v = float(std::round(rng.normal() * 8) / 4);
  x[7] = -std::numeric_limits<float>::infinity();
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return x[size_t(a)] > x[size_t(b)]; });
  const LogSoftmax l(TensorView(x.data(), DType::f32, {3000}));
  for (const int64_t k : {0, 1, 2, 20, 2999, 3000, 4000}) {
    const auto top = l.top(k);
    ASSERT_EQ(top.size(), size_t(std::min<int64_t>(k, 3000)));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, order[i]);
      EXPECT_EQ(top[i].logprob, l.of(top[i].token));  // to the bit: clients compare them for equality
    }
  }
  EXPECT_EQ(l.of(7), -std::numeric_limits<float>::infinity());
}

TEST(Logprobs, BrokenLogitsAreAnError) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (std::vector<float> x : {std::vector<float>{0, nan}, {inf, 0}, {-inf, -inf}})
    EXPECT_THROW(LogSoftmax(TensorView(x.data(), DType::f32, {2})), Error);
}

}  // namespace
}  // namespace hysparse
