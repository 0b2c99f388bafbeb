// Gradients of every parameter tensor against float64 central differences, selection pinned: one random
// direction and some entries a tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "unit/model/tiny.h"

namespace hysparse {
namespace {

struct Case {
  std::string name;
  AttentionKind kind = AttentionKind::hysparse;
  std::function<void(ModelConfig&)> change;
  std::vector<int64_t> documents = {29, 1, 13};
  RouterLosses router = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> cases() {
  using C = ModelConfig;
  const auto experts = tiny::with_experts;
  const auto hysparse = AttentionKind::hysparse;
  return {
      {"full", AttentionKind::full, {}},
      {"hybrid_swa", AttentionKind::hybrid_swa, {}},
      {"hysparse", hysparse, {}},
      {"window", AttentionKind::window, {}},
      {"one_document", hysparse, {}, {41}},
      {"window_shared", hysparse, [](C& c) { c.hysparse_window = WindowMode::shared; }},
      {"window_none", hysparse, [](C& c) { c.hysparse_window = WindowMode::none; }},
      {"random_selection", hysparse, [](C& c) { c.hysparse_selection = SelectionMode::random; }},
      {"forced", hysparse, [](C& c) { c.hysparse_force_first = c.hysparse_force_diagonal = true; }},
      {"token_level", hysparse, [](C& c) { c.hysparse_block_size = 1; }},
      {"channel_gate", hysparse, [](C& c) { c.hysparse_gate = GateGranularity::channel; }},
      {"full_gate", AttentionKind::full, [](C& c) { c.full_attention_gate = true; }},
      {"full_gate_channel", hysparse,
       [](C& c) {
         c.full_attention_gate = true;
         c.hysparse_gate = GateGranularity::channel;
       }},
      {"bias_qk_norm", hysparse, [](C& c) { c.attention_bias = c.qk_norm = true; }},
      {"bias_qk_norm_shared", hysparse,
       [](C& c) {
         c.attention_bias = c.qk_norm = true;
         c.hysparse_window = WindowMode::shared;
       }},
      {"partial_rotary", hysparse, [](C& c) { c.partial_rotary_factor = 0.5; }},
      {"tied", hysparse, [](C& c) { c.tie_word_embeddings = true; }},
      {"v_head_dim", hysparse, [](C& c) { c.v_head_dim = 16; }},
      {"listed_layers", hysparse,
       [](C& c) {
         c.attention.reset();
         const std::string f = "full_attention", s = "hysparse_attention", w = "sliding_attention";
         c.layer_types = {w, f, s, w, s, f, f, s, w};
       }},
      {"experts", hysparse, experts},
      {"experts_hybrid", AttentionKind::hybrid_swa, experts},
      {"experts_gated_full", AttentionKind::full,
       [=](C& c) {
         experts(c);
         c.full_attention_gate = true;
       }},
      {"experts_shared", hysparse,
       [=](C& c) {
         experts(c);
         c.n_shared_experts = 2;
         c.norm_topk_prob = false;
         c.first_k_dense_replace = 0;
       }},
      {"experts_router_losses", hysparse, experts, {29, 1, 13}, {0.7, 0.3}},
  };
}

// d loss / d t at t = 0 of weight + t * direction; the higher order is for where the first does not suffice.
class Differences {
 public:
  Differences(tiny::Machine& m, const tiny::Documents& docs, const ForwardOptions& options, double scale)
      : m_(m), docs_(docs), options_(options), scale_(scale), loss_(DType::f64, {docs.batch.tokens()}) {}

  double second_order(Weight& w, const std::vector<std::pair<int64_t, double>>& direction, double step) {
    return (at(w, direction, step) - at(w, direction, -step)) / (2 * step);
  }
  double fourth_order(Weight& w, const std::vector<std::pair<int64_t, double>>& direction, double step) {
    return (4 * second_order(w, direction, step) - second_order(w, direction, 2 * step)) / 3;
  }

 private:
  double at(Weight& w, const std::vector<std::pair<int64_t, double>>& direction, double step) {
    double* value = w.value.as<double>();
    std::vector<double> before;
    for (const auto& [i, d] : direction) {
      before.push_back(value[i]);
      value[i] += step * d;
    }
    ++w.version;
    double sum = 0;
    if (options_.router.balance != 0 || options_.router.z != 0) {
      Model::TrainStats stats;  // they are a part of the training pass alone
      for (const double nats : tiny::train(m_, docs_, options_, Recompute::none, 0, &stats)) sum += nats;
      double targets = 0;
      for (int64_t t = 0; t < docs_.batch.tokens(); ++t)
        targets += docs_.labels.view().as<int32_t>()[t] != kIgnoreLabel;
      for (size_t i = 0; i < m_.plan.size(); ++i)
        if (m_.plan[i].moe)
          sum += targets *
                 (options_.router.balance * stats.balance_loss[i] + options_.router.z * stats.z_loss[i]);
    } else {
      m_.model->forward_loss(m_.rt, docs_.batch, docs_.tokens, docs_.labels, loss_, options_);
      for (int64_t t = 0; t < docs_.batch.tokens(); ++t) sum += loss_.view().as<double>()[t];
    }
    for (size_t j = 0; j < direction.size(); ++j) value[direction[j].first] = before[j];
    ++w.version;
    return sum * scale_;
  }
  tiny::Machine& m_;
  const tiny::Documents& docs_;
  const ForwardOptions& options_;
  double scale_;
  Tensor loss_;
};

// The weights of experts that no token of the last training pass chose.
std::set<const Weight*> unused_experts(const Weights& weights) {
  std::set<const Weight*> out;
  for (const LayerWeights& layer : weights.layers)
    for (size_t e = 0; e < layer.expert_gate.size(); ++e)
      if (layer.expert_load.as<int64_t>()[e] == 0)
        out.insert({&layer.expert_gate[e], &layer.expert_up[e], &layer.expert_down[e]});
  return out;
}

// `entries` single entries a tensor beside the direction.
void check_gradients(const Case& c, int entries) {
  tiny::Machine m(tiny::config(c.kind, c.change));
  tiny::Documents docs(c.documents);
  docs.labels.view().as<int32_t>()[3] = kIgnoreLabel;
  const tiny::Pinned pinned(m, docs);
  ForwardOptions options = pinned.options();
  options.router = c.router;
  const double scale = 1.0 / static_cast<double>(docs.batch.tokens());
  tiny::train(m, docs, options, Recompute::none, scale);
  Differences differences(m, docs, options, scale);

  double worst = 0;
  Rng rng(99);
  const std::vector<std::vector<double>> grads = tiny::gradients(m);
  const std::set<const Weight*> unused = unused_experts(m.weights);
  EXPECT_LE(unused.size() * 4, grads.size());
  for (size_t k = 0; k < grads.size(); ++k) {
    Weight* w = m.weights.all()[k];
    const std::vector<double>& grad = grads[k];
    if (w->name.find("e_score_correction_bias") != std::string::npos) {
      EXPECT_TRUE(grad.empty());  // moved by balancing, not by a gradient
      continue;
    }
    if (unused.count(w)) {
      EXPECT_EQ(tiny::max_abs(grad), 0) << w->name;
      continue;
    }
    const auto n = static_cast<int64_t>(grad.size());
    double norm = 0, length = 0;
    for (double g : grad) norm += g * g;
    const double rms = std::sqrt(norm / static_cast<double>(n));
    ASSERT_GT(rms, 0) << w->name << " has no gradient";

    std::vector<std::vector<std::pair<int64_t, double>>> directions(1);
    for (int64_t i = 0; i < n; ++i) directions[0].push_back({i, rng.normal()});
    for (const auto& [i, d] : directions[0]) length += d * d;
    for (auto& [i, d] : directions[0]) d /= std::sqrt(length);
    for (int e = 0; e < entries; ++e)
      directions.push_back({{static_cast<int64_t>(rng.below(static_cast<uint64_t>(n))), 1.0}});

    for (const auto& direction : directions) {
      double expected = 0;
      for (const auto& [i, d] : direction) expected += grad[size_t(i)] * d;
      const double tolerance = 1e-6 * std::max(std::abs(expected), rms);
      double got = differences.second_order(*w, direction, 1e-4);
      if (std::abs(got - expected) > tolerance) got = differences.fourth_order(*w, direction, 1e-3);
      EXPECT_NEAR(got, expected, tolerance)
          << w->name << (direction.size() == 1 ? fmt::format(" entry {}", direction[0].first) : " direction");
      worst = std::max(worst, std::abs(got - expected) / std::max(std::abs(expected), rms));
    }
  }
  ::testing::Test::RecordProperty("worst_relative", fmt::format("{:.2e}", worst));
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

// The four kinds with all entries, the ablations with fewer; the long run has all entries for all.
class Gradients : public ::testing::TestWithParam<Case> {};
TEST_P(Gradients, OfEveryTensor) {
  const std::string& name = GetParam().name;
  const bool kind = name == "full" || name == "hybrid_swa" || name == "hysparse" || name == "window";
  check_gradients(GetParam(), kind ? 8 : 1);
}
INSTANTIATE_TEST_SUITE_P(Model, Gradients, ::testing::ValuesIn(cases()), case_name);

class FullGradients : public ::testing::TestWithParam<Case> {};
TEST_P(FullGradients, OfEveryTensorAndEightEntries) {
  check_gradients(GetParam(), 8);
}
INSTANTIATE_TEST_SUITE_P(FullModel, FullGradients, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace hysparse
