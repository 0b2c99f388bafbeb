// cos and sin of every position, made in float64 and rounded once (spec section 2); grown on demand.
#pragma once

#include "kernels/ops.h"
#include "model/config.h"
#include "tensor/tensor.h"

namespace hysparse {

class RopeTable {
 public:
  RopeTable(const ModelConfig& config, DType accumulation)
      : theta_(config.rope_theta), half_(config.rotary_dims() / 2), dtype_(accumulation) {}

  // Makes positions 0..last usable; `rt.memory` must stay the same from call to call.
  void reserve(Runtime& rt, int64_t last);
  const TensorView& cos() const { return cos_.view(); }  // [positions, half] A
  const TensorView& sin() const { return sin_.view(); }

 private:
  double theta_;
  int64_t half_;
  DType dtype_;
  Tensor cos_, sin_;
};

}  // namespace hysparse
