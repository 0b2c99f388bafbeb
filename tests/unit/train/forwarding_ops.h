// Operations that go to another backend; a test overrides the one it wants to spoil or watch.
#pragma once

#include <functional>

#include "kernels/ops.h"

namespace hysparse::tests {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(const Ops& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  Memory& memory() const override { return inner_.memory(); }
  bool experts() const override { return inner_.experts(); }
#define HYSPARSE_FORWARD(op, Params)                     \
  void op(Runtime& rt, const Params& p) const override { \
    around([&] { inner_.op(rt, p); });                   \
  }
  HYSPARSE_FORWARD(embedding, EmbeddingForward)
  HYSPARSE_FORWARD(embedding_backward, EmbeddingBackward)
  HYSPARSE_FORWARD(rmsnorm, RmsNormForward)
  HYSPARSE_FORWARD(rmsnorm_backward, RmsNormBackward)
  HYSPARSE_FORWARD(linear, LinearForward)
  HYSPARSE_FORWARD(linear_backward, LinearBackward)
  HYSPARSE_FORWARD(rope, Rope)
  HYSPARSE_FORWARD(add, Add)
  HYSPARSE_FORWARD(cast, Cast)
  HYSPARSE_FORWARD(gather_rows, GatherRows)
  HYSPARSE_FORWARD(scatter_rows, ScatterRows)
  HYSPARSE_FORWARD(quantise_kv, QuantiseKv)
  HYSPARSE_FORWARD(swiglu, SwigluForward)
  HYSPARSE_FORWARD(swiglu_backward, SwigluBackward)
  HYSPARSE_FORWARD(attention, AttentionForward)
  HYSPARSE_FORWARD(attention_backward, AttentionBackward)
  HYSPARSE_FORWARD(select_blocks, SelectBlocks)
  HYSPARSE_FORWARD(random_scores, RandomScores)
  HYSPARSE_FORWARD(sparse_attention, SparseAttentionForward)
  HYSPARSE_FORWARD(sparse_attention_backward, SparseAttentionBackward)
  HYSPARSE_FORWARD(window_attention, WindowAttentionForward)
  HYSPARSE_FORWARD(window_attention_backward, WindowAttentionBackward)
  HYSPARSE_FORWARD(gated_sum, GatedSumForward)
  HYSPARSE_FORWARD(gated_sum_backward, GatedSumBackward)
  HYSPARSE_FORWARD(cross_entropy, CrossEntropy)
  HYSPARSE_FORWARD(adamw, AdamW)
  HYSPARSE_FORWARD(sum_squares, SumSquares)
  HYSPARSE_FORWARD(attention_select, AttentionSelect)
  HYSPARSE_FORWARD(sparse_window_gated, SparseWindowGated)
  HYSPARSE_FORWARD(add_rmsnorm, AddRmsNorm)
  HYSPARSE_FORWARD(head_loss, HeadLoss)
  HYSPARSE_FORWARD(route, RouteForward)
  HYSPARSE_FORWARD(route_backward, RouteBackward)
  HYSPARSE_FORWARD(expert_tables, BuildExpertTables)
  HYSPARSE_FORWARD(expert_gather, ExpertGather)
  HYSPARSE_FORWARD(expert_sum, ExpertSum)
  HYSPARSE_FORWARD(grouped_linear, GroupedLinear)
  HYSPARSE_FORWARD(grouped_linear_backward, GroupedLinearBackward)
  HYSPARSE_FORWARD(expert_swiglu, ExpertSwiglu)
  HYSPARSE_FORWARD(expert_swiglu_backward, ExpertSwigluBackward)
#undef HYSPARSE_FORWARD

 protected:
  // Runs a call; a test may do something before and after.
  virtual void around(const std::function<void()>& call) const {
    call();
  }
  const Ops& inner_;
};

}  // namespace hysparse::tests
