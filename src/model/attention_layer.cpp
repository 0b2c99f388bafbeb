#include "model/attention_layer.h"

#include <algorithm>

namespace hysparse {

void fill_attention(Pass& p, int layer) {
  switch (p.entry(layer).kind) {
    case LayerKind::full:
      return fill_full_attention(p, layer);
    case LayerKind::sparse:
      return fill_sparse_attention(p, layer);
    case LayerKind::window:
      return fill_window_attention(p, layer);
  }
}

void attention_backward(Pass& p, int layer, const TensorView& dmix, GradSum& dx) {
  switch (p.entry(layer).kind) {
    case LayerKind::full:
      return full_attention_backward(p, layer, dmix, dx);
    case LayerKind::sparse:
      return sparse_attention_backward(p, layer, dmix, dx);
    case LayerKind::window:
      return window_attention_backward(p, layer, dmix, dx);
  }
}

SharedKV& Pass::open_gradients(int layer) const {
  SharedKV& s = kv_of(layer);
  if (!s.dk) {
    s.dk = shared_gradients.alloc_zero(accumulation(), {tokens(), config.kv_heads(), config.d()});
    s.dv = shared_gradients.alloc_zero(accumulation(), {tokens(), config.kv_heads(), config.dv()});
  }
  return s;
}

void Pass::close_gradients(int layer) const {
  kv_of(layer).dk = kv_of(layer).dv = {};
  if (std::none_of(shared.begin(), shared.end(), [](const SharedKV& s) { return bool(s.dk); }))
    shared_gradients.reset();
}

}  // namespace hysparse
