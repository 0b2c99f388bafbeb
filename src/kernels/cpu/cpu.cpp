#include "kernels/cpu/cpu.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace {

class CpuOps final : public Ops {
 public:
  std::string name() const override { return "cpu/" + cpu_dispatch_level(); }

  void pack(Runtime& rt, Weight& weight) const override { cpu_pack(rt, weight); }

  void embedding(Runtime& rt, const EmbeddingForward& p) const override { cpu_embedding(rt, p); }
  void embedding_backward(Runtime& rt, const EmbeddingBackward& p) const override {
    cpu_embedding_backward(rt, p);
  }
  void rmsnorm(Runtime& rt, const RmsNormForward& p) const override { cpu_rmsnorm(rt, p); }
  void rmsnorm_backward(Runtime& rt, const RmsNormBackward& p) const override { cpu_rmsnorm_backward(rt, p); }
  void linear(Runtime& rt, const LinearForward& p) const override { cpu_linear(rt, p); }
  void linear_backward(Runtime& rt, const LinearBackward& p) const override { cpu_linear_backward(rt, p); }
  void rope(Runtime& rt, const Rope& p) const override { cpu_rope(rt, p); }
  void add(Runtime& rt, const Add& p) const override { cpu_add(rt, p); }
  void cast(Runtime& rt, const Cast& p) const override { cpu_cast(rt, p); }
  void gather_rows(Runtime& rt, const GatherRows& p) const override { cpu_gather_rows(rt, p); }
  void quantise_kv(Runtime& rt, const QuantiseKv& p) const override { cpu_quantise_kv(rt, p); }
  void swiglu(Runtime& rt, const SwigluForward& p) const override { cpu_swiglu(rt, p); }
  void swiglu_backward(Runtime& rt, const SwigluBackward& p) const override { cpu_swiglu_backward(rt, p); }
  void attention(Runtime& rt, const AttentionForward& p) const override { cpu_attention(rt, p); }
  void attention_backward(Runtime& rt, const AttentionBackward& p) const override {
    cpu_attention_backward(rt, p);
  }
  void select_blocks(Runtime& rt, const SelectBlocks& p) const override { cpu_select_blocks(rt, p); }
  void random_scores(Runtime& rt, const RandomScores& p) const override { cpu_random_scores(rt, p); }
  void sparse_attention(Runtime& rt, const SparseAttentionForward& p) const override {
    cpu_sparse_attention(rt, p);
  }
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& p) const override {
    cpu_sparse_attention_backward(rt, p);
  }
  void window_attention(Runtime& rt, const WindowAttentionForward& p) const override {
    cpu_window_attention(rt, p);
  }
  void window_attention_backward(Runtime& rt, const WindowAttentionBackward& p) const override {
    cpu_window_attention_backward(rt, p);
  }
  void gated_sum(Runtime& rt, const GatedSumForward& p) const override { cpu_gated_sum(rt, p); }
  void gated_sum_backward(Runtime& rt, const GatedSumBackward& p) const override {
    cpu_gated_sum_backward(rt, p);
  }
  void cross_entropy(Runtime& rt, const CrossEntropy& p) const override { cpu_cross_entropy(rt, p); }
  void adamw(Runtime& rt, const AdamW& p) const override { cpu_adamw(rt, p); }
  void sum_squares(Runtime& rt, const SumSquares& p) const override { cpu_sum_squares(rt, p); }

  void attention_select(Runtime& rt, const AttentionSelect& p) const override { cpu_attention_select(rt, p); }
  void sparse_window_gated(Runtime& rt, const SparseWindowGated& p) const override {
    cpu_sparse_window_gated(rt, p);
  }
  void add_rmsnorm(Runtime& rt, const AddRmsNorm& p) const override { cpu_add_rmsnorm(rt, p); }
  void linear_group(Runtime& rt, std::span<const LinearForward> group,
                    std::span<const Weight* const> next) const override {
    cpu_linear_group(rt, group, next);
  }
  void head_loss(Runtime& rt, const HeadLoss& p) const override { cpu_head_loss(rt, p); }

  bool experts() const override { return true; }
  void route(Runtime& rt, const RouteForward& p) const override { cpu_route(rt, p); }
  void route_backward(Runtime& rt, const RouteBackward& p) const override { cpu_route_backward(rt, p); }
  void expert_tables(Runtime& rt, const BuildExpertTables& p) const override { cpu_expert_tables(rt, p); }
  void expert_gather(Runtime& rt, const ExpertGather& p) const override { cpu_expert_gather(rt, p); }
  void expert_sum(Runtime& rt, const ExpertSum& p) const override { cpu_expert_sum(rt, p); }
  void grouped_linear(Runtime& rt, const GroupedLinear& p) const override { cpu_grouped_linear(rt, p); }
  void grouped_linear_backward(Runtime& rt, const GroupedLinearBackward& p) const override {
    cpu_grouped_linear_backward(rt, p);
  }
  void expert_swiglu(Runtime& rt, const ExpertSwiglu& p) const override { cpu_expert_swiglu(rt, p); }
  void expert_swiglu_backward(Runtime& rt, const ExpertSwigluBackward& p) const override {
    cpu_expert_swiglu_backward(rt, p);
  }
};

}  // namespace

const Ops& cpu_ops() {
  static const CpuOps ops;
  return ops;
}

}  // namespace hysparse
