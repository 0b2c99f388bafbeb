#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hysparse {
namespace {

TEST(Statistics, QuantilesOfStudentsT) {  // printed tables
  EXPECT_NEAR(t_quantile_95(1), 12.7062, 1e-3);
  EXPECT_NEAR(t_quantile_95(2), 4.30265, 1e-4);
  EXPECT_NEAR(t_quantile_95(3), 3.18245, 1e-4);
  EXPECT_NEAR(t_quantile_95(4), 2.77645, 1e-4);
  EXPECT_NEAR(t_quantile_95(9), 2.26216, 1e-4);
  EXPECT_NEAR(t_quantile_95(30), 2.04227, 1e-4);
  EXPECT_NEAR(t_quantile_95(100000), 1.95999, 1e-4);
}

TEST(Statistics, IntervalOfAFewValues) {
  const std::vector<double> v = {1, 2, 3};
  const Interval i = t_interval(v);
  EXPECT_EQ(i.n, 3);
  EXPECT_DOUBLE_EQ(i.mean, 2);
  EXPECT_NEAR(i.low, 2 - 4.30265 / std::sqrt(3.0), 1e-4);
  EXPECT_NEAR(i.high, 2 + 4.30265 / std::sqrt(3.0), 1e-4);
  EXPECT_TRUE(std::isnan(t_interval({}).mean));
  const std::vector<double> one = {4};
  EXPECT_EQ(t_interval(one).mean, 4);
  EXPECT_TRUE(std::isnan(t_interval(one).low));
}

}  // namespace
}  // namespace hysparse
