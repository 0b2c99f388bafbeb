// Attention over the cache: every path sees exactly the keys it should, whatever lies around them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "backends.h"
#include "base/rng.h"
#include "engine/paged_kv.h"

namespace hysparse {
namespace {

using tests::Backend;
using tests::epsilon;
using tests::load;
using tests::store;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Layer 0 lives in pages, layer 1 in a ring.
ModelConfig two_layers(int64_t query_heads, int64_t kv_heads, int64_t d, int64_t dv, int64_t window) {
  ModelConfig c;
  c.num_hidden_layers = 2;
  c.hidden_size = 64;
  c.num_attention_heads = query_heads;
  c.num_key_value_heads = kv_heads;
  c.head_dim = d;
  c.v_head_dim = dv;
  c.intermediate_size = 64;
  c.vocab_size = 16;
  c.sliding_window = window;
  c.hysparse_block_size = 64;
  c.hysparse_topk_tokens = 128;
  c.layer_types = {"full_attention", "hysparse_attention"};
  c.finalize("test");
  return c;
}

class CachePaths : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CachePaths, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// One head, all scores equal, no sink, V one-hot of the position: o is the row of attention weights.
TEST_P(CachePaths, AWindowIsWindowKeysOnEveryPath) {
  const DType t = GetParam();
  const int64_t n = 400, window = 128, span = 200;
  Backend backend(t);
  const ModelConfig c = two_layers(1, 1, 8, span, window);
  const LayerPlan plan = build_layer_plan(c);
  Tensor sinks(accumulation_dtype(t), {1});
  store(sinks, 0, -kInf);
  std::vector<std::vector<int64_t>> paths{{n}};
  for (const int64_t chunk : {1, 17, 64, 127, 128, 129, 256}) {
    paths.emplace_back();
    for (int64_t done = 0; done < n; done += chunk) paths.back().push_back(std::min(chunk, n - done));
  }
  for (const int64_t first : {int64_t(0), span})  // the half of the positions that V shows
    for (const auto& path : paths) {
      SCOPED_TRACE(testing::Message() << "chunks of " << path[0] << ", positions from " << first);
      PagedKvOptions o;
      o.max_tokens = n;
      o.dtype = t;
      o.poison = std::nan("");
      PagedKv kv(c, plan, o);
      int64_t past = 0;
      for (const int64_t count : path) {
        const ArenaScope scope(backend.scratch);
        RaggedBatch batch;
        batch.add_sequence(count, past);
        const Tensor q(t, {count, 1, 8}), k(t, {count, 1, 8}), v(t, {count, 1, span});
        const Tensor out(t, {count, 1, span}), lse(accumulation_dtype(t), {count, 1});
        for (int64_t i = 0; i < count; ++i)
          if (const int64_t at = past + i - first; at >= 0 && at < span) store(v, i * span + at, 1);
        kv.begin_step({0}, batch);
        kv.append(0, batch, k, v);
        backend.rt.ops.window_attention(backend.rt, {.batch = batch,
                                                     .q = q,
                                                     .kv = kv.append(1, batch, k, v),
                                                     .window = window,
                                                     .scale = 1,
                                                     .sinks = sinks,
                                                     .o = out,
                                                     .lse = lse});
        kv.commit();
        for (int64_t i = 0; i < count; ++i)
          for (int64_t e = 0; e < span; ++e) {
            const int64_t distance = past + i - (first + e);
            const double got = load(out, i * span + e);
            if (distance < 0 || distance >= window) {
              ASSERT_EQ(got, 0) << "query " << past + i << " distance " << distance;
            } else {
              const double weight = 1.0 / double(std::min(past + i + 1, window));
              ASSERT_NEAR(got, weight, 4 * epsilon(t) * weight)
                  << "query " << past + i << " distance " << distance;
            }
          }
        past += count;
      }
    }
}

// All true scores near -20, so that a stray zero score, or anything past the length, would dominate.
struct Scene {
  static constexpr int64_t kHq = 4, kHkv = 2, kD = 16, kDv = 8, kWindow = 128, kBlock = 64;
  Backend backend;
  ModelConfig config;
  LayerPlan plan;
  double scale = 0.25;
  std::vector<Tensor> q, k, v;  // a sequence each, all its tokens
  Tensor sinks;

  Scene(DType t, const std::vector<int64_t>& lengths)
      : backend(t),
        config(two_layers(kHq, kHkv, kD, kDv, kWindow)),
        plan(build_layer_plan(config)),
        sinks(accumulation_dtype(t), {kHq}) {
    Rng rng(11);
    for (const int64_t n : lengths) {
      q.emplace_back(t, std::initializer_list<int64_t>{n, kHq, kD});
      k.emplace_back(t, std::initializer_list<int64_t>{n, kHkv, kD});
      v.emplace_back(t, std::initializer_list<int64_t>{n, kHkv, kDv});
      // scale * q.k = 0.25 * 16 * -sqrt(5)^2 = -20, and some noise
      for (int64_t i = 0; i < q.back().view().numel(); ++i)
        store(q.back(), i, -std::sqrt(5.) + 0.2 * rng.normal());
      for (int64_t i = 0; i < k.back().view().numel(); ++i)
        store(k.back(), i, std::sqrt(5.) + 0.2 * rng.normal());
      for (int64_t i = 0; i < v.back().view().numel(); ++i) store(v.back(), i, rng.normal());
    }
    for (int64_t h = 0; h < kHq; ++h) store(sinks, h, h == 0 ? -kInf : -20 + rng.normal());
  }
  double score(size_t s, int64_t h, int64_t query, int64_t key) const {
    double sum = 0;
    for (int64_t e = 0; e < kD; ++e)
      sum += load(q[s], (query * kHq + h) * kD + e) * load(k[s], (key * kHkv + h / 2) * kD + e);
    return sum * scale;
  }
  // Softmax attention of one query head over the keys for which `sees` holds, and its lse.
  template <class Sees>
  double attend(size_t s, int64_t h, int64_t query, double sink, Sees sees, std::vector<double>& out) const {
    out.assign(size_t(kDv), 0);
    double sum = std::exp(sink + 20);
    for (int64_t p = 0; p <= query; ++p) {
      if (!sees(p)) continue;
      const double w = std::exp(score(s, h, query, p) + 20);
      sum += w;
      for (int64_t e = 0; e < kDv; ++e) out[size_t(e)] += w * load(v[s], (p * kHkv + h / 2) * kDv + e);
    }
    for (double& x : out) x = sum > 0 ? x / sum : 0;
    return std::log(sum) - 20;
  }
};

TEST_P(CachePaths, WhatLiesPastTheLengthNeverMatters) {
  const DType t = GetParam();
  const DType a = accumulation_dtype(t);
  const std::vector<int64_t> lengths{1, 2, 63, 64, 65, 127, 128, 129, 191, 193};
  Scene scene(t, lengths);
  constexpr int64_t kHq = Scene::kHq, kHkv = Scene::kHkv, kD = Scene::kD, kDv = Scene::kDv;
  const auto sequences = int64_t(lengths.size());
  const double tolerance = 40 * epsilon(t), tie = 200 * epsilon(a);

  for (const double poison : {std::nan(""), 1e4})
    for (const int64_t entries : {1, 2, 100})
      for (const bool decode : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << "poison " << poison << " top-k " << entries << " decode " << decode);
        PagedKvOptions options;
        options.max_tokens = 200;
        options.max_sequences = sequences;
        options.dtype = t;
        options.poison = poison;
        PagedKv kv(scene.config, scene.plan, options);
        // Decode: all but the last token of each sequence first (none of those of length 1).
        std::vector<int64_t> past(lengths.size(), 0);
        for (int round = decode ? 0 : 1; round < 2; ++round) {
          const ArenaScope scope(scene.backend.rt.scratch);
          std::vector<int> ids;
          RaggedBatch batch;
          for (size_t s = 0; s < lengths.size(); ++s) {
            const int64_t count = round == 0 ? lengths[s] - 1 : lengths[s] - past[s];
            if (count == 0) continue;
            ids.push_back(int(s));
            batch.add_sequence(count, past[s]);
          }
          const int64_t n = batch.tokens();
          const Tensor q(t, {n, kHq, kD}), k(t, {n, kHkv, kD}), v(t, {n, kHkv, kDv});
          const auto gather = [&](const Tensor& from, const Tensor& to, size_t b, size_t s) {
            const TensorView src = from.view().rows(past[s], past[s] + batch.q_len(int64_t(b)));
            host_memory().copy(to.view().rows(batch.cu_q[b], batch.cu_q[b + 1]).data, src.data, src.bytes());
          };
          for (size_t b = 0; b < ids.size(); ++b) {
            gather(scene.q[size_t(ids[b])], q, b, size_t(ids[b]));
            gather(scene.k[size_t(ids[b])], k, b, size_t(ids[b]));
            gather(scene.v[size_t(ids[b])], v, b, size_t(ids[b]));
          }
          kv.begin_step(ids, batch);
          const KvView pages = kv.append(0, batch, k, v), ring = kv.append(1, batch, k, v);
          const int64_t blocks = (batch.max_kv_len() + Scene::kBlock - 1) / Scene::kBlock;
          const Tensor o(t, {n, kHq, kDv}), sparse(t, {n, kHq, kDv}), windowed(t, {n, kHq, kDv});
          const Tensor lse(a, {n, kHq}), lse_s(a, {n, kHq}), lse_w(a, {n, kHq});
          const Tensor scores(a, {n, kHkv, blocks}), idx(DType::i32, {n, kHkv, entries});
          Runtime& rt = scene.backend.rt;
          rt.ops.attention(rt, {.batch = batch,
                                .q = q,
                                .kv = pages,
                                .scale = scene.scale,
                                .o = o,
                                .lse = lse,
                                .score_block = Scene::kBlock,
                                .block_scores = scores});
          rt.ops.select_blocks(rt, {.batch = batch,
                                    .block_scores = scores,
                                    .block = Scene::kBlock,
                                    .force_first = false,
                                    .force_diagonal = false,
                                    .idx = idx});
          rt.ops.sparse_attention(rt, {.batch = batch,
                                       .q = q,
                                       .kv = pages,
                                       .selection = {idx, Scene::kBlock},
                                       .scale = scene.scale,
                                       .sinks = scene.sinks,
                                       .o = sparse,
                                       .lse = lse_s});
          rt.ops.window_attention(rt, {.batch = batch,
                                       .q = q,
                                       .kv = ring,
                                       .window = Scene::kWindow,
                                       .scale = scene.scale,
                                       .sinks = scene.sinks,
                                       .o = windowed,
                                       .lse = lse_w});
          kv.commit();
          kv.check();

          std::vector<double> want;
          for (size_t b = 0; b < ids.size(); ++b) {
            const auto s = size_t(ids[b]);
            for (int64_t row = batch.cu_q[b]; row < batch.cu_q[b + 1]; ++row) {
              const int64_t at = batch.position[size_t(row)];
              std::map<int64_t, double> best;  // block log-scores of the row's KV head
              for (int64_t h = 0; h < kHq; ++h) {
                SCOPED_TRACE(testing::Message()
                             << "length " << lengths[s] << " position " << at << " head " << h);
                const auto same = [&](const Tensor& got, const Tensor& got_lse, double want_lse) {
                  EXPECT_NEAR(load(got_lse, row * kHq + h), want_lse, tie);
                  for (int64_t e = 0; e < kDv; ++e)
                    EXPECT_NEAR(load(got, (row * kHq + h) * kDv + e), want[size_t(e)], tolerance);
                };
                const double full = scene.attend(
                    s, h, at, -kInf, [](int64_t) { return true; }, want);
                same(o, lse, full);
                if (h % 2 == 0) best.clear();
                for (int64_t p = 0; p <= at; ++p) {
                  const double x = scene.score(s, h, at, p) - full;
                  const auto [it, fresh] = best.emplace(p / Scene::kBlock, x);
                  if (!fresh) it->second = std::max(it->second, x);
                }
                const double sink = load(scene.sinks, h);
                std::map<int64_t, bool> chosen;
                for (int64_t e = 0; e < entries; ++e) {
                  const int32_t block = idx.view().as<int32_t>()[(row * kHkv + h / 2) * entries + e];
                  if (block >= 0) chosen[block] = true;
                }
                const double sparse_lse = scene.attend(
                    s, h, at, sink, [&](int64_t p) { return chosen.count(p / Scene::kBlock) > 0; }, want);
                same(sparse, lse_s, sparse_lse);
                if (entries == 100) {
                  EXPECT_NEAR(sparse_lse, std::log(std::exp(full + 20) + std::exp(sink + 20)) - 20, 1e-9);
                }
                const double window_lse = scene.attend(
                    s, h, at, sink, [&](int64_t p) { return at - p < Scene::kWindow; }, want);
                same(windowed, lse_w, window_lse);
                if (h % 2 == 0) continue;
                // The selection is a best one, and complete.
                EXPECT_EQ(int64_t(chosen.size()), std::min<int64_t>(entries, at / Scene::kBlock + 1));
                double worst_in = kInf, best_out = -kInf;
                for (int64_t j = 0; j <= at / Scene::kBlock; ++j) {
                  EXPECT_NEAR(load(scores, (row * kHkv + h / 2) * blocks + j), best[j], tie);
                  if (chosen.count(j))
                    worst_in = std::min(worst_in, best[j]);
                  else
                    best_out = std::max(best_out, best[j]);
                }
                EXPECT_GE(worst_in, best_out - tie);
              }
              if (testing::Test::HasFailure()) return;
            }
            past[s] = batch.kv_len(int64_t(b));
          }
        }
      }
}

}  // namespace
}  // namespace hysparse
