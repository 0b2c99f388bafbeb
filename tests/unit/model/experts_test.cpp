// What a mixture of experts must not do: depend on the company a token is in, lose or invent gradients, count
// padding.
#include <gtest/gtest.h>

#include <numeric>

#include "unit/model/tiny.h"

namespace hysparse {
namespace {

using tiny::Documents;
using tiny::Machine;

ModelConfig experts_config(const std::function<void(ModelConfig&)>& change = {}) {
  return tiny::config(AttentionKind::hysparse, [&](ModelConfig& c) {
    tiny::with_experts(c);
    if (change) change(c);
  });
}

// Documents of the given lengths in the given order; a document's tokens follow from its length alone.
Documents in_order(const std::vector<int64_t>& lengths) {
  Documents docs(lengths);
  int64_t at = 0;
  for (const int64_t n : lengths) {
    Rng rng(static_cast<uint64_t>(n));
    for (int64_t i = 0; i < n; ++i)
      docs.tokens.view().as<int32_t>()[at++] = static_cast<int32_t>(rng.below(97));
  }
  docs.relabel();
  return docs;
}

// In float64 to the bit: a token's output does not depend on which other tokens its experts serve, nor on
// their order.
TEST(Experts, OrderAndCompanyOfTokensChangeNothing) {
  Machine m(experts_config());
  const std::vector<int64_t> lengths = {17, 5, 23, 9};
  const Documents together = in_order(lengths), turned = in_order({9, 23, 5, 17});
  const std::vector<double> all = tiny::logits(m, together), back = tiny::logits(m, turned);
  size_t begin = 0;
  for (const int64_t n : lengths) {
    const std::vector<double> alone = tiny::logits(m, in_order({n}));
    EXPECT_EQ(std::vector<double>(all.begin() + std::ptrdiff_t(begin),
                                  all.begin() + std::ptrdiff_t(begin + alone.size())),
              alone)
        << n;
    const size_t turned_begin = all.size() - begin - alone.size();
    EXPECT_EQ(std::vector<double>(back.begin() + std::ptrdiff_t(turned_begin),
                                  back.begin() + std::ptrdiff_t(turned_begin + alone.size())),
              alone)
        << n;
    begin += alone.size();
  }
}

// On the kernels, within rounding.
TEST(Experts, TheCpuAgreesInAnyCompany) {
  Machine m(experts_config(), DType::f32);
  const std::vector<double> all = tiny::logits(m, in_order({170, 5, 230}));
  const std::vector<double> alone = tiny::logits(m, in_order({230}));
  EXPECT_LE(tiny::max_diff(std::vector<double>(all.end() - std::ptrdiff_t(alone.size()), all.end()), alone),
            1e-4 * tiny::max_abs(alone));
}

// All tokens to one expert: the others get exactly nothing, whatever their memory held before.
TEST(Experts, UnusedExpertsHaveGradientsOfExactlyZero) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine m(experts_config([](ModelConfig& c) { c.num_experts_per_tok = 1; }), dtype);
    for (LayerWeights& layer : m.weights.layers)
      if (layer.router_bias) tiny::set(layer.router_bias.value, 3, 100);
    for (Weight* w : m.weights.all())
      for (int64_t i = 0; w->grad && i < w->grad.numel(); ++i) tiny::set(w->grad, i, 1e30);
    const Documents docs({40, 30});
    for (const Recompute recompute :
         {Recompute::none, Recompute::selective, Recompute::projections, Recompute::layer}) {
      tiny::train(m, docs, {}, recompute, 1.0);
      for (size_t i = 1; i < m.plan.size(); ++i) {
        const LayerWeights& layer = m.weights.layers[i];
        for (size_t e = 0; e < layer.expert_gate.size(); ++e)
          for (const Weight* w : {&layer.expert_gate[e], &layer.expert_up[e], &layer.expert_down[e]})
            EXPECT_EQ(tiny::max_abs(tiny::values(w->grad)) > 0, e == 3) << w->name;
        const int64_t* load = layer.expert_load.as<int64_t>();
        EXPECT_EQ(std::vector<int64_t>(load, load + 5), (std::vector<int64_t>{0, 0, 0, 68, 0}));
      }
    }
  }
}

// The router's gradient is there, and its balance part is proportional to its factor and larger where routing
// is skewed.
TEST(Experts, TheBalanceLossReachesTheRouterInProportion) {
  const auto router_gradient = [](double bias, double factor) {
    Machine m(experts_config());
    for (LayerWeights& layer : m.weights.layers)
      if (layer.router_bias)
        for (int64_t e = 0; e < 5; ++e) tiny::set(layer.router_bias.value, e, e < 2 ? bias : 0);
    const Documents docs({61, 30});
    const tiny::Pinned pinned(m, docs);
    ForwardOptions options = pinned.options();
    options.router.balance = factor;
    tiny::train(m, docs, options);
    return tiny::values(m.weights.layers[8].router.grad);
  };
  const auto part = [&](double bias, double factor) {
    std::vector<double> with = router_gradient(bias, factor), without = router_gradient(bias, 0);
    EXPECT_GT(tiny::max_abs(without), 0);
    for (size_t i = 0; i < with.size(); ++i) with[i] -= without[i];
    return with;
  };
  const std::vector<double> once = part(0, 0.1), ten = part(0, 1), skewed = part(10, 0.1);
  double norm = 0, skewed_norm = 0;
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_NEAR(ten[i], 10 * once[i], 1e-9 * tiny::max_abs(ten));
    norm += once[i] * once[i];
    skewed_norm += skewed[i] * skewed[i];
  }
  EXPECT_GT(norm, 0);
  EXPECT_GT(skewed_norm, 2 * norm);
}

// Tokens without a label (padding behind a document, as a document of its own) change no gradient and no
// load.
TEST(Experts, PaddingDoesNotCount) {
  Machine m(experts_config());
  ForwardOptions options;
  options.router = {0.5, 0.5};
  struct Result {
    std::vector<std::vector<double>> gradients;
    std::vector<int64_t> load;
    Model::TrainStats stats;
  };
  const auto run = [&](const Documents& docs) {
    Result r;
    tiny::train(m, docs, options, Recompute::none, 1.0, &r.stats);
    r.gradients = tiny::gradients(m);
    for (const LayerWeights& layer : m.weights.layers)
      if (layer.expert_load)
        r.load.insert(r.load.end(), layer.expert_load.as<int64_t>(), layer.expert_load.as<int64_t>() + 5);
    return r;
  };
  const Result plain = run(in_order({20, 13}));
  Documents padded = in_order({20, 13, 11, 4});
  for (int64_t i = 33; i < 48; ++i) padded.labels.view().as<int32_t>()[i] = kIgnoreLabel;
  const Result with = run(padded);
  EXPECT_EQ(with.load, plain.load);
  EXPECT_EQ(std::accumulate(with.load.begin(), with.load.end(), int64_t(0)),
            8 * 2 * 31);  // layers, active, labels
  for (size_t i = 0; i < plain.gradients.size(); ++i)
    EXPECT_LE(tiny::max_diff(with.gradients[i], plain.gradients[i]),
              1e-12 * (1 + tiny::max_abs(plain.gradients[i])))
        << m.weights.all()[i]->name;
  for (size_t i = 1; i < m.plan.size(); ++i) {
    EXPECT_NEAR(with.stats.balance_loss[i], plain.stats.balance_loss[i], 1e-12);
    EXPECT_NEAR(with.stats.z_loss[i], plain.stats.z_loss[i], 1e-12);
    EXPECT_NEAR(with.stats.router_entropy[i], plain.stats.router_entropy[i], 1e-12);
    EXPECT_GT(with.stats.router_entropy[i], 0);
    EXPECT_LE(with.stats.router_entropy[i], 1);
  }
  EXPECT_TRUE(std::isnan(plain.stats.z_loss[0]));
}

// Recomputing layers keeps every route: the same gradients to the bit, and every token counted once.
TEST(Experts, RecomputeKeepsRoutesAndLoad) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    Machine m(experts_config([](ModelConfig& c) { c.n_shared_experts = 1; }), dtype);
    const Documents docs({40, 1, 29});
    ForwardOptions options;
    options.router = {0.1, 0.1};
    const auto load = [&] {
      const int64_t* n = m.weights.layers[4].expert_load.as<int64_t>();
      return std::vector<int64_t>(n, n + 5);
    };
    tiny::train(m, docs, options, Recompute::none);
    const auto want = tiny::gradients(m);
    const auto counted = load();
    EXPECT_EQ(std::accumulate(counted.begin(), counted.end(), int64_t(0)), 2 * 67);
    for (const Recompute recompute : {Recompute::selective, Recompute::projections, Recompute::layer}) {
      tiny::train(m, docs, options, recompute);
      EXPECT_EQ(tiny::gradients(m), want) << enum_name(recompute);
      EXPECT_EQ(load(), counted);
    }
  }
}

TEST(Experts, ThreadsChangeNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Documents docs({140, 90});
    std::vector<std::vector<double>> first;
    for (const int threads : {1, 2, 5}) {
      Machine m(experts_config(), dtype, true, threads);
      tiny::train(m, docs);
      if (first.empty()) first = tiny::gradients(m);
      EXPECT_EQ(tiny::gradients(m), first) << threads;
    }
  }
}

TEST(Experts, RoutesFromOutsideAreChecked) {
  Machine m(experts_config());
  const Documents docs({4});
  const tiny::Pinned pinned(m, docs);
  const auto refusal = [&](const std::function<void(RouteMap&)>& change) {
    tiny::Pinned own(m, docs);
    change(own.experts);
    try {
      tiny::logits(m, docs, own.options());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refusal([](RouteMap&) {}), "no error");
  EXPECT_NE(refusal([](RouteMap& r) { r[2].as<int32_t>()[5] = 5; }).find("experts.2"), std::string::npos);
  EXPECT_NE(refusal([](RouteMap& r) { r[2].as<int32_t>()[1] = r[2].as<int32_t>()[0]; }).find("ascending"),
            std::string::npos);
  EXPECT_NE(refusal([](RouteMap& r) { r[0] = r[2]; }).find("no experts"), std::string::npos);
  EXPECT_NE(refusal([](RouteMap& r) { r[2] = r[2].rows(0, 3); }).find("i32[4, 2]"), std::string::npos);
}

}  // namespace
}  // namespace hysparse
