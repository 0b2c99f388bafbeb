// The attention part of a layer, between the norm and the residual stream: one file a kind, forward and
// backward side by side. "Fill" makes what LayerSaved lacks, up to `mix`, the input of o_proj.
#pragma once

#include <array>
#include <optional>

#include "model/pass.h"

namespace hysparse {

void fill_attention(Pass& p, int layer);
// dmix [n, Hq, dv] T: gradient at `mix`, may be overwritten. Adds the gradient at normed1 to `dx` and those
// of the weights; gradients of shared K, V go to their full layer's SharedKV.
void attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx);

void fill_full_attention(Pass& p, int layer);    // full_layer.cpp
void fill_sparse_attention(Pass& p, int layer);  // sparse_layer.cpp
void fill_window_attention(Pass& p, int layer);  // window_layer.cpp
void full_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx);
void sparse_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx);
void window_attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx);

// What the kinds share (projections.cpp).
// What a layer projects from normed1, all of it in one group of products: q (rotated); its own k (rotated)
// and v and their KvView, kept as `kv` says; gate logits.
struct Gate {
  const Weight* weight = nullptr;  // null: no such gate
  TensorView* logits = nullptr;
};
struct Wanted {
  std::optional<Keep> kv;
  std::array<Gate, 2> gates;
};
void fill_projections(Pass& p, int layer, const Wanted& wanted);
// dq [n, Hq, d] T, dk and dv [n, Hkv, d|dv] A: gradients of q and of own k, v; overwritten.
void q_backward(Pass& p, int layer, const TensorView& dq, GradSum& dx);
void kv_backward(Pass& p, int layer, const TensorView& dk, const TensorView& dv, GradSum& dx);
void gate_backward(Pass& p, int layer, const TensorView& dgate, Weight& weight, GradSum& dx);

}  // namespace hysparse
