// Balancing of experts: the rule, a collapsed router that recovers, and the norm over experts.
#include "train/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "train/optimizer.h"
#include "train/step.h"
#include "unit/train/tiny.h"

namespace hysparse {
namespace {

using namespace tests;

ModelConfig experts_config() {
  ModelConfig c = tiny_config();
  c.num_hidden_layers = 3;
  c.layer_types.clear();
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.moe_intermediate_size = 16;
  c.first_k_dense_replace = 1;
  c.finalize("experts");
  return c;
}

TEST(Balance, TheBiasMovesByTheSignOfWhatIsMissing) {
  TestModel m(experts_config());
  LayerWeights& layer = m.weights.layers[1];
  int64_t* load = layer.expert_load.as<int64_t>();
  const int64_t given[] = {4, 0, 12, 4, 3, 5, 4, 0};  // mean 4
  std::copy_n(given, 8, load);
  const float before = layer.router_bias.value.as<float>()[2];
  balance_experts(m.weights, 0.25);
  const float* bias = layer.router_bias.value.as<float>();
  const float want[] = {0, 0.25f, -0.25f, 0, 0.25f, -0.25f, 0, 0.25f};
  for (int e = 0; e < 8; ++e) EXPECT_EQ(bias[e] - (e == 2 ? before : 0), want[e]) << e;
  const ExpertLoad l = expert_load(layer, host_memory());
  EXPECT_EQ(l.max_over_mean, 3);
  EXPECT_EQ(l.min_over_mean, 0);
  EXPECT_EQ(l.idle, 2);
  EXPECT_GT(l.entropy, 0.7);
  EXPECT_LT(l.entropy, 1);
  EXPECT_TRUE(std::isnan(expert_load(m.weights.layers[0], host_memory()).entropy));
  EXPECT_TRUE(std::isnan(expert_load(m.weights.layers[2], host_memory()).entropy));  // no token counted
  for (int e = 0; e < 8; ++e) EXPECT_EQ(m.weights.layers[2].router_bias.value.as<float>()[e], 0);
}

// A router that sends every token to the same two experts: with the bias at rest it stays so, with balancing
// it does not.
TEST(Balance, ACollapsedRouterRecovers) {
  const auto worst_load = [](double rate) {
    TestMachine machine;
    TestModel m(experts_config());
    for (LayerWeights& layer : m.weights.layers)
      if (layer.router_bias)
        for (int e = 0; e < 2; ++e) layer.router_bias.value.as<float>()[e] = 1;
    TrainConfig train;
    Optimizer optimizer(m.weights);
    double last = 0;
    for (int step = 0; step < 120; ++step) {
      std::vector<TrainBatch> batches;
      batches.push_back(labelled_rows({24, 24, 24, 24, 24, 24, 24, 24}, 0, 8, 24, 97));
      accumulate_gradient(machine.rt, m.model, batches, Recompute::none, false);
      last = 0;
      for (const LayerWeights& layer : m.weights.layers)
        if (layer.expert_load) last = std::max(last, expert_load(layer, host_memory()).max_over_mean);
      if (step == 0) {
        EXPECT_EQ(last, 4) << "eight experts, two of which have all";
      }
      optimizer.step(machine.rt, train, 1e-4, optimizer.gradient_norm(machine.rt));
      balance_experts(m.weights, rate);
    }
    return last;
  };
  EXPECT_EQ(worst_load(0), 4);
  EXPECT_LT(worst_load(0.02), 2);
}

// Loads and gradients of a step do not depend on how its rows are split.
TEST(Balance, SplitsOfAStepCountTheSame) {
  TestMachine machine;
  TestModel m(experts_config());
  std::vector<int64_t> first;
  for (const std::vector<size_t>& cuts : {std::vector<size_t>{0, 4}, {0, 1, 4}, {0, 1, 2, 3, 4}}) {
    std::vector<TrainBatch> batches;
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      batches.push_back(labelled_rows({4, 0, 24, 9}, cuts[i], cuts[i + 1], 24, 97));
    const StepGradient g =
        accumulate_gradient(machine.rt, m.model, batches, Recompute::none, true, nullptr, {0.1, 0.1});
    const int64_t* load = m.weights.layers[2].expert_load.as<int64_t>();
    const std::vector<int64_t> now(load, load + 8);
    if (first.empty()) first = now;
    EXPECT_EQ(now, first);
    EXPECT_EQ(std::accumulate(now.begin(), now.end(), int64_t(0)), 2 * 37);  // active experts, labels
    EXPECT_GT(g.stats.balance_loss[1], 0.9);
    EXPECT_GT(g.stats.z_loss[1], 0);
  }
}

// The norm is one over all experts: squared norms of 20 and 100 give sqrt(120), not a mean.
TEST(Balance, TheGradientNormIsOneOverAllExperts) {
  TestMachine machine;
  TestModel m(experts_config());
  m.weights.zero_grad();
  m.weights.layers[1].expert_up[0].grad.as<float>()[3] = std::sqrt(20.0f);
  m.weights.layers[1].expert_up[7].grad.as<float>()[5] = 6;
  m.weights.layers[2].expert_down[7].grad.as<float>()[0] = 8;
  EXPECT_NEAR(Optimizer(m.weights).gradient_norm(machine.rt), 10.954, 5e-4);
}

}  // namespace
}  // namespace hysparse
