// Operations of another backend with a clock: every call is waited for, so the sum is more than the same
// calls take when they are queued.
#pragma once

#include <map>
#include <string>

#include "kernels/ops.h"

namespace hysparse {

class TimedOps : public Ops {
 public:
  struct Family {
    double seconds = 0;
    int64_t calls = 0;
  };

  explicit TimedOps(const Ops& inner) : inner_(inner) {}
  std::string name() const override { return inner_.name(); }
  Memory& memory() const override { return inner_.memory(); }
  int64_t chunk_bytes() const override { return inner_.chunk_bytes(); }
  int64_t widened_bytes(int64_t row_bytes, int64_t context) const override {
    return inner_.widened_bytes(row_bytes, context);
  }
  const std::map<std::string, Family>& families() const { return families_; }

#define HYSPARSE_TIMED(op, Params, family)               \
  void op(Runtime& rt, const Params& p) const override { \
    timed(family, [&] { inner_.op(rt, p); });            \
  }
  HYSPARSE_TIMED(embedding, EmbeddingForward, "embedding")
  HYSPARSE_TIMED(embedding_backward, EmbeddingBackward, "embedding")
  HYSPARSE_TIMED(rmsnorm, RmsNormForward, "norms, forward")
  HYSPARSE_TIMED(rmsnorm_backward, RmsNormBackward, "norms, backward")
  HYSPARSE_TIMED(linear, LinearForward, "products, forward")
  HYSPARSE_TIMED(linear_backward, LinearBackward, "products, backward")
  HYSPARSE_TIMED(rope, Rope, "rope")
  HYSPARSE_TIMED(add, Add, "adds")
  HYSPARSE_TIMED(cast, Cast, "casts")
  HYSPARSE_TIMED(gather_rows, GatherRows, "embedding")
  HYSPARSE_TIMED(quantise_kv, QuantiseKv, "KV cache")
  HYSPARSE_TIMED(swiglu, SwigluForward, "swiglu")
  HYSPARSE_TIMED(swiglu_backward, SwigluBackward, "swiglu")
  HYSPARSE_TIMED(attention, AttentionForward, "full attention, forward")
  HYSPARSE_TIMED(attention_backward, AttentionBackward, "full attention, backward")
  HYSPARSE_TIMED(select_blocks, SelectBlocks, "full attention, forward")
  HYSPARSE_TIMED(random_scores, RandomScores, "full attention, forward")
  HYSPARSE_TIMED(sparse_attention, SparseAttentionForward, "sparse attention, forward")
  HYSPARSE_TIMED(sparse_attention_backward, SparseAttentionBackward, "sparse attention, backward")
  HYSPARSE_TIMED(window_attention, WindowAttentionForward, "window attention, forward")
  HYSPARSE_TIMED(window_attention_backward, WindowAttentionBackward, "window attention, backward")
  HYSPARSE_TIMED(gated_sum, GatedSumForward, "gates")
  HYSPARSE_TIMED(gated_sum_backward, GatedSumBackward, "gates")
  bool experts() const override {
    return inner_.experts();
  }
  HYSPARSE_TIMED(route, RouteForward, "router")
  HYSPARSE_TIMED(route_backward, RouteBackward, "router")
  HYSPARSE_TIMED(expert_tables, BuildExpertTables, "router")
  HYSPARSE_TIMED(expert_gather, ExpertGather, "experts, rows")
  HYSPARSE_TIMED(expert_sum, ExpertSum, "experts, rows")
  HYSPARSE_TIMED(grouped_linear, GroupedLinear, "experts, products forward")
  HYSPARSE_TIMED(grouped_linear_backward, GroupedLinearBackward, "experts, products backward")
  HYSPARSE_TIMED(expert_swiglu, ExpertSwiglu, "swiglu")
  HYSPARSE_TIMED(expert_swiglu_backward, ExpertSwigluBackward, "swiglu")
  HYSPARSE_TIMED(grouped_linear_pair, GroupedLinearPair, "experts, products forward")
  HYSPARSE_TIMED(grouped_linear_pair_backward, GroupedLinearPairBackward, "experts, products backward")
  HYSPARSE_TIMED(cross_entropy, CrossEntropy, "head and loss")
  HYSPARSE_TIMED(adamw, AdamW, "AdamW, norm of the gradient")
  HYSPARSE_TIMED(sum_squares, SumSquares, "AdamW, norm of the gradient")
  HYSPARSE_TIMED(attention_select, AttentionSelect, "full attention, forward")
  HYSPARSE_TIMED(add_rmsnorm, AddRmsNorm, "norms, forward")
  HYSPARSE_TIMED(scatter_rows, ScatterRows, "rows to the cache")
  HYSPARSE_TIMED(head_loss, HeadLoss, "head and loss")
#undef HYSPARSE_TIMED

  // In its parts, but where the backend has one kernel for it.
  void sparse_window_gated(Runtime& rt, const SparseWindowGated& a) const override {
    if (a.sparse.kv.kind == KvView::Kind::contiguous)
      Ops::sparse_window_gated(rt, a);
    else
      timed("sparse layer", [&] { inner_.sparse_window_gated(rt, a); });
  }

 private:
  // Calls that a backend makes of its own (through the runtime) belong to the call that makes them.
  template <class Call>
  void timed(const char* family, Call call) const {
    if (depth_ > 0) return call();
    memory().synchronize();
    const double start = now();
    ++depth_;
    call();
    --depth_;
    memory().synchronize();
    Family& f = families_[family];
    f.seconds += now() - start;
    ++f.calls;
  }
  static double now();

  const Ops& inner_;
  mutable int depth_ = 0;
  mutable std::map<std::string, Family> families_;
};

}  // namespace hysparse
