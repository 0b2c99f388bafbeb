// y = x W^T and its backward.
#include <algorithm>
#include <array>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/gemm_multiply.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/impl.h"

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
  cpu_linear_group(rt, {&p, 1}, {});
}

void cpu_linear_group(Runtime& rt, std::span<const LinearForward> group,
                      std::span<const Weight* const> next) {
  constexpr size_t kAtOnce = 8;
  if (group.size() > kAtOnce) {
    cpu_linear_group(rt, group.first(kAtOnce), {});
    return cpu_linear_group(rt, group.subspan(kAtOnce), next);
  }
  std::array<gemm::PanelProduct, kAtOnce> products;
  size_t count = 0;
  for (const LinearForward& p : group) {
    simd_type("linear_group", check_args(p));
    HYSPARSE_CHECK(p.x.data == group[0].x.data && p.x.same_shape(group[0].x), "linear_group: several x");
    const int64_t n = p.x.dim(0);
    const Matrix x = matrix_of(p.x), w = transposed(matrix_of(p.weight.value));
    // Only where nobody asks that a row be the same whatever its company: oneDNN does not promise it.
    if (!rt.batch_invariant && !p.weight.panels && n >= gemm::kOnednnRows && gemm::use_onednn(x, w))
      gemm::multiply(rt, x, w, n, p.weight.value.dim(0), p.x.dim(1), output_of(p));
    else
      products[count++] = {x, n, gemm::panel_source(p.weight), output_of(p)};
  }
  gemm::multiply_panels(rt, {products.data(), count}, next);
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
