// Selection: ties, forced blocks, scores that are not numbers, the random control; and the gates.
#include <gtest/gtest.h>

#include <set>

#include "kernels/cpu/attn_select.h"
#include "unit/cpu/attn_case.h"

namespace hysparse::test {
namespace {

std::vector<int32_t> pick(const std::vector<float>& score, int64_t entries, attn::Forced forced = {}) {
  std::vector<int32_t> idx(static_cast<size_t>(entries), kPoisonIndex);
  std::vector<attn::Candidate> workspace(static_cast<size_t>(attn::candidates_for(entries)));
  attn::select_row(score.data(), static_cast<int64_t>(score.size()) - 1, entries, forced, idx.data(),
                   workspace.data());
  return idx;
}
using Idx = std::vector<int32_t>;

TEST(CpuSelect, TiesGoToTheLowerIndex) {
  EXPECT_EQ(pick({1, 1, 1, 1, 1}, 3), (Idx{0, 1, 2}));
  EXPECT_EQ(pick({1, 2, 1, 2, 1}, 3), (Idx{0, 1, 3}));
  EXPECT_EQ(pick({-0.0f, 0.0f, -0.0f}, 2), (Idx{0, 1}));
  EXPECT_EQ(pick({3, 1, 2}, 5), (Idx{0, 1, 2, -1, -1}));
  EXPECT_EQ(pick({7}, 1), (Idx{0}));
}

TEST(CpuSelect, WhatIsNotANumberIsNotChosen) {
  const float none = -std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(pick({none, 1, none, nan, 2}, 4), (Idx{1, 4, -1, -1}));
  EXPECT_EQ(pick({nan, none, none}, 2, {true, true}), (Idx{0, 2}));
}

TEST(CpuSelect, ForcedBlocksTakeEntriesOfTheBudget) {
  EXPECT_EQ(pick({0, 5, 4, 3, 0}, 3, {true, false}), (Idx{0, 1, 2}));
  EXPECT_EQ(pick({0, 5, 4, 3, 0}, 3, {false, true}), (Idx{1, 2, 4}));
  EXPECT_EQ(pick({0, 5, 4, 3, 0}, 3, {true, true}), (Idx{0, 1, 4}));
  EXPECT_EQ(pick({0, 5, 4, 3, 0}, 1, {true, true}), (Idx{0}));
  EXPECT_EQ(pick({0}, 2, {true, true}), (Idx{0, -1}));
}

// Long rows, where the candidates are cut down on the way, against the definition.
TEST(CpuSelect, LongRowsAgreeWithSorting) {
  Rng rng(5);
  for (const int64_t entries : {1, 2, 16, 100, 2048})
    for (const int64_t n : {1, 17, 100, 1000, 20000})
      for (const uint64_t values : {uint64_t(3), uint64_t(50), uint64_t(1) << 40}) {
        std::vector<float> score;
        for (int64_t i = 0; i < n; ++i)
          score.push_back(static_cast<float>(rng.below(values)) + (values < 10 ? 0.0f : float(i) * 1e-3f));
        std::vector<int32_t> order(static_cast<size_t>(n));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return score[size_t(a)] > score[size_t(b)]; });
        order.resize(static_cast<size_t>(std::min(n, entries)));
        std::sort(order.begin(), order.end());
        order.resize(static_cast<size_t>(entries), -1);
        EXPECT_EQ(pick(score, entries), order) << entries << " of " << n;
      }
}

TEST(CpuSelect, AgreesWithTheReference) {
  for (const int64_t block : {1, 7, 64})
    for (const bool forced : {false, true}) {
      AttnCase c({.sequences = {{1}, {300}, {40, 100}}}, DType::f32, 31, true);
      const int64_t blocks = (c.batch.max_kv_len() + block - 1) / block + 3;
      const Pair scores = c.input_acc({c.n(), 2, blocks});
      const Pair idx = c.output(DType::i32, {c.n(), 2, 5});
      c.run([&](int i, Runtime& rt) {
        const SelectBlocks s{c.batch, scores[i], block, forced, forced, idx[i]};
        i == 0 ? rt.ops.select_blocks(rt, s) : cpu_select_blocks(rt, s);
      });
      EXPECT_EQ(idx.got(), idx.ref());
    }
}

TEST(CpuSelect, RandomScoresAndSelection) {
  for (const int64_t block : {1, 16}) {
    AttnCase c({.sequences = {{1}, {150}, {10, 100}}}, DType::f32, 32, true);
    const int64_t blocks = (c.batch.max_kv_len() + block - 1) / block + 3;
    const Pair scores = c.output(DType::f32, {c.n(), 2, blocks});
    const Pair idx = c.output(DType::i32, {c.n(), 2, 6});
    const Pair o = c.output(DType::f32, {c.n(), 4, 16}), lse = c.output(DType::f32, {c.n(), 4});
    const Pair oracle = c.output(DType::f32, {c.n(), 2, blocks});
    c.run([&](int i, Runtime& rt) {
      const RandomScores r{c.batch, 99, 3, block, scores[i]};
      const AttentionSelect s{{c.batch, c.q[i], c.kv(i), c.scale(), o[i], lse[i], block, oracle[i]},
                              block,
                              true,
                              false,
                              true,
                              99,
                              3,
                              idx[i]};
      if (i == 0) {
        rt.ops.random_scores(rt, r);
        rt.ops.attention_select(rt, s);
      } else {
        cpu_random_scores(rt, r);
        cpu_attention_select(rt, s);
      }
    });
    EXPECT_EQ(scores.got(), scores.ref());
    EXPECT_EQ(idx.got(), idx.ref());
    EXPECT_TRUE(c.close("oracle scores beside a random selection", oracle));
    // Another seed chooses otherwise.
    const std::vector<double> first = idx.got();
    AttnCase::run_side(1, 2, [&](int, Runtime& rt) {
      cpu_attention_select(
          rt, {{c.batch, c.q[1], c.kv(1), c.scale(), o[1], lse[1]}, block, true, false, true, 98, 3, idx[1]});
    });
    EXPECT_NE(idx.got(), first);
  }
}

TEST(CpuGates, ForwardAndBackward) {
  at_every_level([] {
    for (const DType t : {DType::f32, DType::bf16})
      for (const int64_t dv : {1, 8, 40, 64})
        for (const bool channel : {false, true})
          for (const bool both : {false, true}) {
            AttnCase c({.sequences = {{67}}, .hq = 3, .hkv = 1}, t, 33, true);
            const int64_t width = channel ? 3 * dv : 3;
            const Pair a = c.input({67, 3, dv}), b = c.input({67, 3, dv}), d = c.input({67, 3, dv});
            const Pair ga = c.input_acc({67, width}, 5), gb = c.input_acc({67, width}, 40);
            const Pair out = c.output(t, {67, 3, dv}), da = c.output(t, {67, 3, dv}),
                       db = c.output(t, {67, 3, dv});
            const Pair dga = c.output(DType::f32, {67, width}), dgb = c.output(DType::f32, {67, width});
            const TensorView no;
            c.run([&](int i, Runtime& rt) {
              const GatedSumForward f{a[i], ga[i], both ? b[i] : no, both ? gb[i] : no, out[i]};
              const GatedSumBackward g{a[i],
                                       ga[i],
                                       both ? b[i] : no,
                                       both ? gb[i] : no,
                                       d[i],
                                       da[i],
                                       both ? db[i] : no,
                                       dga[i],
                                       both ? dgb[i] : no};
              if (i == 0) {
                rt.ops.gated_sum(rt, f);
                rt.ops.gated_sum_backward(rt, g);
              } else {
                cpu_gated_sum(rt, f);
                cpu_gated_sum_backward(rt, g);
              }
            });
            SCOPED_TRACE(fmt::format("{} dv {} channel {} both {}", name_of(t), dv, channel, both));
            EXPECT_TRUE(c.close("out", out, 16));
            EXPECT_TRUE(c.close("da", da, 16));
            EXPECT_TRUE(c.close("dgate_a", dga, 16));
            if (!both) {  // in place
              const std::vector<double> da_apart = da.got();
              AttnCase::run_side(1, 2, [&](int, Runtime& rt) {
                cpu_gated_sum_backward(rt, {a[1], ga[1], no, no, d[1], d[1], no, dga[1], no});
                cpu_gated_sum(rt, {a[1], ga[1], no, no, a[1]});
              });
              EXPECT_EQ(d.got(), da_apart);
              EXPECT_EQ(a.got(), out.got());
              continue;
            }
            EXPECT_TRUE(c.close("db", db, 16));
            EXPECT_TRUE(c.close("dgate_b", dgb, 16));
          }
  });
}

// Gates far out: exact 0 and 1, nothing that is not a number; a NaN is not hidden.
TEST(CpuGates, Saturate) {
  at_every_level([] {
    AttnCase c({.sequences = {{1}}, .hq = 6, .hkv = 1}, DType::f32);
    const double inf = kInf;
    const Pair a = c.of(DType::f32, {1, 6, 1}, {1, 1, 1, 1, 1, 1});
    const Pair gate = c.of(DType::f32, {1, 6}, {inf, -inf, 1e30, -1e30, 0, kNaN});
    const Pair out = c.output(DType::f32, {1, 6, 1});
    AttnCase::run_side(1, 1, [&](int, Runtime& rt) { cpu_gated_sum(rt, {a[1], gate[1], {}, {}, out[1]}); });
    const std::vector<double> got = out.got();
    EXPECT_EQ((std::vector<double>(got.begin(), got.end() - 1)), (std::vector<double>{1, 0, 1, 0, 0.5}));
    EXPECT_TRUE(std::isnan(got.back()));
  });
}

// One token a sequence takes the fused path: the same bits as the chain, whatever the threads.
TEST(CpuGates, FusedDecodingIsTheChain) {
  for (const auto kind : {KvView::Kind::contiguous, KvView::Kind::paged})
    for (const bool window : {true, false}) {
      AttnCase c(
          {.sequences = {{1, 0}, {1, 700}, {1, 63}}, .hq = 6, .hkv = 2, .d = 32, .dv = 32, .kind = kind},
          DType::bf16, 34);
      AttnCase ring({.sequences = {{1, 0}, {1, 700}, {1, 63}},
                     .hq = 6,
                     .hkv = 2,
                     .d = 32,
                     .dv = 32,
                     .kind = KvView::Kind::ring,
                     .ring_len = 40},
                    DType::bf16, 35);
      const Pair idx = c.selection(16, 8);
      const Pair sinks = c.input_acc({6}), gs = c.input_acc({3, 6}), gw = c.input_acc({3, 6});
      std::vector<std::vector<double>> results;
      for (const int threads : {0, 1, 2, 3}) {  // 0: the chain
        const Pair o = c.output(c.t, {3, 6, 32}), ow = c.output(c.t, {3, 6, 32}),
                   out = c.output(c.t, {3, 6, 32});
        const Pair lse = c.output(DType::f32, {3, 6}), lw = c.output(DType::f32, {3, 6});
        const SparseAttentionForward s{c.batch,   c.q[1],   c.kv(1), {idx[1], 16},
                                       c.scale(), sinks[1], o[1],    lse[1]};
        const WindowAttentionForward w{ring.batch, c.q[1], ring.kv(1), 40, c.scale(), sinks[1], ow[1], lw[1]};
        AttnCase::run_side(1, std::max(1, threads), [&](int, Runtime& rt) {
          if (threads > 0)
            return cpu_sparse_window_gated(rt, {s, window ? &w : nullptr, gs[1], gw[1], out[1]});
          cpu_sparse_attention(rt, s);
          if (window) cpu_window_attention(rt, w);
          cpu_gated_sum(rt,
                        {o[1], gs[1], window ? ow[1] : TensorView{}, window ? gw[1] : TensorView{}, out[1]});
        });
        std::vector<double> all = out.got();
        for (const Pair* p : {&o, &lse, &ow, &lw}) {
          if (!window && (p == &ow || p == &lw)) continue;
          const std::vector<double> more = p->got();
          all.insert(all.end(), more.begin(), more.end());
        }
        for (double x : all) ASSERT_FALSE(std::isnan(x));
        results.push_back(all);
        EXPECT_EQ(results.back(), results.front()) << threads << " threads";
      }
    }
}

}  // namespace
}  // namespace hysparse::test
