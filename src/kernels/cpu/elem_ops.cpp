// Embedding, norms, RoPE and the elementwise operations: argument checks, the cut into tasks, and the row
// kernels.
#include <array>
#include <cstring>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/impl.h"
#include "kernels/quantise.h"

namespace hysparse {
namespace {

using elem::for_pieces;
using elem::for_rows;
using elem::simd_type;

char* row(const TensorView& v, int64_t i) {
  return static_cast<char*>(v.data) + i * v.stride[0] * static_cast<int64_t>(size_of(v.dtype));
}

void check_tokens(const char* op, const TensorView& tokens, int64_t vocab, const std::string& weight) {
  const int32_t* ids = tokens.as<int32_t>();
  for (int64_t i = 0; i < tokens.dim(0); ++i)
    if (ids[i] < 0 || ids[i] >= vocab)
      throw input_error(fmt::format("{}: token {} of the batch", op, i),
                        fmt::format("id {} is outside the vocabulary: {} has {} rows", ids[i],
                                    weight.empty() ? "the embedding" : weight, vocab),
                        "is the tokenizer the model's own?");
}

}  // namespace

void cpu_embedding(Runtime& rt, const EmbeddingForward& p) {
  const DType t = simd_type("embedding", check_args(p));
  const TensorView &table = p.weight.value, y = p.y;
  check_tokens("embedding", p.tokens, table.dim(0), p.weight.name);
  const int32_t* ids = p.tokens.as<int32_t>();
  const int64_t n = p.tokens.dim(0), hidden = table.dim(1);
  for_rows(rt, n, hidden, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (p.weight.panels)
        gemm::panel_row(p.weight, ids[i], t, row(y, i));
      else if (p.weight.scales)
        gemm::dequantise_row(table.as<int8_t>() + ids[i] * hidden,
                             p.weight.scales.as<float>() + ids[i] * quant_groups(hidden), hidden, t,
                             row(y, i));
      else
        std::memcpy(row(y, i), row(table, ids[i]), static_cast<size_t>(hidden) * size_of(t));
  });
}

void cpu_embedding_backward(Runtime& rt, const EmbeddingBackward& p) {
  const DType t = simd_type("embedding_backward", check_args(p));
  const TensorView &grad = p.weight.grad, &dy = p.dy;
  check_tokens("embedding_backward", p.tokens, grad.dim(0), p.weight.name);
  const int32_t* ids = p.tokens.as<int32_t>();
  const int64_t n = p.tokens.dim(0), hidden = grad.dim(1);
  // A task owns columns, so that every element is summed in token order.
  constexpr int64_t kColumns = 64;
  rt.pool.parallel_for((hidden + kColumns - 1) / kColumns, [&](int64_t task, int) {
    const int64_t c = task * kColumns, width = std::min(kColumns, hidden - c);
    for (int64_t i = 0; i < n; ++i)
      elem::add_to_f32(row(dy, i) + c * static_cast<int64_t>(size_of(t)), t, width,
                       static_cast<float*>(grad.data) + ids[i] * grad.stride[0] + c);
  });
}

namespace {

// Dimension 0 and, for [n, heads, d], the heads below it.
struct NormShape {
  int64_t n, heads, d;
  explicit NormShape(const TensorView& x)
      : n(x.dim(0)), heads(x.rank == 3 ? x.dim(1) : 1), d(x.dim(x.rank - 1)) {}
  // Rows are taken along dimension 0, or along the heads of one token.
  static int64_t stride(const TensorView& v) { return v.rank == 3 ? v.stride[1] : v.stride[0]; }
};

// fn(first row's offsets...) for tokens [begin, end): one call for a matrix, one a token for heads.
template <class F>
void norm_blocks(const NormShape& s, const TensorView& x, int64_t begin, int64_t end, const F& fn) {
  if (x.rank == 2) return fn(begin, end - begin);
  for (int64_t i = begin; i < end; ++i) fn(i, s.heads);
}

float* rstd_at(const TensorView& rstd, int64_t i) {
  return rstd ? static_cast<float*>(rstd.data) + i * rstd.stride[0] : nullptr;
}

}  // namespace

void cpu_rmsnorm(Runtime& rt, const RmsNormForward& p) {
  const DType t = simd_type("rmsnorm", check_args(p));
  const NormShape s(p.x);
  for_rows(rt, s.n, s.heads * s.d, [&](int64_t begin, int64_t end) {
    norm_blocks(s, p.x, begin, end, [&](int64_t i, int64_t rows) {
      elem::rmsnorm({.type = t,
                     .rows = rows,
                     .d = s.d,
                     .x = row(p.x, i),
                     .x_stride = NormShape::stride(p.x),
                     .weight = p.weight.value.data,
                     .eps = static_cast<float>(p.eps),
                     .y = row(p.y, i),
                     .y_stride = NormShape::stride(p.y),
                     .rstd = rstd_at(p.rstd, i),
                     .rstd_stride = p.rstd ? p.rstd.stride[size_t(p.rstd.rank) - 1] : 0});
    });
  });
}

void cpu_rmsnorm_backward(Runtime& rt, const RmsNormBackward& p) {
  const DType t = simd_type("rmsnorm_backward", check_args(p));
  const NormShape s(p.x);
  if (s.n == 0) return;
  // dweight: at most kPartials runs of tokens, each summed by one task, then added in order.
  constexpr int64_t kPartials = 32;
  const int64_t run = std::max(elem::rows_a_task(s.heads * s.d), (s.n + kPartials - 1) / kPartials);
  const int64_t runs = (s.n + run - 1) / run;
  ArenaScope scope(rt.scratch);
  TensorView partial;
  if (p.weight.grad) partial = rt.scratch.alloc_zero(DType::f32, {runs, s.d});
  rt.pool.parallel_for(runs, [&](int64_t task, int) {
    norm_blocks(s, p.x, task * run, std::min(s.n, (task + 1) * run), [&](int64_t i, int64_t rows) {
      elem::rmsnorm_backward({.type = t,
                              .rows = rows,
                              .d = s.d,
                              .x = row(p.x, i),
                              .x_stride = NormShape::stride(p.x),
                              .weight = p.weight.value.data,
                              .rstd = rstd_at(p.rstd, i),
                              .rstd_stride = p.rstd.stride[size_t(p.rstd.rank) - 1],
                              .dy = row(p.dy, i),
                              .dy_stride = NormShape::stride(p.dy),
                              .dx = row(p.dx, i),
                              .dx_stride = NormShape::stride(p.dx),
                              .accumulate = p.accumulate,
                              .dweight = partial ? static_cast<float*>(partial.data) + task * s.d : nullptr});
    });
  });
  if (!partial) return;
  for (int64_t i = 0; i < runs; ++i)
    elem::add_to_f32(partial.as<float>() + i * s.d, DType::f32, s.d, p.weight.grad.as<float>());
}

void cpu_add_rmsnorm(Runtime& rt, const AddRmsNorm& p) {
  check_args(Add{p.x, p.delta, p.x});
  const DType t = simd_type("add_rmsnorm", check_args(RmsNormForward{p.x, p.weight, p.eps, p.y, p.rstd}));
  const int64_t n = p.x.dim(0), d = p.x.dim(1);
  for_rows(rt, n, d, [&](int64_t begin, int64_t end) {
    elem::rmsnorm({.type = t,
                   .rows = end - begin,
                   .d = d,
                   .x = row(p.x, begin),
                   .x_stride = p.x.stride[0],
                   .weight = p.weight.value.data,
                   .eps = static_cast<float>(p.eps),
                   .y = row(p.y, begin),
                   .y_stride = p.y.stride[0],
                   .rstd = rstd_at(p.rstd, begin),
                   .rstd_stride = p.rstd ? p.rstd.stride[0] : 0,
                   .delta = row(p.delta, begin),
                   .delta_stride = p.delta.stride[0]});
  });
}

void cpu_rope(Runtime& rt, const Rope& p) {
  const DType t = simd_type("rope", check_args(p));
  const int64_t heads = p.x.dim(1), half = p.cos.dim(1);
  for_rows(rt, p.x.dim(0), heads * half * 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      elem::rope(row(p.x, i), t, heads, p.x.stride[1], half,
                 static_cast<const float*>(p.cos.data) + p.position[i] * p.cos.stride[0],
                 static_cast<const float*>(p.sin.data) + p.position[i] * p.sin.stride[0], p.inverse);
  });
}

void cpu_add(Runtime& rt, const Add& p) {
  const DType t = simd_type("add", check_args(p));
  for_pieces<3>(rt, {p.a, p.b, p.y},
                [&](const std::array<char*, 3>& at, int64_t n) { elem::add(at[0], at[1], at[2], t, n); });
}

void cpu_cast(Runtime& rt, const Cast& p) {
  check_args(p);
  for_pieces<2>(rt, {p.src, p.dst}, [&](const std::array<char*, 2>& at, int64_t n) {
    elem::cast(at[0], p.src.dtype, at[1], p.dst.dtype, n);
  });
}

void cpu_gather_rows(Runtime& rt, const GatherRows& p) {
  const DType t = check_args(p);
  const int64_t width = p.src.dim(1);
  for_rows(rt, p.dst.dim(0), width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(row(p.dst, i), row(p.src, p.rows[i]), static_cast<size_t>(width) * size_of(t));
  });
}

void cpu_quantise_kv(Runtime& rt, const QuantiseKv& p) {
  const DType t = simd_type("quantise_kv", check_args(p));
  const int64_t heads = p.k.dim(1), d = p.k.dim(2), dv = p.v.dim(2);
  for_rows(rt, p.k.dim(0), heads * (d + dv), [&](int64_t begin, int64_t end) {
    std::vector<float> wide(static_cast<size_t>(std::max(d, dv)));
    const auto part = [&](const TensorView& x, int64_t i, int64_t head, int64_t width,
                          const TensorView& codes, bf16* scale) {
      const int64_t at = i * x.stride[0] + head * x.stride[1];
      const float* from = wide.data();
      if (t == DType::f32)
        from = x.as<float>() + at;
      else
        std::transform(x.as<bf16>() + at, x.as<bf16>() + at + width, wide.begin(),
                       [](bf16 y) { return static_cast<float>(y); });
      quantise_kv_row(from, width, codes.dtype,
                      static_cast<char*>(codes.data) + (p.rows[i] * heads + head) * width, scale);
    };
    for (int64_t i = begin; i < end; ++i)
      for (int64_t head = 0; head < heads; ++head) {
        bf16* scales = p.scales.as<bf16>() + (p.rows[i] * heads + head) * 2;
        part(p.k, i, head, d, p.k_codes, scales);
        part(p.v, i, head, dv, p.v_codes, scales + 1);
      }
  });
}

void cpu_swiglu(Runtime& rt, const SwigluForward& p) {
  const DType t = simd_type("swiglu", check_args(p));
  for_pieces<3>(rt, {p.gate, p.up, p.h},
                [&](const std::array<char*, 3>& at, int64_t n) { elem::swiglu(at[0], at[1], at[2], t, n); });
}

void cpu_swiglu_backward(Runtime& rt, const SwigluBackward& p) {
  const DType t = simd_type("swiglu_backward", check_args(p));
  for_pieces<5>(rt, {p.gate, p.up, p.dh, p.dgate, p.dup}, [&](const std::array<char*, 5>& at, int64_t n) {
    elem::swiglu_backward(at[0], at[1], at[2], at[3], at[4], t, n);
  });
}

}  // namespace hysparse
