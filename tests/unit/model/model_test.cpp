// The model as a whole: what its entry points promise, on the reference and on the CPU kernels.
#include "model/model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "unit/model/tiny.h"

namespace hysparse {
namespace {

using tiny::Documents;
using tiny::Machine;

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
    return e.what();
  }
  return "(accepted)";
}

// Everything over one code path: each kind, and the settings that take another turn in it.
std::vector<ModelConfig> variants() {
  std::vector<ModelConfig> out = {tiny::config(AttentionKind::full), tiny::config(AttentionKind::hybrid_swa),
                                  tiny::config(AttentionKind::hysparse), tiny::config(AttentionKind::window)};
  auto add = [&](const std::function<void(ModelConfig&)>& change) {
    out.push_back(tiny::config(AttentionKind::hysparse, change));
  };
  add([](ModelConfig& c) { c.hysparse_window = WindowMode::shared; });
  add([](ModelConfig& c) { c.hysparse_window = WindowMode::none; });
  add([](ModelConfig& c) { c.hysparse_selection = SelectionMode::random; });
  add([](ModelConfig& c) {
    c.hysparse_gate = GateGranularity::channel;
    c.full_attention_gate = c.qk_norm = c.attention_bias = c.tie_word_embeddings = true;
    c.v_head_dim = 24;
    c.partial_rotary_factor = 0.5;
  });
  return out;
}

class EachDType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Model, EachDType, ::testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// What is dropped and made again is the same to the last bit: so are losses and gradients.
TEST_P(EachDType, RecomputePoliciesAgreeBitForBit) {
  const Documents docs({30, 1, 17});
  for (const ModelConfig& c : variants()) {
    Machine m(c, GetParam());
    const auto loss = tiny::train(m, docs, {}, Recompute::none);
    const auto grads = tiny::gradients(m);
    for (const Recompute r : {Recompute::selective, Recompute::projections, Recompute::layer}) {
      EXPECT_EQ(tiny::train(m, docs, {}, r), loss) << enum_name(r);
      const auto again = tiny::gradients(m);
      for (size_t i = 0; i < grads.size(); ++i)
        EXPECT_EQ(again[i], grads[i]) << enum_name(r) << " " << m.weights.all()[i]->name;
    }
  }
}

TEST_P(EachDType, ThreadsDoNotChangeABit) {
  const Documents docs({40, 25});
  for (const ModelConfig& c : {tiny::config(), tiny::config(AttentionKind::hybrid_swa)}) {
    Machine one(c, GetParam(), true, 1);
    const auto loss = tiny::train(one, docs);
    const auto grads = tiny::gradients(one);
    for (int threads : {2, 4}) {
      Machine m(c, GetParam(), true, threads);
      EXPECT_EQ(tiny::train(m, docs), loss) << threads;
      EXPECT_EQ(tiny::gradients(m), grads) << threads;
    }
  }
}

TEST_P(EachDType, LossIsThatOfTheLogits) {
  const Documents docs({30, 12});
  for (const ModelConfig& c : variants()) {
    Machine m(c, GetParam());
    const auto logits = tiny::logits(m, docs);
    std::vector<double> expected;
    for (int64_t t = 0; t < docs.batch.tokens(); ++t) {
      const int32_t label = docs.labels.view().as<int32_t>()[t];
      const double* row = logits.data() + t * c.vocab_size;
      const double top = *std::max_element(row, row + c.vocab_size);
      double sum = 0;
      for (int64_t v = 0; v < c.vocab_size; ++v) sum += std::exp(row[v] - top);
      expected.push_back(label == kIgnoreLabel ? 0.0 : top + std::log(sum) - row[label]);
    }
    const double tolerance = GetParam() == DType::f64 ? 1e-12 : GetParam() == DType::f32 ? 1e-4 : 0.05;
    EXPECT_LE(tiny::max_diff(tiny::train(m, docs), expected), tolerance * tiny::max_abs(expected));
    const Tensor loss(m.acc(), {docs.batch.tokens()});
    m.model->forward_loss(m.rt, docs.batch, docs.tokens, docs.labels, loss);
    EXPECT_LE(tiny::max_diff(tiny::values(loss), expected), tolerance * tiny::max_abs(expected));
  }
}

// Meaning does not depend on what is kept for later: the pass of training gives the logits of inference.
TEST_P(EachDType, TheTrainingPassGivesTheSameLogits) {
  const Documents docs({45, 7});
  for (const ModelConfig& c : variants()) {
    Machine m(c, GetParam(), false);
    ForwardOptions as_training;
    as_training.as_training = true;
    EXPECT_EQ(tiny::logits(m, docs), tiny::logits(m, docs, as_training));
  }
}

TEST_P(EachDType, LogitRowsAreRowsOfAllLogits) {
  Documents docs({20, 33});
  Machine m(tiny::config(), GetParam(), false);
  const auto all = tiny::logits(m, docs);
  docs.batch.logit_rows = {0, 19, 20, 52};
  const auto some = tiny::logits(m, docs);
  ASSERT_EQ(some.size(), 4u * 97);
  std::vector<double> expected;
  for (int64_t row : docs.batch.logit_rows)
    expected.insert(expected.end(), all.begin() + row * 97, all.begin() + (row + 1) * 97);
  EXPECT_LE(tiny::max_diff(some, expected),
            (GetParam() == DType::bf16 ? 1e-2 : 1e-5) * tiny::max_abs(expected));
  docs.batch.logit_rows = {};
  EXPECT_TRUE(tiny::logits(m, docs).empty());
}

TEST_P(EachDType, StepsReuseTheirMemory) {
  for (const Recompute r :
       {Recompute::none, Recompute::selective, Recompute::projections, Recompute::layer}) {
    Machine m(tiny::config(), GetParam());
    const Documents long_docs({120}), short_docs({10, 30});
    tiny::train(m, long_docs, {}, r);
    tiny::logits(m, long_docs);
    const size_t arenas = m.model->workspace_bytes(), scratch = m.scratch.bytes_reserved();
    for (int i = 0; i < 3; ++i) {
      tiny::train(m, short_docs, {}, r);
      tiny::train(m, long_docs, {}, r);
      tiny::logits(m, long_docs);
    }
    EXPECT_EQ(m.model->workspace_bytes(), arenas) << enum_name(r);
    EXPECT_EQ(m.scratch.bytes_reserved(), scratch) << enum_name(r);
  }
}

TEST(Model, RecomputeKeepsLess) {
  Machine m(tiny::config());
  const Documents docs({64});
  std::vector<size_t> bytes;
  for (const Recompute r :
       {Recompute::none, Recompute::selective, Recompute::projections, Recompute::layer}) {
    tiny::train(m, docs, {}, r);
    bytes.push_back(m.model->activation_bytes());
  }
  EXPECT_LT(bytes[1], bytes[0]);
  EXPECT_LT(bytes[2], bytes[1]);
  EXPECT_LT(bytes[3], bytes[1] / 3);
}

TEST(Model, GradientsAddUpAndScale) {
  Machine m(tiny::config());
  const Documents docs({30, 13});
  tiny::train(m, docs);
  const auto once = tiny::gradients(m);
  const Tensor loss(DType::f64, {docs.batch.tokens()});
  m.model->forward_backward(m.rt, docs.batch, docs.tokens, docs.labels, 0.5, Recompute::none, loss);
  const auto more = tiny::gradients(m);
  for (size_t i = 0; i < once.size(); ++i) {
    std::vector<double> expected = once[i];
    for (double& x : expected) x *= 1.5;
    EXPECT_LE(tiny::max_diff(more[i], expected), 1e-12 * (1 + tiny::max_abs(expected)))
        << m.weights.all()[i]->name;
  }
}

// A row of the step that has no label adds nothing.
TEST(Model, IgnoredLabelsHaveNoGradient) {
  Machine m(tiny::config());
  Documents docs({20});
  std::fill_n(docs.labels.view().as<int32_t>(), 20, kIgnoreLabel);
  EXPECT_EQ(tiny::max_abs(tiny::train(m, docs)), 0);
  for (const auto& g : tiny::gradients(m)) EXPECT_EQ(tiny::max_abs(g), 0);
}

TEST(Model, PinnedSelectionsReplaceScoring) {
  Machine m(tiny::config());
  const Documents docs({50});
  const auto free = tiny::logits(m, docs);
  const tiny::Pinned own(m, docs);
  ASSERT_EQ(own.map.size(), 2u);  // layers 0 and 4
  ForwardOptions options;
  options.pinned = &own.map;
  EXPECT_EQ(tiny::logits(m, docs, options), free);
  EXPECT_EQ(tiny::train(m, docs, options), tiny::train(m, docs));

  Arena arena;
  SelectionMap other;
  for (const auto& [layer, idx] : own.map) {
    other[layer] = arena.alloc(DType::i32, {50, 2, 2});
    for (int64_t i = 0; i < 50 * 2; ++i) {  // block 0 alone
      other[layer].as<int32_t>()[2 * i] = 0;
      other[layer].as<int32_t>()[2 * i + 1] = -1;
    }
  }
  options.pinned = &other;
  const auto pinned = tiny::logits(m, docs, options);
  EXPECT_GT(tiny::max_diff(pinned, free), 1e-3);
  // While there is one block at most, there was nothing to choose.
  for (int64_t i = 0; i < 4 * 97; ++i) EXPECT_EQ(pinned[size_t(i)], free[size_t(i)]);
}

TEST(Model, PinnedSelectionsAreCheckedBeforeAnythingReadsThem) {
  Machine m(tiny::config());
  const Documents docs({50});
  const tiny::Pinned own(m, docs);
  auto with = [&](int layer, int64_t at, int32_t value) {
    SelectionMap map = own.map;
    Arena arena;
    map[layer] = arena.alloc(DType::i32, {50, 2, 2});
    std::copy_n(own.map.begin()->second.as<int32_t>(), 200, map[layer].as<int32_t>());
    map[layer].as<int32_t>()[at] = value;
    ForwardOptions options;
    options.pinned = &map;
    return refusal([&] { tiny::logits(m, docs, options); });
  };
  EXPECT_NE(with(0, 3, 1).find("selection.0"), std::string::npos);     // of the future
  EXPECT_NE(with(4, 150, -2).find("selection.4"), std::string::npos);  // no block
  EXPECT_NE(with(0, 199, 13).find("token 49"), std::string::npos);     // beyond the sequence
  EXPECT_NE(with(8, 0, 0).find("selection.8"), std::string::npos);     // a layer that nobody reads
  EXPECT_NE(with(1, 0, 0).find("selection.1"), std::string::npos);
  const int32_t first = own.map.at(0).as<int32_t>()[198];
  EXPECT_NE(with(0, 199, first).find("ascending"), std::string::npos);  // twice
}

TEST(Model, TraceShowsTheStreamTheScoresAndTheSelection) {
  Machine m(tiny::config());
  const Documents docs({50, 9});
  Arena arena;
  Trace trace;
  trace.arena = &arena;
  trace.want_hidden = trace.want_scores = trace.want_selection = true;
  const auto logits = tiny::logits(m, docs, {nullptr, &trace});
  ASSERT_EQ(trace.hidden.size(), 9u);
  ASSERT_EQ(trace.block_scores.size(), 2u);
  // The logits are the head of the norm of the last hidden state.
  const TensorView& h = trace.hidden.back();
  for (int64_t t = 0; t < 59; ++t) {
    double square = 0;
    for (int64_t i = 0; i < 64; ++i) square += std::pow(tiny::get(h, t * 64 + i), 2);
    const double r = 1 / std::sqrt(square / 64 + m.config.rms_norm_eps);
    double logit = 0;
    for (int64_t i = 0; i < 64; ++i)
      logit += tiny::get(h, t * 64 + i) * r * tiny::get(m.weights.norm.value, i) *
               tiny::get(m.weights.lm_head().value, 5 * 64 + i);
    EXPECT_NEAR(logits[size_t(t * 97 + 5)], logit, 1e-12);
  }
  // The selection is the two best scores of the token's blocks.
  for (const auto& [layer, of_layer] : trace.block_scores) {
    const TensorView& scores = of_layer;  // (a structured binding cannot be captured)
    ASSERT_EQ(scores.dim(2), 13);
    const TensorView& idx = trace.selection.at(layer);
    for (int64_t t = 0; t < 59; ++t)
      for (int64_t g = 0; g < 2; ++g) {
        const int64_t blocks = docs.batch.position[size_t(t)] / 4 + 1;
        std::vector<int32_t> order;
        for (int32_t j = 0; j < 13; ++j) {
          const double s = tiny::get(scores, (t * 2 + g) * 13 + j);
          if (j < blocks)
            order.push_back(j);
          else
            EXPECT_EQ(s, -INFINITY);
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return tiny::get(scores, (t * 2 + g) * 13 + a) > tiny::get(scores, (t * 2 + g) * 13 + b);
        });
        order.resize(size_t(std::min<int64_t>(2, blocks)));
        std::sort(order.begin(), order.end());
        order.resize(2, -1);
        EXPECT_EQ(idx.as<int32_t>()[(t * 2 + g) * 2], order[0]);
        EXPECT_EQ(idx.as<int32_t>()[(t * 2 + g) * 2 + 1], order[1]);
      }
  }
}

TEST(Model, RandomSelectionDependsOnStepRowAndSeed) {
  auto selections = [](int64_t seed, uint64_t step, int64_t row) {
    Machine m(tiny::config(AttentionKind::hysparse, [&](ModelConfig& c) {
      c.hysparse_selection = SelectionMode::random;
      c.hysparse_selection_seed = seed;
    }));
    Documents docs({50});
    docs.batch.step = step;
    docs.batch.row = {row};
    const tiny::Pinned p(m, docs);
    return tiny::values(p.map.at(4));
  };
  const auto base = selections(0, 0, 0);
  EXPECT_EQ(base, selections(0, 0, 0));
  EXPECT_NE(base, selections(1, 0, 0));
  EXPECT_NE(base, selections(0, 1, 0));
  EXPECT_NE(base, selections(0, 0, 1));
}

TEST(Model, StatisticsOfGatesAndSelections) {
  Machine m(tiny::config());
  const Documents docs({30, 20});
  const tiny::Pinned pinned(m, docs);
  Model::TrainStats stats;
  tiny::train(m, docs, {}, Recompute::layer, 1.0, &stats);
  ASSERT_EQ(stats.sparse_gate_mean.size(), 9u);
  ASSERT_EQ(stats.selection_overlap.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(std::isnan(stats.sparse_gate_mean[i]), i % 4 == 0) << i;
    EXPECT_EQ(std::isnan(stats.window_gate_mean[i]), i % 4 == 0) << i;
    EXPECT_EQ(std::isnan(stats.selection_overlap[i]), i != 0 && i != 4) << i;
  }
  double sum = 0, pairs = 0;
  for (int64_t t = 0; t < 50; ++t) {
    if (docs.batch.position[size_t(t)] == 0) continue;
    for (int64_t g = 0; g < 2; ++g) {
      const int32_t* now = pinned.map.at(4).as<int32_t>() + (t * 2 + g) * 2;
      const int32_t* before = now - 4;
      double chosen = 0, common = 0;
      for (int e = 0; e < 2; ++e) {
        if (now[e] < 0) continue;
        ++chosen;
        common += now[e] == before[0] || now[e] == before[1];
      }
      sum += common / chosen;
      ++pairs;
    }
  }
  EXPECT_NEAR(stats.selection_overlap[4], sum / pairs, 1e-12);

  // Closed gates show as closed.
  for (LayerWeights& w : m.weights.layers)
    if (w.sparse_gate)
      for (int64_t i = 0; i < w.sparse_gate.value.numel(); ++i) tiny::set(w.sparse_gate.value, i, 0);
  tiny::train(m, docs, {}, Recompute::none, 1.0, &stats);
  EXPECT_DOUBLE_EQ(stats.sparse_gate_mean[1], 0.5);
}

TEST(Model, TokensOutsideTheVocabularyAreRefused) {
  Machine m(tiny::config());
  for (int32_t bad : {-1, 97, 1 << 30}) {
    Documents docs({10});
    docs.tokens.view().as<int32_t>()[7] = bad;
    const std::string message = refusal([&] { tiny::logits(m, docs); });
    EXPECT_NE(message.find("token 7"), std::string::npos) << message;
    EXPECT_NE(message.find("0 to 96"), std::string::npos) << message;
  }
}

TEST(Weights, TwinsStartFromTheSameSharedTensors) {
  const ModelConfig c = tiny::config();
  for (const AttentionKind kind : {AttentionKind::full, AttentionKind::hybrid_swa, AttentionKind::window}) {
    const ModelConfig other = twin(c, kind);
    Weights a(c, build_layer_plan(c), {}), b(other, build_layer_plan(other), {});
    a.init_random(c, build_layer_plan(c), 5);
    b.init_random(other, build_layer_plan(other), 5);
    int shared = 0;
    for (Weight* w : a.all()) {
      const Weight* same = b.find(w->name);
      if (!same) continue;
      EXPECT_EQ(tiny::values(w->value), tiny::values(same->value)) << w->name;
      ++shared;
    }
    EXPECT_GE(shared, 9 * 9 + 3);
  }
}

TEST(Weights, InitialValuesAreThoseOfTheSpec) {
  ModelConfig c = tiny::config(AttentionKind::hysparse, [](ModelConfig& k) {
    k.attention_bias = k.qk_norm = true;
    k.initializer_range = 0.02;
  });
  const LayerPlan plan = build_layer_plan(c);
  Weights w(c, plan, {DType::f32, true}), wide(c, plan, {DType::f64, false}),
      narrow(c, plan, {DType::bf16, true}), other(c, plan, {});
  ThreadPool pool(3);
  w.init_random(c, plan, 5, &pool);
  wide.init_random(c, plan, 5);
  narrow.init_random(c, plan, 5);
  other.init_random(c, plan, 6);
  for (Weight* x : w.all()) {
    const auto v = tiny::values(x->value);
    double mean = 0, square = 0;
    for (double e : v) mean += e, square += e * e;
    mean /= static_cast<double>(v.size());
    const double deviation = std::sqrt(square / static_cast<double>(v.size()));
    const bool scaled =
        x->name.find("o_proj") != std::string::npos || x->name.find("down_proj") != std::string::npos;
    if (x->name.find("norm") != std::string::npos) {
      EXPECT_EQ(v, std::vector<double>(v.size(), 1.0)) << x->name;
    } else if (!x->decay) {  // sinks and biases
      EXPECT_EQ(tiny::max_abs(v), 0) << x->name;
    } else {
      const double expected = scaled ? 0.02 / std::sqrt(18.0) : 0.02;
      const double error = 5 / std::sqrt(static_cast<double>(v.size()));
      EXPECT_NEAR(deviation / expected, 1, error) << x->name;
      EXPECT_NEAR(mean / expected, 0, error) << x->name;
      EXPECT_NE(v, tiny::values(other.find(x->name)->value)) << x->name;
    }
    // The same values in every dtype, rounded once more in bf16.
    EXPECT_EQ(v, tiny::values(wide.find(x->name)->value)) << x->name;
    const Weight* n = narrow.find(x->name);
    EXPECT_EQ(v, tiny::values(n->master)) << x->name;
    for (size_t i = 0; i < v.size(); ++i) {
      const double half = n->value.dtype == DType::bf16
                              ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(v[i]))))
                              : v[i];
      ASSERT_EQ(tiny::get(n->value, static_cast<int64_t>(i)), half) << x->name;
    }
  }
}

TEST(Weights, WhatATensorIsFor) {
  const ModelConfig c = tiny::config();
  Weights w(c, build_layer_plan(c), {DType::bf16, true});
  EXPECT_EQ(w.find("model.layers.1.self_attn.sinks")->value.dtype, DType::f32);
  EXPECT_EQ(w.find("model.layers.1.self_attn.q_proj.weight")->value.dtype, DType::bf16);
  EXPECT_EQ(w.find("model.layers.1.self_attn.q_proj.weight")->master.dtype, DType::f32);
  EXPECT_TRUE(w.find("model.layers.1.self_attn.q_proj.weight")->decay);
  EXPECT_FALSE(w.find("model.layers.1.input_layernorm.weight")->decay);
  EXPECT_FALSE(w.find("model.layers.1.self_attn.sparse_sinks")->decay);
  EXPECT_EQ(w.find("model.layers.0.self_attn.sinks"), nullptr);
  EXPECT_EQ(w.find("nothing"), nullptr);
  // A master that moved reaches its compute copy.
  Weight* q = w.find("model.layers.1.self_attn.q_proj.weight");
  q->master.as<float>()[3] = 1.5f;
  const uint64_t version = q->version;
  w.master_to_value();
  EXPECT_EQ(tiny::get(q->value, 3), 1.5);
  EXPECT_NE(q->version, version);
}

}  // namespace
}  // namespace hysparse
