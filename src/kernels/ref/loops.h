// Small things that the reference loops share: strided addressing, a dot product, sigmoid.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "tensor/tensor.h"

namespace hysparse::ref {

inline constexpr double kInf = __builtin_huge_val();

// First element of v[i], v[i, j]; the last dimension is dense.
inline double* at(const TensorView& v, int64_t i) {
  return v.as<double>() + i * v.stride[0];
}
inline double* at(const TensorView& v, int64_t i, int64_t j) {
  return v.as<double>() + i * v.stride[0] + j * v.stride[1];
}

// sum_i a[i] b[i], as four running sums over i mod 4 (a fixed order).
inline double dot(const double* a, const double* b, int64_t n) {
  double sum[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int64_t j = 0; j < 4; ++j) sum[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
// y += alpha x
inline void axpy(double alpha, const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}

inline double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

inline void require_f64(DType t, const char* op) {
  HYSPARSE_CHECK(t == DType::f64, "{}: ref computes in f64, got {}", op, name_of(t));
}

// The sequence of every query row.
inline std::vector<int64_t> sequence_of_row(const RaggedBatch& batch) {
  std::vector<int64_t> s_of(static_cast<size_t>(batch.tokens()));
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t i = batch.cu_q[size_t(s)]; i < batch.cu_q[size_t(s) + 1]; ++i) s_of[size_t(i)] = s;
  return s_of;
}
// Position of a query row within its sequence. (batch.position says the same; this needs no trust in it.)
inline int64_t position_of(const RaggedBatch& batch, int64_t s, int64_t row) {
  return batch.past_len[size_t(s)] + row - batch.cu_q[size_t(s)];
}

}  // namespace hysparse::ref
