// The attention backwards against the reference. o and lse come from the reference forward, so that only the
// backward is judged; dk and dv start dirty.
#include <gtest/gtest.h>

#include "unit/cpu/attn_case.h"

namespace hysparse::test {
namespace {

enum class Kind { full, window, sparse };

struct Grads {
  Pair dq, dk, dv, dsinks;
};

struct Options {
  Kind kind = Kind::full;
  int64_t window = 0, block = 0, entries = 0;
  bool sinks = false, everything = false, gaps = false;
  std::vector<int> threads{2};
};

void check(const AttnShape& shape, DType t, const Options& x) {
  AttnCase c(shape, t, 21, x.gaps);
  SCOPED_TRACE(fmt::format("{} {} kind {} window {} block {} entries {}", name_of(t), shape.text(),
                           int(x.kind), x.window, x.block, x.entries));
  const Pair sink = c.input_acc({shape.hq});
  const Pair idx =
      x.kind == Kind::sparse ? c.selection(x.block, x.entries, x.everything) : c.selection(64, 1);
  const auto sinks = [&](int i) { return x.sinks ? sink[i] : TensorView{}; };
  // Forward on the reference, rounded to what the kernel is given.
  const Pair o = c.output(t, {c.n(), shape.hq, shape.dv});
  const Pair lse = c.output(DType::f32, {c.n(), shape.hq});
  AttnCase::run_side(0, 1, [&](int i, Runtime& rt) {
    if (x.kind == Kind::full)
      rt.ops.attention(rt, {c.batch, c.q[i], c.kv(i), c.scale(), o[i], lse[i]});
    else if (x.kind == Kind::window)
      rt.ops.window_attention(rt, {c.batch, c.q[i], c.kv(i), x.window, c.scale(), sinks(i), o[i], lse[i]});
    else
      rt.ops.sparse_attention(
          rt, {c.batch, c.q[i], c.kv(i), {idx[i], x.block}, c.scale(), sinks(i), o[i], lse[i]});
  });
  for (const Pair* p : {&o, &lse}) {
    std::vector<double> rounded = p->ref();
    for (double& e : rounded) e = round_to((*p)[1].dtype, e);
    p->set(rounded);
  }
  const Pair d_o = c.input({c.n(), shape.hq, shape.dv});
  const Pair dq = c.output(t, {c.n(), shape.hq, shape.d});
  const Pair dk = c.input_acc({c.kv_rows(), shape.hkv, shape.d});
  const Pair dv = c.input_acc({c.kv_rows(), shape.hkv, shape.dv});
  const Pair dsinks = c.input_acc({shape.hq});
  const std::vector<double> dk0 = dk.ref(), dv0 = dv.ref(), ds0 = dsinks.ref();
  const auto backward = [&](int i, Runtime& rt) {
    const TensorView ds = x.sinks ? dsinks[i] : TensorView{};
    if (x.kind == Kind::full) {
      const AttentionBackward b{c.batch, c.q[i], c.kv(i), c.scale(), o[i],
                                lse[i],  d_o[i], dq[i],   dk[i],     dv[i]};
      i == 0 ? rt.ops.attention_backward(rt, b) : cpu_attention_backward(rt, b);
    } else if (x.kind == Kind::window) {
      const WindowAttentionBackward b{c.batch, c.q[i], c.kv(i), x.window, c.scale(), sinks(i), o[i],
                                      lse[i],  d_o[i], dq[i],   dk[i],    dv[i],     ds};
      i == 0 ? rt.ops.window_attention_backward(rt, b) : cpu_window_attention_backward(rt, b);
    } else {
      const SparseAttentionBackward b{
          c.batch, c.q[i], c.kv(i), {idx[i], x.block}, c.scale(), sinks(i), o[i], lse[i], d_o[i], dq[i],
          dk[i],   dv[i],  ds};
      i == 0 ? rt.ops.sparse_attention_backward(rt, b) : cpu_sparse_attention_backward(rt, b);
    }
  };
  AttnCase::run_side(0, 1, backward);
  std::vector<std::vector<double>> first;
  for (const int threads : x.threads) {
    assign(dk[1], dk0);
    assign(dv[1], dv0);
    assign(dsinks[1], ds0);
    AttnCase::run_side(1, threads, backward);
    const std::vector<std::vector<double>> got{dq.got(), dk.got(), dv.got(), dsinks.got()};
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << threads << " threads";
  }
  EXPECT_TRUE(c.close("dq", dq));
  EXPECT_TRUE(c.close("dk", dk));
  EXPECT_TRUE(c.close("dv", dv));
  EXPECT_TRUE(c.close("dsinks", dsinks));
  // Keys that nobody saw (their dv stands as it was in the reference) keep their bits.
  const std::vector<double> v_ref = dv.ref(), k_got = dk.got(), v_got = dv.got();
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y, int64_t row,
                       int64_t width) {
    return std::equal(x.begin() + row * width, x.begin() + (row + 1) * width, y.begin() + row * width);
  };
  for (int64_t row = 0; row < c.kv_rows() * shape.hkv; ++row) {
    if (!same(v_ref, dv0, row, shape.dv)) continue;
    EXPECT_TRUE(same(v_got, dv0, row, shape.dv)) << "dv row " << row;
    EXPECT_TRUE(same(k_got, dk0, row, shape.d)) << "dk row " << row;
  }
}

TEST(CpuAttentionBackward, AtEveryLevel) {
  at_every_level([] {
    for (const DType t : {DType::f32, DType::bf16}) {
      const AttnShape shape{.sequences = {{1}, {2}, {150}, {63}}, .hq = 6, .d = 24, .dv = 40};
      check(shape, t, {.gaps = true});
      check(shape, t, {.kind = Kind::window, .window = 20, .sinks = true, .gaps = true});
      for (const int64_t block : {4, 16, 64})
        check(shape, t, {.kind = Kind::sparse, .block = block, .entries = 3, .sinks = true, .gaps = true});
    }
  });
}

// Few long sequences are cut into pieces with partial copies of dk and dv.
TEST(CpuAttentionBackward, PiecesAndThreads) {
  for (const AttnShape& shape :
       {AttnShape{.sequences = {{1300}}, .hq = 2, .hkv = 1, .d = 8, .dv = 8},
        AttnShape{.sequences = {{700}, {5}, {300, 40}}, .hq = 4, .hkv = 2, .d = 8, .dv = 16}}) {
    check(shape, DType::f32, {.threads = {1, 2, 3, 4}});
    check(shape, DType::f32, {.kind = Kind::window, .window = 50, .sinks = true, .threads = {1, 2, 4}});
    check(shape, DType::f32, {.kind = Kind::window, .window = 400, .threads = {1, 3}});
    check(shape, DType::f32,
          {.kind = Kind::sparse, .block = 16, .entries = 5, .sinks = true, .threads = {1, 2, 4}});
    check(shape, DType::f32, {.kind = Kind::sparse, .block = 3, .entries = 5, .threads = {1, 2}});
    check(shape, DType::f32, {.kind = Kind::sparse, .block = 100, .entries = 2, .threads = {1, 2}});
  }
}

TEST(CpuAttentionBackward, HeadsAndDims) {
  for (const auto& [hq, hkv] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 1}, {4, 4}, {7, 1}, {28, 4}, {16, 1}})
    for (const int64_t d : {8, 32, 72, 96, 192}) {
      const AttnShape shape{.sequences = {{70}}, .hq = hq, .hkv = hkv, .d = d, .dv = d == 192 ? 128 : d};
      check(shape, DType::f32, {});
      check(shape, DType::f32, {.kind = Kind::window, .window = 33, .sinks = true});
      check(shape, DType::f32, {.kind = Kind::sparse, .block = 16, .entries = 3, .sinks = true});
    }
}

// An index list of all blocks is dense attention, whatever the head shape.
TEST(CpuAttentionBackward, AllBlocksAndFewBlocksForEveryHeadShape) {
  for (const auto& [hq, hkv] : std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {4, 2}, {7, 1}, {28, 4}})
    for (const int64_t d : {32, 64, 72, 80, 96, 128}) {
      const AttnShape shape{.sequences = {{90}}, .hq = hq, .hkv = hkv, .d = d, .dv = d};
      check(shape, DType::f32,
            {.kind = Kind::sparse, .block = 16, .entries = 6, .sinks = true, .everything = true});
      check(shape, DType::bf16, {.kind = Kind::sparse, .block = 16, .entries = 2, .sinks = true});
    }
}

TEST(CpuAttentionBackward, WindowsAndBlocksOfAnySize) {
  const AttnShape shape{.sequences = {{300}, {1}, {70, 9}}};
  for (const int64_t window : {1, 2, 32, 33, 64, 128, 256, 257, 1000})
    check(shape, DType::f32, {.kind = Kind::window, .window = window, .sinks = true});
  for (const int64_t block : {1, 2, 7, 15, 16, 17, 24, 63, 64, 65, 128, 200})
    for (const bool everything : {false, true})
      check(shape, DType::f32,
            {.kind = Kind::sparse, .block = block, .entries = 6, .sinks = true, .everything = everything});
}

}  // namespace
}  // namespace hysparse::test
