// Means and intervals over a few independent values (seeds).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hysparse {

// Two-sided 95 % quantile of Student's t with `degrees` >= 1 degrees of freedom, to 1e-6.
double t_quantile_95(int64_t degrees);

struct Interval {
  int64_t n = 0;
  double mean = 0, low = 0, high = 0;  // 95 %; low and high are NaN for n < 2, all for n = 0
};
// Mean of independent values and its t interval: mean +- t s / sqrt(n), s with n - 1.
Interval t_interval(std::span<const double> values);

}  // namespace hysparse
