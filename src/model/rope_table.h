// cos and sin of every position (times the frequencies' magnitude), made in float64 and rounded once (spec
// section 2); grown on demand.
#pragma once

#include "kernels/ops.h"
#include "model/rope_frequencies.h"
#include "tensor/tensor.h"

namespace hysparse {

class RopeTable {
 public:
  RopeTable(const ModelConfig& config, DType accumulation)
      : frequencies_(rope_frequencies(config)), dtype_(accumulation) {}

  // Makes positions 0..last usable; `rt.memory` must stay the same from call to call.
  void reserve(Runtime& rt, int64_t last);
  const TensorView& cos() const { return cos_.view(); }  // [positions, half] A
  const TensorView& sin() const { return sin_.view(); }

 private:
  RopeFrequencies frequencies_;
  DType dtype_;
  Tensor cos_, sin_;
};

}  // namespace hysparse
