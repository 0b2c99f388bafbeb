// The attention forwards against the reference: every level, both dtypes, every key layout, every path.
#include <gtest/gtest.h>

#include "unit/cpu/attn_case.h"

namespace hysparse::test {
namespace {

constexpr auto kContiguous = KvView::Kind::contiguous;
constexpr auto kPaged = KvView::Kind::paged;
constexpr auto kRing = KvView::Kind::ring;

// Full attention with scores, and attention_select with and without scores asked for.
void check_full(const AttnShape& shape, DType t, int64_t block, int64_t entries, bool gaps = false) {
  AttnCase c(shape, t, 11, gaps);
  SCOPED_TRACE(fmt::format("{} {} block {}", name_of(t), c.shape.text(), block));
  const int64_t blocks = (c.batch.max_kv_len() + block - 1) / block + 2;
  const Pair o = c.output(t, {c.n(), shape.hq, shape.dv});
  const Pair lse = c.output(DType::f32, {c.n(), shape.hq});
  const Pair scores = c.output(DType::f32, {c.n(), shape.hkv, blocks});
  const Pair idx = c.output(DType::i32, {c.n(), shape.hkv, entries});
  const auto forward = [&](int i) {
    return AttentionForward{c.batch, c.q[i], c.kv(i), c.scale(), o[i], lse[i], block, scores[i]};
  };
  c.run(
      [&](int i, Runtime& rt) { i == 0 ? rt.ops.attention(rt, forward(i)) : cpu_attention(rt, forward(i)); });
  EXPECT_TRUE(c.close("o", o));
  EXPECT_TRUE(c.close("lse", lse));
  EXPECT_TRUE(c.close("scores", scores));
  const std::vector<double> plain = o.got(), plain_scores = scores.got();

  // Selection: what the reference picks from the kernel's own scores.
  assign(scores[0], scores.got());
  c.run([&](int i, Runtime& rt) {
    if (i == 0) return rt.ops.select_blocks(rt, {c.batch, scores[0], block, false, false, idx[0]});
    AttentionSelect select{forward(1), block, false, false, false, 0, 0, idx[1]};
    cpu_attention_select(rt, select);
  });
  EXPECT_EQ(idx.got(), idx.ref());
  EXPECT_EQ(o.got(), plain);
  EXPECT_EQ(scores.got(), plain_scores);
  idx.poison();
  assign(idx[0], idx.ref());
  AttnCase::run_side(1, 3, [&](int, Runtime& rt) {
    AttentionSelect select{forward(1), block, false, false, false, 0, 0, idx[1]};
    select.attention.block_scores = {};
    cpu_attention_select(rt, select);
  });
  EXPECT_EQ(o.got(), plain);
}

void check_window(const AttnShape& shape, DType t, int64_t window, bool sinks, bool gaps = false) {
  AttnCase c(shape, t, 12, gaps);
  SCOPED_TRACE(fmt::format("{} {} window {}", name_of(t), c.shape.text(), window));
  const Pair o = c.output(t, {c.n(), shape.hq, shape.dv});
  const Pair lse = c.output(DType::f32, {c.n(), shape.hq});
  const Pair sink = c.input_acc({shape.hq});
  c.run([&](int i, Runtime& rt) {
    const WindowAttentionForward f{
        c.batch, c.q[i], c.kv(i), window, c.scale(), sinks ? sink[i] : TensorView{}, o[i], lse[i]};
    i == 0 ? rt.ops.window_attention(rt, f) : cpu_window_attention(rt, f);
  });
  EXPECT_TRUE(c.close("o", o));
  EXPECT_TRUE(c.close("lse", lse));
}

void check_sparse(const AttnShape& shape, DType t, int64_t block, int64_t entries, bool sinks,
                  bool everything = false, bool gaps = false) {
  AttnCase c(shape, t, 13, gaps);
  SCOPED_TRACE(fmt::format("{} {} block {} entries {}", name_of(t), c.shape.text(), block, entries));
  const Pair o = c.output(t, {c.n(), shape.hq, shape.dv});
  const Pair lse = c.output(DType::f32, {c.n(), shape.hq});
  const Pair sink = c.input_acc({shape.hq});
  const Pair idx = c.selection(block, entries, everything);
  c.run([&](int i, Runtime& rt) {
    const SparseAttentionForward f{
        c.batch, c.q[i], c.kv(i), {idx[i], block}, c.scale(), sinks ? sink[i] : TensorView{}, o[i], lse[i]};
    i == 0 ? rt.ops.sparse_attention(rt, f) : cpu_sparse_attention(rt, f);
  });
  EXPECT_TRUE(c.close("o", o));
  EXPECT_TRUE(c.close("lse", lse));
}

TEST(CpuAttention, FullAtEveryLevel) {
  at_every_level([] {
    for (const DType t : {DType::f32, DType::bf16}) {
      check_full({.sequences = {{1}, {2}, {17}, {130}, {63}}, .d = 24, .dv = 40}, t, 16, 3);
      check_full(
          {.sequences = {{5, 60}, {1, 127}, {64, 64}}, .hq = 6, .hkv = 2, .d = 64, .dv = 64, .kind = kPaged},
          t, 64, 2, true);
    }
  });
}

TEST(CpuAttention, FullBlocksOfAnySize) {
  for (const int64_t block : {1, 2, 3, 4, 5, 8, 16, 20, 33, 48, 64, 100, 128, 1000})
    check_full({.sequences = {{150}, {7, 30}, {1, 200}}, .d = 8, .dv = 8}, DType::f32, block, 4);
}

TEST(CpuAttention, FullHeadsAndDims) {
  for (const auto& [hq, hkv] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {3, 1}, {4, 4}, {7, 1}, {28, 4}, {16, 1}})
    check_full({.sequences = {{70}, {3, 70}}, .hq = hq, .hkv = hkv, .d = 32, .dv = 24}, DType::f32, 16, 3);
  for (const int64_t d : {8, 40, 72, 80, 96, 128, 192, 256})
    check_full({.sequences = {{65}}, .d = d, .dv = d == 192 ? 128 : d}, DType::bf16, 64, 3);
}

// Few queries after a long past: the keys are cut into chunks.
TEST(CpuAttention, FullSplitsALongPast) {
  for (const auto kind : {kContiguous, kPaged})
    for (const int64_t block : {1, 48, 64, 5000})
      check_full({.sequences = {{1, 4500}, {3, 6200}, {2, 40}},
                  .d = 16,
                  .dv = 16,
                  .kind = kind,
                  .page_size = block * (block < 48 ? 64 : 1)},
                 DType::f32, block, 5);
}

TEST(CpuAttention, WindowAtEveryLevel) {
  at_every_level([] {
    for (const DType t : {DType::f32, DType::bf16}) {
      check_window({.sequences = {{1}, {200}, {33}}, .d = 16, .dv = 24}, t, 20, true);
      check_window({.sequences = {{5, 60}, {1, 127}, {64, 3}}, .kind = kRing, .ring_len = 41}, t, 40, true,
                   true);
    }
  });
}

TEST(CpuAttention, WindowOfAnySize) {
  for (const int64_t window : {1, 2, 31, 32, 33, 64, 128, 256, 257, 1000}) {
    check_window({.sequences = {{300}, {1}, {2, 500}, {40, 300}}}, DType::f32, window, false);
    check_window({.sequences = {{1, 500}, {70, 90}}, .kind = kPaged}, DType::f32, window, true);
    check_window({.sequences = {{1, 500}, {70, 90}, {1, 0}, {300, 4}}, .kind = kRing, .ring_len = window + 3},
                 DType::f32, window, true);
  }
}

TEST(CpuAttention, SparseAtEveryLevel) {
  at_every_level([] {
    for (const DType t : {DType::f32, DType::bf16})
      for (const int64_t block : {4, 16, 64}) {
        check_sparse({.sequences = {{1}, {200}, {33}}, .d = 24, .dv = 40}, t, block, 3, true);
        check_sparse({.sequences = {{5, 60}, {1, 127}, {64, 300}}, .hq = 6, .kind = kPaged}, t, block, 4,
                     false, false, true);
      }
  });
}

TEST(CpuAttention, SparseBlocksOfAnySize) {
  for (const int64_t block : {1, 2, 7, 15, 16, 17, 24, 63, 64, 65, 96, 128, 200})
    for (const bool everything : {false, true})
      check_sparse({.sequences = {{210}, {9, 100}, {1, 333}, {1}}, .hq = 3, .hkv = 1}, DType::f32, block, 6,
                   true, everything);
}

TEST(CpuAttention, SparseTokenLevelBudget) {
  check_sparse({.sequences = {{2, 2500}, {1, 3000}}}, DType::f32, 1, 2048, true);
}

// A ring that still holds everything serves any attention.
TEST(CpuAttention, WholeRing) {
  check_full({.sequences = {{40, 30}, {1, 50}}, .kind = kRing, .ring_len = 50}, DType::f32, 16, 3);
  check_sparse({.sequences = {{40, 30}, {1, 50}}, .kind = kRing, .ring_len = 50}, DType::f32, 16, 3, true);
}

TEST(CpuAttention, LargeLogits) {
  AttnShape shape{.sequences = {{200}}, .d = 64, .dv = 64};
  shape.sigma = 30;  // |logit| up to about 1e4
  for (const DType t : {DType::f32, DType::bf16}) {
    check_full(shape, t, 16, 4);
    check_window(shape, t, 50, true);
    check_sparse(shape, t, 16, 4, true);
  }
}

TEST(CpuAttention, BitEqualOnAnyThreadCount) {
  AttnCase c({.sequences = {{500}, {1, 5000}, {40, 60}}, .hq = 4, .hkv = 1, .d = 32, .dv = 32}, DType::f32);
  const Pair idx = c.output(DType::i32, {c.n(), 1, 4});
  std::vector<std::vector<double>> first;
  for (const int threads : {1, 2, 3, 4}) {
    std::vector<Pair> out;
    for (int i = 0; i < 3; ++i) {
      out.push_back(c.output(DType::f32, {c.n(), 4, 32}));
      out.push_back(c.output(DType::f32, {c.n(), 4}));
    }
    idx.poison();
    AttnCase::run_side(1, threads, [&](int, Runtime& rt) {
      cpu_attention_select(
          rt,
          {{c.batch, c.q[1], c.kv(1), c.scale(), out[0][1], out[1][1]}, 64, true, true, false, 0, 0, idx[1]});
      cpu_sparse_attention(rt, {c.batch, c.q[1], c.kv(1), {idx[1], 64}, c.scale(), {}, out[2][1], out[3][1]});
      cpu_window_attention(rt, {c.batch, c.q[1], c.kv(1), 64, c.scale(), {}, out[4][1], out[5][1]});
    });
    std::vector<std::vector<double>> got{idx.got()};
    for (const Pair& p : out) got.push_back(p.got());
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace hysparse::test
