// AdamW over all weights of a model: moments, gradient norm, clipping.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "model/weights.h"
#include "train/run_config.h"

namespace hysparse {

class Optimizer {
 public:
  // Moments of 0 for every weight that has a gradient, in the gradient's dtype. Keeps the reference.
  explicit Optimizer(Weights& weights);

  // L2 norm over all gradients, summed in f64 in the order of the weights. NaN or infinite when a gradient
  // is.
  double gradient_norm(Runtime& rt) const;

  // One step at rate `lr`; gradients are scaled by grad_clip / norm where the norm is larger. `norm` must be
  // finite.
  void step(Runtime& rt, const TrainConfig& config, double lr, double norm);

  struct Slot {
    Weight* weight;
    Tensor m, v;  // as weight->grad
  };
  std::vector<Slot>& slots() { return slots_; }
  // Steps applied so far (skipped ones do not count): the exponent of the bias correction.
  int64_t applied() const { return applied_; }
  void set_applied(int64_t n) { applied_ = n; }

 private:
  std::vector<Slot> slots_;
  int64_t applied_ = 0;
};

}  // namespace hysparse
