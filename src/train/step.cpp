#include "train/step.h"

#include <algorithm>
#include <span>

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

constexpr std::vector<double> Model::TrainStats::*kOfAllTokens[] = {&Model::TrainStats::sparse_gate_mean,
                                                                    &Model::TrainStats::window_gate_mean,
                                                                    &Model::TrainStats::selection_overlap};
constexpr std::vector<double> Model::TrainStats::*kOfLabels[] = {
    &Model::TrainStats::router_entropy, &Model::TrainStats::balance_loss, &Model::TrainStats::z_loss};

// Sums of whole numbers are exact in f64.
void add_up(Comm& comm, std::initializer_list<int64_t*> counts) {
  std::vector<double> values;
  for (const int64_t* n : counts) values.push_back(static_cast<double>(*n));
  comm.all_reduce_values(values);
  auto value = values.begin();
  for (int64_t* n : counts) *n = static_cast<int64_t>(*value++);
}

// What the ranks found, together. A rank without targets ran nothing and has no means: they count as 0.
void combine(Comm& comm, const Weights& weights, bool want_stats, StepGradient& g) {
  if (comm.size() == 1) return;
  std::vector<double> all{g.loss_sum};
  const auto visit = [&](const auto& fn) {
    for (const auto& list : {std::span(kOfAllTokens), std::span(kOfLabels)})
      for (const auto member : list) fn(g.stats.*member);
  };
  if (want_stats)
    visit([&](std::vector<double>& means) {
      means.resize(weights.layers.size(), 0.0);
      all.insert(all.end(), means.begin(), means.end());
    });
  comm.all_reduce_values(all);
  g.loss_sum = all[0];
  auto at = all.begin() + 1;
  if (want_stats)
    visit([&](std::vector<double>& means) {
      std::copy(at, at + std::ssize(means), means.begin());
      at += std::ssize(means);
    });
  if (weights.expert_loads()) comm.all_reduce(weights.expert_loads(), Reduce::sum);
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
  add_up(rt.comm, {&out.targets, &out.tokens, &run_tokens});
  model.weights().zero_grad();
  ForwardOptions options;
  options.stop = stop;
  options.router = router;
  for (TrainBatch& b : micro_batches) {
    if (out.stopped) break;
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
      break;
    }
    for (double nats : device.host_loss(rt)) out.loss_sum += nats;
    if (want_stats) {
      const double share = static_cast<double>(b.batch.tokens()) / static_cast<double>(run_tokens);
      for (const auto member : kOfAllTokens) add_weighted(out.stats.*member, stats.*member, share);
      const double counted = static_cast<double>(b.targets) / static_cast<double>(out.targets);
      for (const auto member : kOfLabels) add_weighted(out.stats.*member, stats.*member, counted);
    }
  }
  out.stopped = rt.comm.any(out.stopped);
  if (!out.stopped) combine(rt.comm, model.weights(), want_stats, out);
  return out;
}

std::vector<double> batch_losses(Runtime& rt, Model& model, TrainBatch& batch) {
  DeviceBatch device(rt, model, batch);
  model.forward_loss(rt, batch.batch, device.tokens, device.labels, device.loss);
  return device.host_loss(rt);
}

}  // namespace hysparse
