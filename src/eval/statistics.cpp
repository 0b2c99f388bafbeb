#include "eval/statistics.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace hysparse {
namespace {

// P(|T| <= t) for a whole number of degrees of freedom: the finite sums of Abramowitz & Stegun 26.7.3 and
// 26.7.4.
double coverage(double t, int64_t degrees) {
  const double theta = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double c = std::cos(theta), s = std::sin(theta);
  const bool odd = degrees % 2 == 1;
  double term = odd ? c : 1.0, sum = degrees == 1 ? 0.0 : term;
  for (int64_t k = odd ? 3 : 2; k <= degrees - 2; k += 2) {
    term *= c * c * static_cast<double>(k - 1) / static_cast<double>(k);
    sum += term;
  }
  return odd ? 2.0 / M_PI * (theta + s * sum) : s * sum;
}

}  // namespace

double t_quantile_95(int64_t degrees) {
  HYSPARSE_CHECK(degrees >= 1, "{} degrees of freedom", degrees);
  double low = 1.9, high = 13.0;  // at infinity and at 1: 1.96, 12.71
  while (high - low > 1e-9) {
    const double middle = (low + high) / 2;
    (coverage(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return (low + high) / 2;
}

Interval t_interval(std::span<const double> values) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Interval out;
  out.n = std::ssize(values);
  if (out.n == 0) return {0, kNaN, kNaN, kNaN};
  const auto n = static_cast<double>(out.n);
  for (const double v : values) out.mean += v / n;
  if (out.n == 1) {
    out.low = out.high = kNaN;
    return out;
  }
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  const double half = t_quantile_95(out.n - 1) * std::sqrt(squares / (n - 1) / n);
  out.low = out.mean - half;
  out.high = out.mean + half;
  return out;
}

}  // namespace hysparse
