// One free function an operation: what CpuOps forwards to. Each is defined in the file of its family
// (attn_*.cpp for attention, the others beside them); shapes and contracts are in kernels/ops.h.
#pragma once

#include "kernels/ops.h"

namespace hysparse {

void cpu_pack(Runtime&, Weight&);
void cpu_embedding(Runtime&, const EmbeddingForward&);
void cpu_embedding_backward(Runtime&, const EmbeddingBackward&);
void cpu_rmsnorm(Runtime&, const RmsNormForward&);
void cpu_rmsnorm_backward(Runtime&, const RmsNormBackward&);
void cpu_linear(Runtime&, const LinearForward&);
void cpu_linear_group(Runtime&, std::span<const LinearForward>, std::span<const Weight* const> next);
void cpu_linear_backward(Runtime&, const LinearBackward&);
void cpu_rope(Runtime&, const Rope&);
void cpu_add(Runtime&, const Add&);
void cpu_cast(Runtime&, const Cast&);
void cpu_gather_rows(Runtime&, const GatherRows&);
void cpu_quantise_kv(Runtime&, const QuantiseKv&);
void cpu_swiglu(Runtime&, const SwigluForward&);
void cpu_swiglu_backward(Runtime&, const SwigluBackward&);
void cpu_cross_entropy(Runtime&, const CrossEntropy&);
void cpu_adamw(Runtime&, const AdamW&);
void cpu_sum_squares(Runtime&, const SumSquares&);
void cpu_add_rmsnorm(Runtime&, const AddRmsNorm&);
void cpu_head_loss(Runtime&, const HeadLoss&);

void cpu_attention(Runtime&, const AttentionForward&);
void cpu_attention_backward(Runtime&, const AttentionBackward&);
void cpu_select_blocks(Runtime&, const SelectBlocks&);
void cpu_random_scores(Runtime&, const RandomScores&);
void cpu_sparse_attention(Runtime&, const SparseAttentionForward&);
void cpu_sparse_attention_backward(Runtime&, const SparseAttentionBackward&);
void cpu_window_attention(Runtime&, const WindowAttentionForward&);
void cpu_window_attention_backward(Runtime&, const WindowAttentionBackward&);
void cpu_gated_sum(Runtime&, const GatedSumForward&);
void cpu_gated_sum_backward(Runtime&, const GatedSumBackward&);
void cpu_attention_select(Runtime&, const AttentionSelect&);
void cpu_sparse_window_gated(Runtime&, const SparseWindowGated&);

void cpu_route(Runtime&, const RouteForward&);
void cpu_route_backward(Runtime&, const RouteBackward&);
void cpu_expert_tables(Runtime&, const BuildExpertTables&);
void cpu_expert_gather(Runtime&, const ExpertGather&);
void cpu_expert_sum(Runtime&, const ExpertSum&);
void cpu_grouped_linear(Runtime&, const GroupedLinear&);
void cpu_grouped_linear_backward(Runtime&, const GroupedLinearBackward&);
void cpu_expert_swiglu(Runtime&, const ExpertSwiglu&);
void cpu_expert_swiglu_backward(Runtime&, const ExpertSwigluBackward&);

}  // namespace hysparse
