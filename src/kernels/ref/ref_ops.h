// RefOps: one method an operation, T = A = f64. The methods are spread over the .cpp files of this folder.
#pragma once

#include "kernels/ref/ref.h"

namespace hysparse::ref {

class RefOps final : public Ops {
 public:
  std::string name() const override { return "ref"; }

  // rows.cpp
  void embedding(Runtime&, const EmbeddingForward&) const override;
  void embedding_backward(Runtime&, const EmbeddingBackward&) const override;
  void rope(Runtime&, const Rope&) const override;
  void add(Runtime&, const Add&) const override;
  void cast(Runtime&, const Cast&) const override;
  void gather_rows(Runtime&, const GatherRows&) const override;
  void quantise_kv(Runtime&, const QuantiseKv&) const override;
  // layers.cpp
  void rmsnorm(Runtime&, const RmsNormForward&) const override;
  void rmsnorm_backward(Runtime&, const RmsNormBackward&) const override;
  void linear(Runtime&, const LinearForward&) const override;
  void linear_backward(Runtime&, const LinearBackward&) const override;
  void swiglu(Runtime&, const SwigluForward&) const override;
  void swiglu_backward(Runtime&, const SwigluBackward&) const override;
  void gated_sum(Runtime&, const GatedSumForward&) const override;
  void gated_sum_backward(Runtime&, const GatedSumBackward&) const override;
  // attention.cpp
  void attention(Runtime&, const AttentionForward&) const override;
  void attention_backward(Runtime&, const AttentionBackward&) const override;
  void sparse_attention(Runtime&, const SparseAttentionForward&) const override;
  void sparse_attention_backward(Runtime&, const SparseAttentionBackward&) const override;
  void window_attention(Runtime&, const WindowAttentionForward&) const override;
  void window_attention_backward(Runtime&, const WindowAttentionBackward&) const override;
  // select.cpp
  void select_blocks(Runtime&, const SelectBlocks&) const override;
  void random_scores(Runtime&, const RandomScores&) const override;
  // experts.cpp
  bool experts() const override { return true; }
  void route(Runtime&, const RouteForward&) const override;
  void route_backward(Runtime&, const RouteBackward&) const override;
  void expert_tables(Runtime&, const BuildExpertTables&) const override;
  void expert_gather(Runtime&, const ExpertGather&) const override;
  void expert_sum(Runtime&, const ExpertSum&) const override;
  void grouped_linear(Runtime&, const GroupedLinear&) const override;
  void grouped_linear_backward(Runtime&, const GroupedLinearBackward&) const override;
  void expert_swiglu(Runtime&, const ExpertSwiglu&) const override;
  void expert_swiglu_backward(Runtime&, const ExpertSwigluBackward&) const override;
  // training.cpp
  bool draw_tokens(Runtime&, const DrawTokens&) const override;
  void cross_entropy(Runtime&, const CrossEntropy&) const override;
  void adamw(Runtime&, const AdamW&) const override;
  void sum_squares(Runtime&, const SumSquares&) const override;
};

}  // namespace hysparse::ref
