#include "train/optimizer.h"

#include <cmath>

namespace hysparse {
namespace {

// A zeroed tensor of the same shape and dtype.
Tensor like(const TensorView& t, Memory& memory) {
  if (t.rank == 1) return Tensor(t.dtype, {t.dim(0)}, memory);
  HYSPARSE_CHECK(t.rank == 2, "a weight has rank {}", t.rank);
  return Tensor(t.dtype, {t.dim(0), t.dim(1)}, memory);
}

}  // namespace

Optimizer::Optimizer(Weights& weights) {
  for (Weight* w : weights.all()) {
    if (!w->grad) continue;
    HYSPARSE_CHECK(w->master && w->master.same_shape(w->grad), "{} has a gradient but no master", w->name);
    slots_.push_back({w, like(w->grad, weights.memory()), like(w->grad, weights.memory())});
  }
}

double Optimizer::gradient_norm(Runtime& rt) const {
  Tensor sum(DType::f64, {1}, rt.memory);
  for (const Slot& slot : slots_) rt.ops.sum_squares(rt, {slot.weight->grad, sum});
  double squares = 0.0;
  rt.memory.to_host(&squares, sum.view().data, sizeof squares);
  return std::sqrt(squares);
}

void Optimizer::step(Runtime& rt, const TrainConfig& config, double lr, double norm) {
  HYSPARSE_CHECK(std::isfinite(norm), "a step with gradient norm {}", norm);
  const double scale = config.grad_clip > 0 && norm > config.grad_clip ? config.grad_clip / norm : 1.0;
  ++applied_;
  for (Slot& slot : slots_) {
    Weight& w = *slot.weight;
    rt.ops.adamw(rt, {w, slot.m, slot.v, lr, config.beta1, config.beta2, config.eps,
                      w.decay ? config.weight_decay : 0.0, scale, applied_});
  }
}

}  // namespace hysparse
