#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tensor/tensor.h"

namespace hysparse {

inline constexpr int64_t kQuantGroup = 64;  // elements that share a scale

// A named parameter. linear() and friends take a Weight, never a raw pointer, so that a backend may keep its
// own packed copy and so that quantised or sharded weights can arrive later without new signatures.
struct Weight {
  std::string name;  // checkpoint name, "model.layers.0.self_attn.q_proj.weight"
  // What kernels read: compute dtype (f64, f32 or bf16); [out, in], [n] or [vocab, hidden]. A matrix may be
  // i8 with scales (kernels/quantise.h), which linear(), grouped_linear() and embedding() read, or f8 with
  // scales, which grouped_linear() reads.
  TensorView value;
  TensorView scales;  // i8: [out, quant_groups(in)] f32; f8: [out, 1] f32; else empty
  // What the optimiser moves: f32 (f64 under ref); the same memory as `value` when dtypes match. Where ranks
  // share the masters, this rank's: elements [master_begin, master_begin + master.numel()) in one row, or
  // none.
  TensorView master;
  int64_t master_begin = 0;
  TensorView grad;       // accumulated, f32 (f64 under ref), same shape; empty outside training
  bool decay = true;     // weight decay applies (not on norms, biases, sinks)
  uint64_t version = 0;  // bumped whenever `value` changes
  // value and scales lie in the order that the backend's products read (Ops::pack): linear(),
  // grouped_linear() and embedding() read it, nothing else does.
  bool panels = false;
  std::shared_ptr<const void> packed;  // backend-owned, beside it

  explicit operator bool() const { return bool(value); }
  size_t bytes() const { return value.bytes() + scales.bytes(); }  // that reading the whole value moves
};

}  // namespace hysparse
