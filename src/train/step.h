// The gradient of one optimiser step, accumulated over micro-batches (and then, by
// Optimizer::reduce_gradients, over ranks).
#pragma once

#include <atomic>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "train/data.h"

namespace hysparse {

struct StepGradient {     // of all ranks
  double loss_sum = 0.0;  // nats over all targets
  int64_t targets = 0;    // labels that count
  int64_t tokens = 0;
  bool stopped = false;  // a rank was asked to stop on the way: the gradient is not whole
  // Means over the micro-batches, by tokens (of the routers by labels that count); only when wanted.
  Model::TrainStats stats;
  double mean_loss() const { return targets > 0 ? loss_sum / static_cast<double>(targets) : 0.0; }
};

// Zeroes the gradients and adds those of every micro-batch, each normalised by the targets of all of them:
// how rows are split, over micro-batches and over ranks, changes memory, not the gradient. The gradients are
// this rank's part of the sum; everything else, the load of experts (Weights) included, is that of the step
// on all ranks, which call this together. A micro-batch without targets adds 0 and is not run.
StepGradient accumulate_gradient(Runtime& rt, Model& model, std::vector<TrainBatch>& micro_batches,
                                 Recompute recompute, bool want_stats,
                                 const std::atomic<bool>* stop = nullptr, const RouterLosses& router = {});

// Losses of a batch, no gradients: nats of every token (0 where the label is ignored), on the host in f64.
std::vector<double> batch_losses(Runtime& rt, Model& model, TrainBatch& batch);

}  // namespace hysparse
