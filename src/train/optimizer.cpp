#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

namespace hysparse {
namespace {

// `n` elements of a flat tensor from `begin` on, in the shape of `like`.
TensorView piece(const TensorView& flat, int64_t begin, const TensorView& like) {
  TensorView out = like;
  out.dtype = flat.dtype;
  out.data = flat.rows(begin, begin + like.numel()).data;
  return out;
}

}  // namespace

Optimizer::Optimizer(Weights& weights) : weights_(weights) {
  for (const WeightGroup& group : weights.groups()) {
    const DType dtype = group.gradients.dtype;
    moments_.push_back(
        {Tensor(dtype, {group.share()}, weights.memory()), Tensor(dtype, {group.share()}, weights.memory())});
    for (const WeightGroup::Part& part : group.parts) {
      Weight& w = *part.weight;
      if (!w.master) continue;  // other ranks have it
      const int64_t at = part.begin + w.master_begin, mine = at - group.begin;
      slots_.push_back({&w, piece(group.gradients, at, w.master), piece(group.values, at, w.master),
                        piece(moments_.back().m, mine, w.master), piece(moments_.back().v, mine, w.master)});
    }
  }
}

void Optimizer::reduce_gradients(Runtime& rt) {
  if (rt.comm.size() == 1) return;
  for (const WeightGroup& group : weights_.groups())
    rt.comm.reduce_scatter(group.gradients, group.own(group.gradients));
}

double Optimizer::gradient_norm(Runtime& rt) const {
  Tensor sum(DType::f64, {1}, rt.memory);
  for (const Slot& slot : slots_) rt.ops.sum_squares(rt, {slot.grad, sum});
  double squares = 0.0;
  rt.memory.to_host(&squares, sum.view().data, sizeof squares);
  rt.comm.all_reduce_values(std::span(&squares, 1));
  return std::sqrt(squares);
}

void Optimizer::step(Runtime& rt, const TrainConfig& config, double lr, double norm) {
  HYSPARSE_CHECK(std::isfinite(norm), "a step with gradient norm {}", norm);
  const double scale = config.grad_clip > 0 && norm > config.grad_clip ? config.grad_clip / norm : 1.0;
  ++applied_;
  for (Slot& slot : slots_) {
    Weight part{
        .name = slot.weight->name, .value = slot.value, .master = slot.weight->master, .grad = slot.grad};
    rt.ops.adamw(rt, {part, slot.m, slot.v, lr, config.beta1, config.beta2, config.eps,
                      slot.weight->decay ? config.weight_decay : 0.0, scale, applied_});
  }
  for (const WeightGroup& group : weights_.groups()) {
    if (rt.comm.size() > 1) rt.comm.all_gather(group.own(group.values), group.values);
    for (const WeightGroup::Part& part : group.parts) ++part.weight->version;
  }
}

}  // namespace hysparse
