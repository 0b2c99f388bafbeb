// AdamW over all weights of a model: moments, gradient norm, clipping. On several ranks each keeps the
// moments (and masters) of its share of every WeightGroup and moves that share alone (ZeRO stage 1).
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

  // With several ranks: the sum of all ranks' gradients, of which each rank gets its share (the rest of its
  // gradients is then of no more use). Once a step, before the norm. All three are called by all ranks.
  void reduce_gradients(Runtime& rt);

  // L2 norm over all gradients, summed in f64 in the order of the weights' groups. NaN or infinite when a
  // gradient is.
  double gradient_norm(Runtime& rt) const;

  // One step at rate `lr`; gradients are scaled by grad_clip / norm where the norm is larger. `norm` must be
  // finite. Afterwards every rank has all values.
  void step(Runtime& rt, const TrainConfig& config, double lr, double norm);

  // What this rank keeps of a weight's moments, where it keeps any of it.
  struct Slot {
    Weight* weight;
    TensorView grad;  // the gradient's part; shaped as weight->master, as are the moments
    TensorView value;
    TensorView m, v;
  };
  std::vector<Slot>& slots() { return slots_; }
  // The moments of this rank's share of weights.groups()[g].
  struct Moments {
    Tensor m, v;
  };
  const std::vector<Moments>& moments() const { return moments_; }

  // Steps applied so far (skipped ones do not count): the exponent of the bias correction.
  int64_t applied() const { return applied_; }
  void set_applied(int64_t n) { applied_ = n; }

 private:
  Weights& weights_;
  std::vector<Moments> moments_;
  std::vector<Slot> slots_;
  int64_t applied_ = 0;
};

}  // namespace hysparse
