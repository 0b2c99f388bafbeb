// One run over the layers: what every layer works with, and what layers hand to each other.
#pragma once

#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "model/kv_store.h"
#include "model/model.h"
#include "model/rope_table.h"
#include "model/saved.h"

namespace hysparse {

// What a full layer hands its sparse layers. They read kv and selection; in backward each adds its gradients
// of the shared K, V to dk, dv, and the full layer's own come last, before its RoPE and projections.
struct SharedKV {
  KvView kv;
  Selection selection;
  TensorView dk, dv;  // [n, Hkv, d], [n, Hkv, dv] A; empty until someone adds
};

struct Pass {
  Runtime& rt;
  const ModelConfig& config;
  const LayerPlan& plan;
  Weights& weights;
  const RaggedBatch& batch;
  KvStore& kv;
  const RopeTable& rope;
  Saved& saved;
  std::vector<SharedKV>& shared;  // a layer; used by full ones
  Arena& shared_gradients;
  const ForwardOptions& options;
  TensorView labels{};    // [n] i32, in forward_backward
  double grad_scale = 0;  // likewise

  const Ops& ops() const { return rt.ops; }
  const LayerPlanEntry& entry(int layer) const { return plan[static_cast<size_t>(layer)]; }
  LayerWeights& layer_weights(int layer) const { return weights.layers[static_cast<size_t>(layer)]; }
  SharedKV& kv_of(int layer) const { return shared[static_cast<size_t>(layer)]; }
  int64_t tokens() const { return batch.tokens(); }
  DType compute() const { return weights.options().compute; }
  DType accumulation() const { return accumulation_dtype(compute()); }
  double softmax_scale() const;
  // What a layer reads first, or the head behind the last one: the hint of linear_group.
  std::vector<const Weight*> first_weights(int layer) const;

  void make(TensorView& view, Keep keep, DType dtype, std::initializer_list<int64_t> dims) const {
    saved.make(rt.scratch, view, keep, dtype, dims);
  }
  TensorView scratch(DType dtype, std::initializer_list<int64_t> dims) const {
    return rt.scratch.alloc(dtype, dims);
  }
  // dk, dv of a full layer, zero when first asked for.
  SharedKV& open_gradients(int layer) const;
  // After the full layer's backward nobody adds any more.
  void close_gradients(int layer) const;
};

// A gradient that several projections add to: the first one overwrites.
struct GradSum {
  TensorView view;
  bool started = false;
  bool accumulate() { return std::exchange(started, true); }
};

// [n, heads, d] contiguous as [n, heads * d].
inline TensorView flat(const TensorView& v) {
  return v.reshape({v.dim(0), v.dim(1) * v.dim(2)});
}

}  // namespace hysparse
