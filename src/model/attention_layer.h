// The attention part of a layer, between the norm and the residual stream: one file a kind, forward and
// backward side by side. "Fill" makes what LayerSaved lacks, up to `mix`, the input of o_proj.
#pragma once

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
void fill_q(Pass& p, int layer);              // q, rotated
void fill_kv(Pass& p, int layer, Keep keep);  // the layer's own k (rotated), v, and their KvView
void fill_gate(Pass& p, int layer, TensorView& gate, const Weight& weight);  // gate logits
// dq [n, Hq, d] T, dk and dv [n, Hkv, d|dv] A: gradients of what fill_q and fill_kv made; overwritten.
void q_backward(Pass& p, int layer, const TensorView& dq, GradSum& dx);
void kv_backward(Pass& p, int layer, const TensorView& dk, const TensorView& dv, GradSum& dx);
void gate_backward(Pass& p, int layer, const TensorView& dgate, Weight& weight, GradSum& dx);

}  // namespace hysparse
