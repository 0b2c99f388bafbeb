// Gated sums of attention branches, forward and backward.
#include "kernels/checks.h"
#include "kernels/cpu/attn_branches.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kTokens = 32;  // of a work item

// Gate of one head of one token; step() between its channels is 0 for headwise gates.
struct Gates {
  const TensorView& view;
  int64_t heads, dv;

  bool channel() const { return view && view.dim(1) != heads; }
  float* at(int64_t row, int64_t head) const {
    if (!view) return nullptr;
    return static_cast<float*>(view.data) + row * view.stride[0] + head * (channel() ? dv : 1);
  }
};

}  // namespace

void gated_rows(const Kernels& kernels, const GatedSumForward& a, int64_t row_begin, int64_t row_end,
                int64_t head_begin, int64_t head_end) {
  const int64_t heads = a.a.dim(1), dv = a.a.dim(2);
  const Gates ga{a.gate_a, heads, dv}, gb{a.b ? a.gate_b : TensorView{}, heads, dv};
  const bool bf16 = a.a.dtype == DType::bf16;
  for (int64_t row = row_begin; row < row_end; ++row)
    for (int64_t h = head_begin; h < head_end; ++h)
      kernels.gated(address(a.a, row, h), ga.at(row, h), a.b ? address(a.b, row, h) : nullptr, gb.at(row, h),
                    ga.channel(), gb.channel(), bf16, static_cast<int>(dv), address(a.out, row, h));
}

}  // namespace attn

void cpu_gated_sum(Runtime& rt, const GatedSumForward& a) {
  const DType t = check_args(a);
  HYSPARSE_CHECK(t != DType::f64, "gated_sum: the CPU kernels compute in f32 or bf16, got {}", name_of(t));
  const int64_t n = a.a.dim(0), heads = a.a.dim(1);
  const attn::Kernels kernels = attn::kernels();
  attn::for_items(rt, (n + attn::kTokens - 1) / attn::kTokens, 16 * a.a.numel(), [&](int64_t i, int) {
    attn::gated_rows(kernels, a, i * attn::kTokens, std::min(n, (i + 1) * attn::kTokens), 0, heads);
  });
}

void cpu_gated_sum_backward(Runtime& rt, const GatedSumBackward& a) {
  const DType t = check_args(a);
  HYSPARSE_CHECK(t != DType::f64, "gated_sum_backward: the CPU kernels compute in f32 or bf16, got {}",
                 name_of(t));
  using attn::address;
  const int64_t n = a.a.dim(0), heads = a.a.dim(1), dv = a.a.dim(2);
  const TensorView none;
  const attn::Gates ga{a.gate_a, heads, dv}, gb{a.b ? a.gate_b : none, heads, dv};
  const attn::Gates dga{a.dgate_a, heads, dv}, dgb{a.b ? a.dgate_b : none, heads, dv};
  const attn::Kernels kernels = attn::kernels();
  attn::for_items(rt, (n + attn::kTokens - 1) / attn::kTokens, 16 * a.a.numel(), [&](int64_t i, int) {
    for (int64_t row = i * attn::kTokens; row < std::min(n, (i + 1) * attn::kTokens); ++row)
      for (int64_t h = 0; h < heads; ++h) {
        const auto branch = [&](const TensorView& x, const attn::Gates& g, const TensorView& dx,
                                const attn::Gates& dg) {
          kernels.gated_grad(address(x, row, h), g.at(row, h), g.channel(), t == DType::bf16,
                             static_cast<int>(dv), address(a.d_out, row, h), address(dx, row, h),
                             dg.at(row, h));
        };
        if (a.b) branch(a.b, gb, a.db, dgb);
        branch(a.a, ga, a.da, dga);  // last: da may be d_out
      }
  });
}

}  // namespace hysparse
