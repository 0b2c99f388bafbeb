// Elementwise arithmetic on row-major value lists, for error bounds.
#pragma once

#include "parity/kernels/tensors.h"

namespace hysparse::test {

using Values = std::vector<double>;

// |a| |b| of a [n, k] and b [m, k]: sum over k of absolute products, [n, m].
inline Values abs_product(const Values& a, const Values& b, int64_t n, int64_t m, int64_t k) {
  Values y(static_cast<size_t>(n * m), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      for (int64_t c = 0; c < k; ++c)
        y[size_t(i * m + j)] += std::fabs(a[size_t(i * k + c)] * b[size_t(j * k + c)]);
  return y;
}
inline Values transpose(const Values& a, int64_t n, int64_t m) {
  Values y(a.size());
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) y[size_t(j * n + i)] = a[size_t(i * m + j)];
  return y;
}
inline Values plus_abs(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += std::fabs(b[i]);
  return a;
}
inline Values scaled(Values a, double f) {
  for (double& x : a) x *= f;
  return a;
}

}  // namespace hysparse::test
