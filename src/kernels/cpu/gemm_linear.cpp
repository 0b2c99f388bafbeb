// y = x W^T and its backward.
#include <algorithm>
#include <array>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/gemm_multiply.h"
#include "kernels/cpu/impl.h"
#include "kernels/quantise.h"

namespace hysparse {
namespace {

using elem::simd_type;
using gemm::Matrix;
using gemm::Output;

Matrix matrix_of(const TensorView& v) {
  return {v.data, v.dtype, v.stride[0], 1};
}
Matrix transposed(const Matrix& m) {
  return {m.data, m.dtype, m.col, m.row};
}

Output output_of(const LinearForward& p) {
  Output y{.data = p.y.data, .dtype = p.y.dtype, .row = p.y.stride[0], .accumulate = p.accumulate};
  if (p.bias) {
    y.bias = p.bias->value.data;
    y.bias_dtype = p.bias->value.dtype;
  }
  return y;
}

// Whether the product is made of dot products (gemm_multiply.h): one stream of weights. 8-bit integers are
// widened on the way through the registers there, so they take it for few rows of x only.
bool takes_dots(const LinearForward& p) {
  const int64_t n = p.x.dim(0), out = p.weight.value.dim(0);
  if (p.weight.scales) return n <= 64;
  return gemm::uses_dot(matrix_of(p.x), transposed(matrix_of(p.weight.value)), n, out);
}

// grad += column sums of dy: fixed runs of rows, their sums added in order.
void bias_backward(Runtime& rt, const TensorView& dy, const TensorView& grad) {
  constexpr int64_t kRun = 256;
  const int64_t n = dy.dim(0), out = dy.dim(1), runs = (n + kRun - 1) / kRun;
  if (runs == 0) return;
  ArenaScope scope(rt.scratch);
  const TensorView sums = rt.scratch.alloc_zero(DType::f32, {runs, out});
  rt.pool.parallel_for(runs, [&](int64_t run, int) {
    const TensorView rows = dy.rows(run * kRun, std::min(n, (run + 1) * kRun));
    for (int64_t i = 0; i < rows.dim(0); ++i)
      elem::add_to_f32(rows.at(i).data, dy.dtype, out, static_cast<float*>(sums.data) + run * out);
  });
  for (int64_t run = 0; run < runs; ++run)
    elem::add_to_f32(static_cast<const float*>(sums.data) + run * out, DType::f32, out, grad.as<float>());
}

}  // namespace

void cpu_linear(Runtime& rt, const LinearForward& p) {
  const DType t = simd_type("linear", check_args(p));
  const int64_t n = p.x.dim(0), in = p.x.dim(1), out = p.weight.value.dim(0);
  if (!p.weight.scales)
    return gemm::multiply(rt, matrix_of(p.x), transposed(matrix_of(p.weight.value)), n, out, in,
                          output_of(p));
  if (takes_dots(p)) return cpu_linear_group(rt, {&p, 1}, {});
  // Some rows of w at a time, as T.
  constexpr int64_t kBytes = int64_t(2) << 20;
  const int64_t row_bytes = std::max<int64_t>(1, in * static_cast<int64_t>(size_of(t)));
  const int64_t rows =
      std::max<int64_t>(gemm::kBlockCols, kBytes / row_bytes / gemm::kBlockCols * gemm::kBlockCols);
  const auto* value = p.weight.value.as<int8_t>();
  const auto* scales = p.weight.scales.as<float>();
  ArenaScope scope(rt.scratch);
  const TensorView wide = rt.scratch.alloc(t, {std::min(rows, out), in});
  for (int64_t first = 0; first < out; first += rows) {
    const int64_t count = std::min(rows, out - first);
    elem::for_rows(rt, count, in, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        gemm::dequantise_row(value + (first + r) * in, scales + (first + r) * quant_groups(in), in, t,
                             static_cast<char*>(wide.data) + r * row_bytes);
    });
    gemm::multiply(rt, matrix_of(p.x), transposed(matrix_of(wide)), n, count, in,
                   output_of(p).block(0, first));
  }
}

void cpu_linear_group(Runtime& rt, std::span<const LinearForward> group,
                      std::span<const Weight* const> next) {
  std::array<gemm::DotPart, gemm::kMostParts> parts;
  bool dots = group.size() <= parts.size();
  for (size_t i = 0; i < group.size() && dots; ++i) {
    const LinearForward& p = group[i];
    simd_type("linear_group", check_args(p));
    HYSPARSE_CHECK(p.x.data == group[0].x.data && p.x.same_shape(group[0].x), "linear_group: several x");
    parts[i] = {matrix_of(p.weight.value), p.weight.value.dim(0), output_of(p),
                p.weight.scales ? p.weight.scales.as<float>() : nullptr};
    dots = takes_dots(p);
  }
  if (!dots) {
    for (const LinearForward& p : group) cpu_linear(rt, p);
    return;
  }
  if (group.empty() || group[0].x.dim(0) == 0) return;
  std::array<TensorView, gemm::kMostParts> following;
  const size_t known = std::min(next.size(), following.size());
  for (size_t i = 0; i < known; ++i) following[i] = next[i]->value;
  gemm::multiply_dots(rt, matrix_of(group[0].x), group[0].x.dim(0), group[0].x.dim(1),
                      {parts.data(), group.size()}, {following.data(), known});
}

void cpu_linear_backward(Runtime& rt, const LinearBackward& p) {
  const DType t = simd_type("linear_backward", check_args(p));
  const int64_t n = p.x.dim(0), in = p.x.dim(1), out = p.weight.value.dim(0);
  if (n == 0) return;
  ArenaScope scope(rt.scratch);
  if (p.bias && p.bias->grad) bias_backward(rt, p.dy, p.bias->grad);
  // Products take operands of one type: a wide dy meets bf16 as bf16.
  TensorView dy = p.dy;
  if (dy.dtype != t) {
    dy = rt.scratch.alloc(t, {n, out});
    cpu_cast(rt, {p.dy, dy});
  }
  if (p.dx)
    gemm::multiply(rt, matrix_of(dy), matrix_of(p.weight.value), n, in, out,
                   {.data = p.dx.data, .dtype = t, .row = p.dx.stride[0], .accumulate = p.accumulate});
  if (p.weight.grad)
    gemm::multiply(rt, transposed(matrix_of(dy)), matrix_of(p.x), out, in, n,
                   {.data = p.weight.grad.data,
                    .dtype = DType::f32,
                    .row = p.weight.grad.stride[0],
                    .accumulate = true});
}

}  // namespace hysparse
