// The activations that backward needs: one arena, one policy. A layer is written as "fill what is missing":
// in the forward pass everything is missing; in backward, what the policy dropped is filled again by the same
// code.
#pragma once

#include <vector>

#include "model/model.h"

namespace hysparse {

// How dear a tensor is to make again.
enum class Keep {
  shared,  // shared K, V, selections and routes: never made again; also outlives an inference step's layers
  own_kv,  // K, V that no other layer reads; outlives an inference step's layers (the store takes it later)
  quadratic,  // outputs of full attention: only inference drops them
  attention,  // those of sparse and window attention: dropped by `layer`
  costly,     // outputs of matrix products: dropped by `projections` too
  cheap,      // elementwise results: dropped by `selective` too
};

enum class SaveMode { inference, none, selective, projections, layer };

constexpr SaveMode save_mode(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return SaveMode::none;
    case Recompute::selective:
      return SaveMode::selective;
    case Recompute::projections:
      return SaveMode::projections;
    case Recompute::layer:
      return SaveMode::layer;
  }
  return SaveMode::none;
}

constexpr bool is_kept(Keep keep, SaveMode mode) {
  switch (keep) {
    case Keep::shared:
      return true;
    case Keep::own_kv:
      return mode != SaveMode::layer && mode != SaveMode::projections;
    case Keep::quadratic:
      return mode != SaveMode::inference;
    case Keep::attention:
      return mode != SaveMode::inference && mode != SaveMode::layer;
    case Keep::costly:
      return mode == SaveMode::none || mode == SaveMode::selective;
    case Keep::cheap:
      return mode == SaveMode::none;
  }
  return true;
}

// What a layer has at hand; an empty view is missing. T: compute dtype, A: accumulation dtype.
struct LayerSaved {
  TensorView x_in;                          // [n, hidden] T: residual stream at the layer's entry
  TensorView normed1, rstd1;                // [n, hidden] T, [n] A
  TensorView q_raw, q_rstd;                 // qk_norm: [n, Hq, d] T before the norm, [n, Hq] A
  TensorView k_raw, k_rstd;                 // [n, Hkv, d] T, [n, Hkv] A
  TensorView q;                             // [n, Hq, d] T, rotated
  TensorView k, v;                          // [n, Hkv, d], [n, Hkv, dv] T: own K (rotated) and V
  KvView kv;                                // where they can be read, with the past
  TensorView gate, window_gate;             // [n, gate width] A: logits
  TensorView o, lse;                        // [n, Hq, dv] T, [n, Hq] A: full, sparse, or a window layer's
  TensorView window_o, window_lse;          // the window branch of a sparse layer
  TensorView mix;                           // [n, Hq, dv] T: what o_proj reads
  TensorView x_mid;                         // [n, hidden] T: residual stream after attention
  TensorView normed2, rstd2;                // [n, hidden] T, [n] A
  TensorView mlp_gate, mlp_up, mlp_hidden;  // [n, dense width] T
  // MoE layers: E experts, k of them active, R = n * k assignments (ops.h).
  TensorView router_logits;                          // [n, E] A
  TensorView chosen, expert_weights;                 // [n, k] i32, [n, k] A
  ExpertTables tables;                               // of `chosen`
  TensorView expert_x;                               // [R, hidden] T: rows of normed2
  TensorView expert_gate, expert_up, expert_hidden;  // [R, f] T
};

class Saved {
 public:
  explicit Saved(Memory& memory) : kept_(memory) {}

  void begin(SaveMode mode, size_t layers) {
    mode_ = mode;
    layers_.assign(layers, {});
    dropped_.clear();
    kept_.reset();
    kept_bytes_ = 0;
    recomputing_ = false;
  }
  SaveMode mode() const { return mode_; }
  bool training() const { return mode_ != SaveMode::inference; }
  LayerSaved& layer(int i) { return layers_[static_cast<size_t>(i)]; }

  // From here on everything goes to scratch: what is made is used once.
  void begin_backward() { recomputing_ = true; }

  // Gives `view` memory: in the arena if the policy keeps it, else in `scratch` until the LayerScope ends.
  void make(Arena& scratch, TensorView& view, Keep keep, DType dtype, std::initializer_list<int64_t> dims) {
    if (!recomputing_ && is_kept(keep, mode_)) {
      view = kept_.alloc(dtype, dims);
      kept_bytes_ += view.bytes();
    } else {
      view = scratch.alloc(dtype, dims);
      dropped_.push_back(&view);
    }
  }
  // A view that only points at another one is dropped with the scope, too.
  void alias(TensorView& view, const TensorView& other) {
    view = other;
    dropped_.push_back(&view);
  }
  void drop() {
    for (TensorView* view : dropped_) *view = {};
    dropped_.clear();
  }
  size_t bytes_kept() const { return kept_bytes_; }
  size_t bytes_reserved() const { return kept_.bytes_reserved(); }

 private:
  SaveMode mode_ = SaveMode::inference;
  bool recomputing_ = false;
  size_t kept_bytes_ = 0;
  Arena kept_;
  std::vector<LayerSaved> layers_;
  std::vector<TensorView*> dropped_;
};

// One layer's stay in scratch, forward or backward.
class LayerScope {
 public:
  LayerScope(Saved& saved, Arena& scratch) : saved_(saved), scratch_(scratch) {}
  ~LayerScope() { saved_.drop(); }
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  Saved& saved_;
  ArenaScope scratch_;
};

}  // namespace hysparse
