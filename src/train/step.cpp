#include "train/step.h"

#include "base/error.h"

namespace hysparse {
namespace {

// tokens and labels where the backend reads them.
struct DeviceBatch {
  Tensor tokens, labels, loss;
  DeviceBatch(Runtime& rt, Model& model, const TrainBatch& batch) {
    const int64_t n = batch.batch.tokens();
    HYSPARSE_CHECK(std::ssize(batch.tokens) == n && std::ssize(batch.labels) == n,
                   "a batch of {} tokens with {} ids and {} labels", n, batch.tokens.size(),
                   batch.labels.size());
    tokens = Tensor(DType::i32, {n}, rt.memory);
    labels = Tensor(DType::i32, {n}, rt.memory);
    loss = Tensor(accumulation_dtype(model.weights().options().compute), {n}, rt.memory);
    rt.memory.from_host(tokens.view().data, batch.tokens.data(), tokens.view().bytes());
    rt.memory.from_host(labels.view().data, batch.labels.data(), labels.view().bytes());
  }
  std::vector<double> host_loss(Runtime& rt) const {
    const size_t n = static_cast<size_t>(loss.view().numel());
    std::vector<double> out(n);
    if (loss.view().dtype == DType::f64) {
      rt.memory.to_host(out.data(), loss.view().data, loss.view().bytes());
    } else {
      std::vector<float> narrow(n);
      rt.memory.to_host(narrow.data(), loss.view().data, loss.view().bytes());
      out.assign(narrow.begin(), narrow.end());
    }
    return out;
  }
};

void add_weighted(std::vector<double>& sum, const std::vector<double>& value, double weight) {
  sum.resize(value.size(), 0.0);
  for (size_t i = 0; i < value.size(); ++i) sum[i] += weight * value[i];
}

}  // namespace

StepGradient accumulate_gradient(Runtime& rt, Model& model, std::vector<TrainBatch>& micro_batches,
                                 Recompute recompute, bool want_stats, const std::atomic<bool>* stop,
                                 const RouterLosses& router) {
  StepGradient out;
  int64_t run_tokens = 0;
  for (const TrainBatch& b : micro_batches) {
    out.targets += b.targets;
    out.tokens += b.batch.tokens();
    if (b.targets > 0) run_tokens += b.batch.tokens();
  }
  model.weights().zero_grad();
  ForwardOptions options;
  options.stop = stop;
  options.router = router;
  for (TrainBatch& b : micro_batches) {
    if (b.targets == 0) continue;
    DeviceBatch device(rt, model, b);
    Model::TrainStats stats;
    try {
      model.forward_backward(rt, b.batch, device.tokens, device.labels,
                             1.0 / static_cast<double>(out.targets), recompute, device.loss,
                             want_stats ? &stats : nullptr, options);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::interrupted) throw;
      out.stopped = true;
      return out;
    }
    for (double nats : device.host_loss(rt)) out.loss_sum += nats;
    if (want_stats) {
      const double share = static_cast<double>(b.batch.tokens()) / static_cast<double>(run_tokens);
      add_weighted(out.stats.sparse_gate_mean, stats.sparse_gate_mean, share);
      add_weighted(out.stats.window_gate_mean, stats.window_gate_mean, share);
      add_weighted(out.stats.selection_overlap, stats.selection_overlap, share);
      const double counted = static_cast<double>(b.targets) / static_cast<double>(out.targets);
      add_weighted(out.stats.router_entropy, stats.router_entropy, counted);
      add_weighted(out.stats.balance_loss, stats.balance_loss, counted);
      add_weighted(out.stats.z_loss, stats.z_loss, counted);
    }
  }
  return out;
}

std::vector<double> batch_losses(Runtime& rt, Model& model, TrainBatch& batch) {
  DeviceBatch device(rt, model, batch);
  model.forward_loss(rt, batch.batch, device.tokens, device.labels, device.loss);
  return device.host_loss(rt);
}

}  // namespace hysparse
