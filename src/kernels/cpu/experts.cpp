// Mixture of experts: products over the rows of each expert, and what brings rows there and back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/gemm_multiply.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/impl.h"
#include "kernels/quantise.h"

namespace hysparse {
namespace {

using elem::for_rows;
using elem::simd_type;
using gemm::Matrix;
using gemm::Product;

char* row(const TensorView& v, int64_t i) {
  return static_cast<char*>(v.data) + i * v.stride[0] * static_cast<int64_t>(size_of(v.dtype));
}
Matrix matrix_of(const TensorView& v) {
  return {v.data, v.dtype, v.stride[0], 1};
}
Matrix transposed(const Matrix& m) {
  return {m.data, m.dtype, m.col, m.row};
}

// Calls fn(expert, first row, rows) for the experts that have rows.
template <class F>
void for_experts(const ExpertTables& tables, const F& fn) {
  const int32_t* offset = tables.offset.as<int32_t>();
  for (int64_t e = 0; e < tables.experts(); ++e)
    if (offset[e + 1] > offset[e]) fn(size_t(e), offset[e], offset[e + 1] - offset[e]);
}

// Experts kept in f8 become the products' type one after the other.
void cpu_grouped_linear_f8(Runtime& rt, const GroupedLinear& p, DType t) {
  for_experts(p.tables, [&](size_t e, int64_t first, int64_t rows) {
    const ArenaScope temporaries(rt.scratch);
    const int64_t out = p.weights[e].value.dim(0), in = p.weights[e].value.dim(1);
    Weight wide{.name = p.weights[e].name, .value = rt.scratch.alloc(t, {out, in})};
    for_rows(rt, out, in, [&](int64_t begin, int64_t end) {
      std::vector<float> values(static_cast<size_t>(in));
      for (int64_t r = begin; r < end; ++r) {
        widen_f8(p.weights[e], r, values.data());
        elem::cast(values.data(), DType::f32, row(wide.value, r), t, in);
      }
    });
    const gemm::PanelProduct product[] = {{.x = matrix_of(p.x).block(first, 0),
                                           .m = rows,
                                           .w = gemm::panel_source(wide),
                                           .y = {.data = row(p.y, first), .dtype = t, .row = p.y.stride[0]}}};
    gemm::multiply_panels(rt, product);
  });
}

}  // namespace

void cpu_expert_tables(Runtime&, const BuildExpertTables& p) {
  check_args(p);
  const int64_t experts = p.tables.experts(), k = p.tables.active(), rows = p.experts.numel();
  const int32_t* chosen = p.experts.as<int32_t>();
  const int32_t* labels = p.labels ? p.labels.as<int32_t>() : nullptr;
  int32_t* offset = p.tables.offset.as<int32_t>();
  std::vector<int32_t> next(static_cast<size_t>(experts), 0);
  for (int64_t i = 0; i < rows; ++i) {
    HYSPARSE_CHECK(chosen[i] >= 0 && chosen[i] < experts, "expert_tables: expert {} of {}", chosen[i],
                   experts);
    ++next[size_t(chosen[i])];
    if (p.load && (!labels || labels[i / k] != kIgnoreLabel)) ++p.load.as<int64_t>()[chosen[i]];
  }
  offset[0] = 0;
  for (int64_t e = 0; e < experts; ++e) {
    offset[e + 1] = offset[e] + next[size_t(e)];
    next[size_t(e)] = offset[e];
  }
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t at = next[size_t(chosen[i])]++;
    p.tables.source.as<int32_t>()[at] = static_cast<int32_t>(i);
    p.tables.slot.as<int32_t>()[i] = at;
  }
}

void cpu_expert_gather(Runtime& rt, const ExpertGather& p) {
  const DType t = simd_type("expert_gather", check_args(p));
  const int64_t k = p.tables.active(), width = p.y.dim(1);
  const int32_t* source = p.tables.source.as<int32_t>();
  for_rows(rt, p.y.dim(0), width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(row(p.y, r), row(p.x, source[r] / k), static_cast<size_t>(width) * size_of(t));
  });
}

void cpu_expert_sum(Runtime& rt, const ExpertSum& p) {
  const DType t = simd_type("expert_sum", check_args(p));
  const int64_t k = p.tables.active(), width = p.y.dim(1), size = static_cast<int64_t>(size_of(t));
  const int32_t* slot = p.tables.slot.as<int32_t>();
  constexpr int64_t kRun = 1024;
  for_rows(rt, p.y.dim(0), width * (k + 1), [&](int64_t begin, int64_t end) {
    float sum[kRun];
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t c = 0; c < width; c += kRun) {
        const int64_t n = std::min(kRun, width - c);
        char* y = row(p.y, i) + c * size;
        std::fill_n(sum, n, 0.0f);
        if (p.accumulate) elem::add_to_f32(y, t, n, sum);
        for (int64_t j = 0; j < k; ++j) elem::add_to_f32(row(p.x, slot[i * k + j]) + c * size, t, n, sum);
        elem::cast(sum, DType::f32, y, t, n);
      }
    }
  });
}

void cpu_grouped_linear(Runtime& rt, const GroupedLinear& p) {
  const DType t = simd_type("grouped_linear", check_args(p));
  if (p.weights[0].value.dtype == DType::f8) return cpu_grouped_linear_f8(rt, p, t);
  std::vector<gemm::PanelProduct> products;
  for_experts(p.tables, [&](size_t e, int64_t first, int64_t rows) {
    products.push_back({.x = matrix_of(p.x).block(first, 0),
                        .m = rows,
                        .w = gemm::panel_source(p.weights[e]),
                        .y = {.data = row(p.y, first), .dtype = t, .row = p.y.stride[0]}});
  });
  gemm::multiply_panels(rt, products);
}

void cpu_grouped_linear_backward(Runtime& rt, const GroupedLinearBackward& p) {
  const DType t = simd_type("grouped_linear_backward", check_args(p));
  std::vector<Product> products;
  for_experts(p.tables, [&](size_t e, int64_t first, int64_t rows) {
    const TensorView &w = p.weights[e].value, &grad = p.weights[e].grad;
    const Matrix dy = matrix_of(p.dy).block(first, 0);
    if (p.dx)
      products.push_back(
          {.a = dy,
           .b = matrix_of(w),
           .m = rows,
           .n = w.dim(1),
           .k = w.dim(0),
           .y = {.data = row(p.dx, first), .dtype = t, .row = p.dx.stride[0], .accumulate = p.accumulate}});
    if (grad)
      products.push_back(
          {.a = transposed(dy),
           .b = matrix_of(p.x).block(first, 0),
           .m = w.dim(0),
           .n = w.dim(1),
           .k = rows,
           .y = {.data = grad.data, .dtype = DType::f32, .row = grad.stride[0], .accumulate = true}});
  });
  gemm::multiply_all(rt, products);
}

void cpu_expert_swiglu(Runtime& rt, const ExpertSwiglu& p) {
  const DType t = simd_type("expert_swiglu", check_args(p));
  const int32_t* source = p.tables.source.as<int32_t>();
  const float* weights = p.weights.as<float>();
  for_rows(rt, p.h.dim(0), p.h.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      elem::swiglu(row(p.gate, r), row(p.up, r), row(p.h, r), t, p.h.dim(1), weights[source[r]]);
  });
}

void cpu_expert_swiglu_backward(Runtime& rt, const ExpertSwigluBackward& p) {
  const DType t = simd_type("expert_swiglu_backward", check_args(p));
  const int32_t* source = p.tables.source.as<int32_t>();
  const float* weights = p.weights.as<float>();
  float* dweights = p.dweights.as<float>();
  for_rows(rt, p.dh.dim(0), p.dh.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      dweights[source[r]] =
          elem::scaled_swiglu_backward(row(p.gate, r), row(p.up, r), row(p.dh, r), weights[source[r]],
                                       row(p.dgate, r), row(p.dup, r), t, p.dh.dim(1));
  });
}

}  // namespace hysparse
