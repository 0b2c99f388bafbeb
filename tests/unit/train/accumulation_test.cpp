// A step's gradient does not depend on how its rows are split into micro-batches.
#include <cmath>

#include "train/optimizer.h"
#include "train/step.h"
#include "unit/train/forwarding_ops.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;

const std::vector<int64_t> kTargets = {2, 2, 2, 2, 16, 16, 16, 16};
constexpr int64_t kLength = 24;

std::vector<TrainBatch> split(const std::vector<int64_t>& targets, const std::vector<size_t>& sizes) {
  std::vector<TrainBatch> out;
  size_t begin = 0;
  for (size_t n : sizes) {
    out.push_back(labelled_rows(targets, begin, begin + n, kLength, 97));
    begin += n;
  }
  return out;
}

struct Gradient {
  std::vector<std::vector<double>> weights;
  StepGradient step;
};
Gradient gradient_of(TestMachine& machine, TestModel& m, std::vector<TrainBatch> batches) {
  Gradient g;
  g.step = accumulate_gradient(machine.rt, m.model, batches, Recompute::none, false);
  for (Weight* w : m.weights.all()) {
    const int64_t n = w->grad.numel();
    g.weights.emplace_back();
    for (int64_t i = 0; i < n; ++i)
      g.weights.back().push_back(w->grad.dtype == DType::f64 ? w->grad.as<double>()[i]
                                                             : w->grad.as<float>()[i]);
  }
  return g;
}

// Largest difference of a tensor, relative to its own largest gradient.
double difference(const Gradient& a, const Gradient& b) {
  double worst = 0.0;
  for (size_t w = 0; w < a.weights.size(); ++w) {
    double scale = 0.0, diff = 0.0;
    for (size_t i = 0; i < a.weights[w].size(); ++i) {
      scale = std::max(scale, std::abs(a.weights[w][i]));
      diff = std::max(diff, std::abs(a.weights[w][i] - b.weights[w][i]));
    }
    if (scale > 0) worst = std::max(worst, diff / scale);
  }
  return worst;
}

TEST(Accumulation, AnySplitGivesTheSameGradient) {
  TestMachine machine;
  TestModel m(tiny_config());
  const Gradient whole = gradient_of(machine, m, split(kTargets, {8}));
  EXPECT_EQ(whole.step.targets, 72);
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{4, 4}, {1, 1, 1, 1, 1, 1, 1, 1}, {3, 3, 2}, {5, 3}}) {
    const Gradient parts = gradient_of(machine, m, split(kTargets, sizes));
    EXPECT_LT(difference(whole, parts), 1e-5) << sizes.size() << " parts";
    EXPECT_NEAR(parts.step.loss_sum, whole.step.loss_sum, 1e-5 * whole.step.loss_sum);
    EXPECT_EQ(parts.step.targets, 72);
  }
}

// The mean over targets, not a mean of means: against float64 and its own definition of the loss.
TEST(Accumulation, IsTheGradientOfTheMeanOverTargets) {
  TestMachine machine(1, ref_ops());
  ModelConfig config = tiny_config();
  config.num_hidden_layers = 3;
  config.layer_types.clear();
  config.finalize("TINY");
  TestModel m(config, DType::f64);
  const std::vector<int64_t> targets = {1, 8, 3};
  const Gradient g = gradient_of(machine, m, split(targets, {1, 2}));
  Weight& w = *m.weights.find("model.norm.weight");
  auto mean_loss = [&] {
    double sum = 0.0;
    for (TrainBatch& b : split(targets, {3}))
      for (double nats : batch_losses(machine.rt, m.model, b)) sum += nats;
    return sum / 12.0;
  };
  const double h = 1e-5;
  for (int64_t i : {0, 17, 63}) {
    double& x = w.master.as<double>()[i];
    const double kept = x;
    x = kept + h;
    m.weights.master_to_value();
    const double up = mean_loss();
    x = kept - h;
    m.weights.master_to_value();
    const double down = mean_loss();
    x = kept;
    m.weights.master_to_value();
    const double got = w.grad.as<double>()[i];
    EXPECT_NEAR(got, (up - down) / (2 * h), 1e-7);
  }
  EXPECT_NEAR(g.step.mean_loss(), mean_loss(), 1e-12);
}

TEST(Accumulation, AnIgnoredMicroBatchAddsExactlyNothing) {
  TestMachine machine;
  TestModel m(tiny_config());
  const std::vector<int64_t> targets = {4, 9, 0, 0};
  const Gradient with = gradient_of(machine, m, split(targets, {2, 2}));
  const Gradient without = gradient_of(machine, m, split({4, 9}, {2}));
  EXPECT_EQ(with.weights, without.weights);
  EXPECT_EQ(with.step.loss_sum, without.step.loss_sum);
  EXPECT_EQ(with.step.targets, 13);
  // And one whose rows share the micro-batch with others: still finite, still the same.
  EXPECT_LT(difference(gradient_of(machine, m, split({4, 0, 9, 0}, {2, 2})),
                       gradient_of(machine, m, split({4, 0, 9, 0}, {4}))),
            1e-5);
}

TEST(Accumulation, AllIgnoredIsZeroNotNan) {
  TestMachine machine;
  TestModel m(tiny_config());
  Optimizer optimizer(m.weights);
  const Gradient g = gradient_of(machine, m, split({0, 0}, {1, 1}));
  EXPECT_EQ(g.step.targets, 0);
  EXPECT_EQ(g.step.mean_loss(), 0.0);
  EXPECT_EQ(optimizer.gradient_norm(machine.rt), 0.0);
}

TEST(Accumulation, AStopBetweenMicroBatchesIsSeen) {
  struct StopAfterOne : ForwardingOps {
    std::atomic<bool>& stop;
    StopAfterOne(const Ops& inner, std::atomic<bool>& flag) : ForwardingOps(inner), stop(flag) {}
    void embedding_backward(Runtime& rt, const EmbeddingBackward& p) const override {
      inner_.embedding_backward(rt, p);
      stop = true;
    }
  };
  std::atomic<bool> stop{false};
  const StopAfterOne ops(cpu_ops(), stop);
  TestMachine machine(1, ops);
  TestModel m(tiny_config());
  std::vector<TrainBatch> batches = split(kTargets, {4, 4});
  EXPECT_TRUE(accumulate_gradient(machine.rt, m.model, batches, Recompute::none, false, &stop).stopped);
}

// Between two layers, on the way there and back; the model goes on as if nothing had been.
TEST(Accumulation, AStopInsideAPassIsSeenBeforeTheNextLayer) {
  struct StopInside : ForwardingOps {
    std::atomic<bool>& stop;
    mutable int windows = 0, fulls_back = 0;
    bool in_backward;
    StopInside(const Ops& inner, std::atomic<bool>& flag, bool back)
        : ForwardingOps(inner), stop(flag), in_backward(back) {}
    void sparse_window_gated(Runtime& rt, const SparseWindowGated& p) const override {
      inner_.sparse_window_gated(rt, p);
      if (++windows == 2 && !in_backward) stop = true;
    }
    void attention_backward(Runtime& rt, const AttentionBackward& p) const override {
      inner_.attention_backward(rt, p);
      if (++fulls_back == 1 && in_backward) stop = true;
    }
  };
  TestMachine plain;
  TestModel m(tiny_config());
  const Gradient want = gradient_of(plain, m, split(kTargets, {8}));
  for (const bool in_backward : {false, true}) {
    std::atomic<bool> stop{false};
    const StopInside ops(cpu_ops(), stop, in_backward);
    TestMachine machine(1, ops);
    std::vector<TrainBatch> batches = split(kTargets, {8});
    EXPECT_TRUE(accumulate_gradient(machine.rt, m.model, batches, Recompute::none, false, &stop).stopped);
    EXPECT_EQ(ops.fulls_back, in_backward ? 1 : 0);
    EXPECT_LE(ops.windows, in_backward ? 6 : 2);
    EXPECT_EQ(difference(gradient_of(plain, m, split(kTargets, {8})), want), 0.0);
  }
}

// The norm is that of all tensors together, and clipping scales every tensor by the same factor.
TEST(Optimizer, NormAndClippingAreGlobal) {
  TestMachine machine;
  TestModel clipped(tiny_config()), scaled(tiny_config());
  auto fill = [](TestModel& m, double factor) {
    Rng rng(3);
    for (Weight* w : m.weights.all())
      for (int64_t i = 0; i < w->grad.numel(); ++i)
        w->grad.as<float>()[i] =
            static_cast<float>(factor * static_cast<double>(static_cast<float>(rng.normal())));
  };
  fill(clipped, 1.0);
  Optimizer a(clipped.weights), b(scaled.weights);
  const double norm = a.gradient_norm(machine.rt);
  double squares = 0.0;
  for (Weight* w : clipped.weights.all())
    for (int64_t i = 0; i < w->grad.numel(); ++i)
      squares += std::pow(static_cast<double>(w->grad.as<float>()[i]), 2);
  EXPECT_NEAR(norm, std::sqrt(squares), 1e-9 * norm);

  TrainConfig config;
  config.eps = 1e-3;  // large enough that the scale of the gradient matters
  config.grad_clip = 2.0;
  a.step(machine.rt, config, 1e-2, norm);
  fill(scaled, 2.0 / norm);
  config.grad_clip = 0.0;
  b.step(machine.rt, config, 1e-2, b.gradient_norm(machine.rt));
  for (size_t w = 0; w < clipped.weights.all().size(); ++w) {
    const Weight &x = *clipped.weights.all()[w], &y = *scaled.weights.all()[w];
    for (int64_t i = 0; i < x.master.numel(); ++i)
      ASSERT_NEAR(x.master.as<float>()[i], y.master.as<float>()[i], 1e-6) << x.name;
  }
}

TEST(Optimizer, NormsBiasesAndSinksDoNotDecay) {
  TestMachine machine;
  ModelConfig config = tiny_config();
  config.attention_bias = true;
  config.qk_norm = true;
  config.layer_types.clear();
  config.finalize("TINY");
  TestModel m(config);
  for (Weight* w : m.weights.all())
    for (int64_t i = 0; i < w->master.numel(); ++i) w->master.as<float>()[i] = 1.0f;
  m.weights.zero_grad();
  Optimizer optimizer(m.weights);
  TrainConfig settings;
  settings.weight_decay = 0.5;
  optimizer.step(machine.rt, settings, 0.1, 0.0);
  for (Weight* w : m.weights.all()) {
    const bool stays = w->name.find("norm") != std::string::npos ||
                       w->name.find("bias") != std::string::npos ||
                       w->name.find("sinks") != std::string::npos;
    EXPECT_FLOAT_EQ(w->master.as<float>()[0], stays ? 1.0f : 0.95f) << w->name;
  }
}

}  // namespace
}  // namespace hysparse
