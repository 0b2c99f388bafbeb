// Gradients of every parameter tensor against float64 central differences, selection pinned: one random
// direction and some entries a tensor.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "unit/model/tiny.h"

namespace hysparse {
namespace {

struct Case {
  std::string name;
  AttentionKind kind = AttentionKind::hysparse;
  std::function<void(ModelConfig&)> change;
  std::vector<int64_t> documents = {29, 1, 13};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> cases() {
  using C = ModelConfig;
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
    m_.model->forward_loss(m_.rt, docs_.batch, docs_.tokens, docs_.labels, loss_, options_);
    for (size_t j = 0; j < direction.size(); ++j) value[direction[j].first] = before[j];
    ++w.version;
    double sum = 0;
    for (int64_t t = 0; t < docs_.batch.tokens(); ++t) sum += loss_.view().as<double>()[t];
    return sum * scale_;
  }
  tiny::Machine& m_;
  const tiny::Documents& docs_;
  const ForwardOptions& options_;
  double scale_;
  Tensor loss_;
};

// `entries` single entries a tensor beside the direction.
void check_gradients(const Case& c, int entries) {
  tiny::Machine m(tiny::config(c.kind, c.change));
  tiny::Documents docs(c.documents);
  docs.labels.view().as<int32_t>()[3] = kIgnoreLabel;
  const tiny::Pinned pinned(m, docs);
  ForwardOptions options;
  options.pinned = &pinned.map;
  const double scale = 1.0 / static_cast<double>(docs.batch.tokens());
  tiny::train(m, docs, options, Recompute::none, scale);
  Differences differences(m, docs, options, scale);

  double worst = 0;
  Rng rng(99);
  for (Weight* w : m.weights.all()) {
    const std::vector<double> grad = tiny::values(w->grad);
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
