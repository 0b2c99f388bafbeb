// The training pass on the CPU kernels against the float64 reference of the same weights: losses and the
// gradient of every tensor, selection pinned; with a free selection, the flipped blocks are near-ties and are
// counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "unit/model/tiny.h"

namespace hysparse {
namespace {

using tiny::Documents;
using tiny::Machine;

// A twin machine in float64 with the values that `m`'s kernels read.
std::unique_ptr<Machine> reference(Machine& m) {
  auto ref = std::make_unique<Machine>(m.config, DType::f64);
  for (Weight* w : m.weights.all()) {
    Weight* r = ref->weights.find(w->name);
    for (int64_t i = 0; i < w->value.numel(); ++i) tiny::set(r->value, i, tiny::get(w->value, i));
    ++r->version;
  }
  return ref;
}

double norm(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}
double distance(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm(a);
}

std::vector<std::pair<std::string, ModelConfig>> cases() {
  const auto hysparse = AttentionKind::hysparse;
  using C = ModelConfig;
  return {{"full", tiny::config(AttentionKind::full)},
          {"hybrid_swa", tiny::config(AttentionKind::hybrid_swa)},
          {"window", tiny::config(AttentionKind::window)},
          {"hysparse", tiny::config(hysparse)},
          {"shared_window", tiny::config(hysparse, [](C& c) { c.hysparse_window = WindowMode::shared; })},
          {"no_window", tiny::config(hysparse, [](C& c) { c.hysparse_window = WindowMode::none; })},
          {"token_level", tiny::config(hysparse, [](C& c) { c.hysparse_block_size = 1; })},
          {"forced_random", tiny::config(hysparse,
                                         [](C& c) {
                                           c.hysparse_selection = SelectionMode::random;
                                           c.hysparse_force_first = c.hysparse_force_diagonal = true;
                                         })},
          {"everything_else", tiny::config(hysparse,
                                           [](C& c) {
                                             c.hysparse_gate = GateGranularity::channel;
                                             c.full_attention_gate = c.qk_norm = c.attention_bias =
                                                 c.tie_word_embeddings = true;
                                             c.v_head_dim = 24;
                                             c.partial_rotary_factor = 0.5;
                                           })},
          {"experts", tiny::config(hysparse, tiny::with_experts)},
          {"shared_experts", tiny::config(AttentionKind::hybrid_swa, [](C& c) {
             tiny::with_experts(c);
             c.n_shared_experts = 1;
           })}};
}

class TrainPass : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Parity, TrainPass, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Of the norm: each of the few dozen roundings a layer adds an error of the unit roundoff u = 2^-24 or 2^-9,
// as a random walk over 9 layers and back.
double tolerance(DType t) {
  return 128 * (t == DType::f32 ? 0x1p-24 : 0x1p-9);
}

TEST_P(TrainPass, LossesAndGradientsMatchTheReference) {
  const DType dtype = GetParam();
  const Documents docs({61, 1, 35});
  for (const auto& [name, c] : cases()) {
    SCOPED_TRACE(name);
    Machine m(c, dtype);
    const auto ref = reference(m);
    const tiny::Pinned pinned(*ref, docs);
    ForwardOptions options = pinned.options();
    options.router = {0.1, 0.1};
    const double scale = 1.0 / static_cast<double>(docs.batch.tokens());
    const auto want = tiny::train(*ref, docs, options, Recompute::none, scale);
    const auto got = tiny::train(m, docs, options, Recompute::none, scale);
    EXPECT_LE(distance(got, want), tolerance(dtype) * norm(want));
    const auto want_grads = tiny::gradients(*ref), grads = tiny::gradients(m);
    double worst = 0, all = 0, apart = 0;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].empty()) continue;  // the router's bias
      const double d = distance(grads[i], want_grads[i]), n = norm(want_grads[i]);
      EXPECT_LE(d, 4 * tolerance(dtype) * n) << m.weights.all()[i]->name;
      worst = std::max(worst, d / n);
      all += n * n;
      apart += d * d;
    }
    EXPECT_LE(std::sqrt(apart / all), tolerance(dtype));
    RecordProperty(name, fmt::format("worst tensor {:.1e}, all {:.1e}", worst, std::sqrt(apart / all)));
  }
}

TEST(TrainPassFree, FlippedBlocksAreNearTies) {
  const Documents docs({200, 120, 300}, 97, 11);
  int64_t rows = 0, flipped = 0;
  for (int64_t block : {1, 4, 16}) {
    const ModelConfig c = tiny::config(AttentionKind::hysparse, [&](ModelConfig& k) {
      k.hysparse_block_size = block;
      k.hysparse_topk_tokens = 2 * block;
    });
    Machine m(c, DType::f32);
    const auto ref = reference(m);
    const tiny::Pinned got(m, docs);
    // The reference follows the CPU's selections, so that one flip does not hide what comes after it.
    Arena arena;
    Trace trace;
    trace.arena = &arena;
    trace.want_scores = true;
    ForwardOptions options;
    options.pinned = &got.map;
    options.trace = &trace;
    const auto want = tiny::logits(*ref, docs, options);
    options.trace = nullptr;
    EXPECT_LE(tiny::max_diff(tiny::logits(m, docs), want), 1e-4 * tiny::max_abs(want));
    for (const auto& [layer, scores] : trace.block_scores) {
      const TensorView& idx = got.map.at(layer);
      for (int64_t row = 0; row < idx.dim(0) * idx.dim(1); ++row) {
        const int64_t wide = scores.dim(2), mine = docs.batch.position[size_t(row / 2)] / block + 1;
        std::set<int32_t> chosen;
        for (int64_t e = 0; e < 2; ++e)
          if (idx.as<int32_t>()[row * 2 + e] >= 0) chosen.insert(idx.as<int32_t>()[row * 2 + e]);
        ASSERT_EQ(static_cast<int64_t>(chosen.size()), std::min<int64_t>(2, mine));
        double lowest_in = INFINITY, highest_out = -INFINITY;
        for (int32_t j = 0; j < mine; ++j) {
          const double s = tiny::get(scores, row * wide + j);
          if (chosen.count(j))
            lowest_in = std::min(lowest_in, s);
          else
            highest_out = std::max(highest_out, s);
        }
        ++rows;
        if (highest_out > lowest_in) {
          ++flipped;
          EXPECT_LE(highest_out - lowest_in, 1e-5) << "layer " << layer << " row " << row;
        }
      }
    }
  }
  fmt::print("{} selections, {} flipped at near-ties\n", rows, flipped);
  EXPECT_LE(flipped, rows / 100);
}

}  // namespace
}  // namespace hysparse
