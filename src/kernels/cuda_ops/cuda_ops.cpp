#include "kernels/cuda_ops/cuda_ops.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda_ops/attention.h"
#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/experts.h"
#include "kernels/cuda_ops/fast_attention.h"
#include "kernels/cuda_ops/few_rows.h"
#include "kernels/cuda_ops/kv_8_bits.h"
#include "kernels/cuda_ops/memory.h"

namespace hysparse {
namespace {

using cuda_calls::scratch_of;
using cuda_calls::View;
using cuda_calls::workspace;

class CudaOps final : public Ops {
 public:
  CudaOps(CudaMemoryKind kind, bool deterministic)
      : cuda_(cuda_library()), memory_(cuda_memory(kind)), kind_(kind) {
    resident_.deterministic = deterministic;
    resident_.managed = kind == CudaMemoryKind::managed ? 1 : 0;
  }
  std::string name() const override { return "cuda"; }
  Memory& memory() const override { return memory_; }
  int64_t chunk_bytes() const override {
    return int64_t(1) << 30;
  }  // large enough for products at full speed

  void embedding(Runtime&, const EmbeddingForward& a) const override {
    check_args(a);
    cuda_.check(cuda_.embedding(View(a.tokens), View(a.weight.value), View(a.y), cuda_stream()), "embedding");
  }
  void embedding_backward(Runtime& rt, const EmbeddingBackward& a) const override {
    check_args(a);
    const ArenaScope scope(scratch_of(rt));
    const size_t bytes = cuda_.embedding_backward_workspace(a.dy.dim(0));
    cuda_.check(cuda_.embedding_backward(View(a.tokens), View(a.dy), View(a.weight.grad),
                                         workspace(rt, bytes), bytes, cuda_stream()),
                "embedding_backward");
  }
  void rmsnorm(Runtime&, const RmsNormForward& a) const override {
    check_args(a);
    cuda_.check(cuda_.rmsnorm(View(a.x), nullptr, View(a.weight.value), a.eps, View(a.y), View(a.rstd),
                              cuda_stream()),
                "rmsnorm");
  }
  void rmsnorm_backward(Runtime& rt, const RmsNormBackward& a) const override {
    check_args(a);
    const ArenaScope scope(scratch_of(rt));
    const int64_t width = a.x.dim(a.x.rank - 1), rows = width ? a.x.numel() / width : 0;
    const size_t bytes = a.weight.grad ? cuda_.rmsnorm_backward_workspace(rows, width) : 0;
    cuda_.check(
        cuda_.rmsnorm_backward(View(a.x), View(a.weight.value), View(a.rstd), View(a.dy), View(a.dx),
                               a.accumulate, View(a.weight.grad), workspace(rt, bytes), bytes, cuda_stream()),
        "rmsnorm_backward");
  }
  void linear(Runtime& rt, const LinearForward& a) const override {
    check_args(a);
    const ArenaScope scope(scratch_of(rt));
    product(rt, a.x, false, a.weight.value, true, a.bias ? a.bias->value : TensorView{}, a.y, a.accumulate);
  }
  void linear_group(Runtime& rt, std::span<const LinearForward> all,
                    std::span<const Weight* const> next) const override {
    if (!all.empty() && cuda_calls::few_row_products(all)) return;
    Ops::linear_group(rt, all, next);
  }
  void linear_backward(Runtime& rt, const LinearBackward& a) const override {
    check_args(a);
    const ArenaScope scope(scratch_of(rt));
    // A gradient in f32 of narrower activations goes into the products as one of theirs.
    TensorView dy = a.dy;
    if (dy.dtype != a.x.dtype) {
      dy = scratch_of(rt).alloc(a.x.dtype, {a.dy.dim(0), a.dy.dim(1)});
      cast(rt, {a.dy, dy});
    }
    if (a.dx) product(rt, dy, false, a.weight.value, false, {}, a.dx, a.accumulate);
    const TensorView& grad = a.weight.grad;
    if (grad) multiply(rt, dy, true, a.x, false, grad, true);
    if (a.bias && a.bias->grad)
      cuda_.check(cuda_.column_sums(View(a.dy), View(a.bias->grad), cuda_stream()), "linear_backward");
  }
  void rope(Runtime&, const Rope& a) const override {
    check_args(a);
    const int32_t* position = resident_.tables.on_device(a.position, static_cast<size_t>(a.x.dim(0)));
    cuda_.check(cuda_.rope(View(a.x), nullptr, position, View(a.cos), View(a.sin), a.inverse, cuda_stream()),
                "rope");
  }
  void rope_group(Runtime& rt, std::span<const Rope> group) const override {
    if (group.size() != 2 || group[0].x.dtype != group[1].x.dtype) return Ops::rope_group(rt, group);
    for (const Rope& a : group) check_args(a);
    const Rope& a = group[0];
    const int32_t* position = resident_.tables.on_device(a.position, static_cast<size_t>(a.x.dim(0)));
    cuda_.check(
        cuda_.rope(View(a.x), View(group[1].x), position, View(a.cos), View(a.sin), a.inverse, cuda_stream()),
        "rope");
  }
  void add(Runtime&, const Add& a) const override {
    check_args(a);
    cuda_.check(cuda_.add(View(a.a), View(a.b), View(a.y), cuda_stream()), "add");
  }
  void cast(Runtime&, const Cast& a) const override {
    check_args(a);
    cuda_.check(cuda_.cast(View(a.src), View(a.dst), cuda_stream()), "cast");
  }
  void gather_rows(Runtime&, const GatherRows& a) const override {
    check_args(a);
    const int64_t* rows = resident_.tables.on_device(a.rows, static_cast<size_t>(a.dst.dim(0)));
    cuda_.check(cuda_.gather_rows(View(a.src), rows, View(a.dst), cuda_stream()), "gather_rows");
  }
  void scatter_rows(Runtime&, const ScatterRows& a) const override {
    check_args(a);
    if (a.pairs.empty()) return;
    const int64_t n = a.pairs[0].src.dim(0);
    const int64_t* rows = resident_.tables.on_device(a.rows, static_cast<size_t>(n));
    for (size_t first = 0; first < a.pairs.size(); first += HYSPARSE_CUDA_ROW_PAIRS) {
      const auto part =
          a.pairs.subspan(first, std::min<size_t>(HYSPARSE_CUDA_ROW_PAIRS, a.pairs.size() - first));
      std::vector<hysparse_cuda_row_pair> pairs;
      for (const auto& [src, dst] : part) {
        const auto element = static_cast<int64_t>(size_of(src.dtype));
        pairs.push_back({src.data, dst.data, src.numel() / std::max<int64_t>(1, n) * element,
                         src.stride[0] * element, dst.stride[0] * element});
      }
      cuda_.check(
          cuda_.scatter_rows(pairs.data(), static_cast<int32_t>(pairs.size()), rows, n, cuda_stream()),
          "scatter_rows");
    }
  }
  void quantise_kv(Runtime&, const QuantiseKv& a) const override { cuda_calls::quantise_kv(resident_, a); }
  int64_t widened_bytes(int64_t row_bytes, int64_t context) const override {
    return cuda_calls::widened_bytes(row_bytes, context);
  }
  void repeat(Runtime&, const RepeatedStep& step, const std::function<void()>& body) const override {
    if (kind_ == CudaMemoryKind::managed) return body();  // tests: its copies wait for the GPU
    resident_.recorder.run(step, body);
  }
  bool draw_tokens(Runtime&, const DrawTokens& a) const override {
    check_args(a);
    if (a.logits.dim(1) > kMostDrawn) return false;
    std::vector<hysparse_cuda_draw> rows;
    for (const DrawSettings& s : a.rows) {
      const double inverse = s.temperature == 0 ? 0 : std::min(1 / s.temperature, 1e30);
      rows.push_back({s.uniform, s.top_p, static_cast<float>(inverse), static_cast<float>(s.min_p),
                      static_cast<int32_t>(std::min(s.top_k, kMostDrawn)), static_cast<int32_t>(s.vocab)});
    }
    cuda_.check(cuda_.draw_tokens(View(a.logits), resident_.tables.on_device(rows), a.tokens.as<int32_t>(),
                                  cuda_stream()),
                "draw_tokens");
    return true;
  }
  void swiglu(Runtime&, const SwigluForward& a) const override {
    check_args(a);
    cuda_.check(cuda_.swiglu(View(a.gate), View(a.up), View(a.h), cuda_stream()), "swiglu");
  }
  void swiglu_backward(Runtime&, const SwigluBackward& a) const override {
    check_args(a);
    cuda_.check(cuda_.swiglu_backward(View(a.gate), View(a.up), View(a.dh), View(a.dgate), View(a.dup),
                                      cuda_stream()),
                "swiglu_backward");
  }
  void attention(Runtime& rt, const AttentionForward& a) const override {
    if (a.kv.in_8_bits()) {
      check_args(a);
      const ArenaScope scope(scratch_of(rt));
      return cuda_calls::attention_8_bits(resident_, rt, a, [&](const auto& wide) { attention(rt, wide); });
    }
    cuda_calls::attention(resident_, rt, a);
  }
  void attention_backward(Runtime& rt, const AttentionBackward& a) const override {
    cuda_calls::attention_backward(resident_, rt, a);
  }
  void select_blocks(Runtime& rt, const SelectBlocks& a) const override {
    cuda_calls::select_blocks(resident_, rt, a);
  }
  void random_scores(Runtime& rt, const RandomScores& a) const override {
    cuda_calls::random_scores(resident_, rt, a);
  }
  void sparse_attention(Runtime& rt, const SparseAttentionForward& a) const override {
    if (a.kv.in_8_bits()) {
      check_args(a);
      return cuda_calls::sparse_attention_8_bits(resident_, rt, a,
                                                 [&](const auto& wide) { sparse_attention(rt, wide); });
    }
    cuda_calls::sparse_attention(resident_, rt, a);
  }
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const override {
    cuda_calls::sparse_attention_backward(resident_, rt, a);
  }
  void window_attention(Runtime& rt, const WindowAttentionForward& a) const override {
    if (a.kv.in_8_bits()) {
      check_args(a);
      return cuda_calls::window_attention_8_bits(resident_, rt, a,
                                                 [&](const auto& wide) { window_attention(rt, wide); });
    }
    cuda_calls::window_attention(resident_, rt, a);
  }
  void window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) const override {
    cuda_calls::window_attention_backward(resident_, rt, a);
  }
  void attention_select(Runtime& rt, const AttentionSelect& a) const override {
    check_args(a.attention);
    const ArenaScope scope(scratch_of(rt));
    if (a.attention.kv.in_8_bits())
      return cuda_calls::attention_select_8_bits(resident_, rt, a,
                                                 [&](const auto& wide) { attention_select(rt, wide); });
    if (!cuda_calls::fast_decode(resident_, rt, a.attention, &a) &&
        !cuda_calls::fast_attention_select(resident_, rt, a))
      Ops::attention_select(rt, a);
  }
  void sparse_window_gated(Runtime& rt, const SparseWindowGated& a) const override {
    check_args(a.sparse);
    if (a.window) check_args(*a.window);
    const ArenaScope scope(scratch_of(rt));
    if (a.sparse.kv.in_8_bits())
      return cuda_calls::sparse_window_gated_8_bits(resident_, rt, a,
                                                    [&](const auto& wide) { sparse_window_gated(rt, wide); });
    if (!cuda_calls::fast_decode(resident_, rt, a)) Ops::sparse_window_gated(rt, a);
  }
  void gated_sum(Runtime&, const GatedSumForward& a) const override {
    check_args(a);
    cuda_.check(
        cuda_.gated_sum(View(a.a), View(a.gate_a), View(a.b), View(a.gate_b), View(a.out), cuda_stream()),
        "gated_sum");
  }
  void gated_sum_backward(Runtime&, const GatedSumBackward& a) const override {
    check_args(a);
    cuda_.check(
        cuda_.gated_sum_backward(View(a.a), View(a.gate_a), View(a.b), View(a.gate_b), View(a.d_out),
                                 View(a.da), View(a.db), View(a.dgate_a), View(a.dgate_b), cuda_stream()),
        "gated_sum_backward");
  }
  void cross_entropy(Runtime&, const CrossEntropy& a) const override {
    check_args(a);
    cuda_.check(cuda_.cross_entropy(View(a.logits), View(a.labels), a.grad_scale, View(a.loss),
                                    View(a.dlogits), cuda_stream()),
                "cross_entropy");
  }
  void adamw(Runtime&, const AdamW& a) const override {
    check_args(a);
    const hysparse_cuda_adamw_settings settings{a.lr,           a.beta1,      a.beta2, a.eps,
                                                a.weight_decay, a.grad_scale, a.step};
    cuda_.check(cuda_.adamw(View(a.weight.master), View(a.weight.value), View(a.weight.grad), View(a.m),
                            View(a.v), &settings, cuda_stream()),
                "adamw");
    ++a.weight.version;
  }
  void sum_squares(Runtime& rt, const SumSquares& a) const override {
    check_args(a);
    const ArenaScope scope(scratch_of(rt));
    cuda_.check(cuda_.sum_squares(View(a.x), View(a.out), workspace(rt, HYSPARSE_CUDA_SUM_SQUARES_WORKSPACE),
                                  cuda_stream()),
                "sum_squares");
  }
  void add_rmsnorm(Runtime&, const AddRmsNorm& a) const override {
    cuda_.check(cuda_.rmsnorm(View(a.x), View(a.delta), View(a.weight.value), a.eps, View(a.y), View(a.rstd),
                              cuda_stream()),
                "add_rmsnorm");
  }

  bool experts() const override { return true; }
  void route(Runtime& rt, const RouteForward& a) const override { cuda_calls::route(rt, a); }
  void route_backward(Runtime& rt, const RouteBackward& a) const override {
    cuda_calls::route_backward(resident_, rt, a);
  }
  void expert_tables(Runtime& rt, const BuildExpertTables& a) const override {
    cuda_calls::expert_tables(rt, a);
  }
  void expert_gather(Runtime& rt, const ExpertGather& a) const override { cuda_calls::expert_gather(rt, a); }
  void expert_sum(Runtime& rt, const ExpertSum& a) const override { cuda_calls::expert_sum(rt, a); }
  void grouped_linear(Runtime& rt, const GroupedLinear& a) const override {
    cuda_calls::grouped_linear(rt, a);
  }
  void grouped_linear_backward(Runtime& rt, const GroupedLinearBackward& a) const override {
    cuda_calls::grouped_linear_backward(rt, a);
  }
  void grouped_linear_pair(Runtime& rt, const GroupedLinearPair& a) const override {
    cuda_calls::grouped_linear_pair(rt, a);
  }
  void grouped_linear_pair_backward(Runtime& rt, const GroupedLinearPairBackward& a) const override {
    cuda_calls::grouped_linear_pair_backward(rt, a);
  }
  void expert_mlp(Runtime& rt, const ExpertMlp& a) const override {
    if (!cuda_calls::expert_mlp(rt, a)) Ops::expert_mlp(rt, a);
  }
  void expert_swiglu(Runtime& rt, const ExpertSwiglu& a) const override { cuda_calls::expert_swiglu(rt, a); }
  void expert_swiglu_backward(Runtime& rt, const ExpertSwigluBackward& a) const override {
    cuda_calls::expert_swiglu_backward(rt, a);
  }

 private:
  static constexpr int64_t kMostDrawn = int64_t(1) << 22;  // logits of a row

  // c = a b (+ bias) (+ c). A narrow c is rounded once: where more is added than the product, the sum is made
  // in f32 first.
  void product(Runtime& rt, const TensorView& a, bool a_transposed, const TensorView& b, bool b_transposed,
               const TensorView& bias, const TensorView& c, bool accumulate) const {
    const bool narrow = c.dtype != DType::f32;
    const bool two_steps = bias || (narrow && accumulate);
    const TensorView sum = two_steps ? scratch_of(rt).alloc(DType::f32, {c.dim(0), c.dim(1)}) : c;
    multiply(rt, a, a_transposed, b, b_transposed, sum, accumulate && !two_steps);
    if (two_steps)
      cuda_.check(cuda_.finish_product(View(sum), View(bias), View(c), accumulate, cuda_stream()), "linear");
  }

  void multiply(Runtime& rt, const TensorView& a, bool a_transposed, const TensorView& b, bool b_transposed,
                const TensorView& c, bool accumulate) const {
    cuda_.check(cuda_.matmul(View(a), a_transposed, View(b), b_transposed, View(c), accumulate,
                             workspace(rt, HYSPARSE_CUDA_MATMUL_WORKSPACE), HYSPARSE_CUDA_MATMUL_WORKSPACE,
                             cuda_stream()),
                "linear");
  }

  const CudaLibrary& cuda_;
  Memory& memory_;
  const CudaMemoryKind kind_;
  mutable cuda_calls::Resident resident_;
};

}  // namespace

const Ops& cuda_ops(CudaMemoryKind kind, bool deterministic) {
  static const CudaOps device(CudaMemoryKind::device, false), device_fixed(CudaMemoryKind::device, true),
      managed(CudaMemoryKind::managed, false), managed_fixed(CudaMemoryKind::managed, true);
  if (kind == CudaMemoryKind::managed) return deterministic ? managed_fixed : managed;
  return deterministic ? device_fixed : device;
}

}  // namespace hysparse
