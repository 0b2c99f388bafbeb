// Random shapes, small and odd, through every attention operation: nothing outside its own memory is touched
// (under AddressSanitizer), and the thread count changes no bit.
#include <gtest/gtest.h>

#include "unit/cpu/attn_case.h"

namespace hysparse::test {
namespace {

AttnShape random_shape(Rng& rng, int64_t block, int64_t window) {
  const auto pick = [&](std::vector<int64_t> list) { return list[rng.below(list.size())]; };
  AttnShape shape;
  const int64_t r = int64_t(rng.below(16)) + 1;
  shape.hkv = int64_t(rng.below(3)) + 1;
  shape.hq = r * shape.hkv;
  shape.d = pick({8, 16, 24, 32});
  shape.dv = rng.below(3) == 0 ? pick({8, 16, 24, 40}) : shape.d;
  shape.kind = std::vector{KvView::Kind::contiguous, KvView::Kind::paged, KvView::Kind::ring}[rng.below(3)];
  shape.page_size = block * pick({1, 2, 3, 5});
  const bool decoding = rng.below(4) == 0;
  int64_t longest = 1;
  for (uint64_t i = 0, count = rng.below(4) + 1; i < count; ++i) {
    Lengths l{decoding ? 1 : int64_t(rng.below(std::vector<uint64_t>{2, 20, 70, 200}[rng.below(4)])),
              rng.below(2) == 0 ? 0 : int64_t(rng.below(200))};
    shape.sequences.push_back(l);
    longest = std::max(longest, l.q + l.past);
  }
  if (shape.sequences[0].q == 0) shape.sequences[0].q = 1;
  shape.ring_len = std::max(longest, window);
  return shape;
}

void sweep(uint64_t seed) {
  Rng rng(seed);
  const int64_t block = std::vector<int64_t>{1, 2, 4, 8, 16, 24, 64, 100}[rng.below(8)];
  const int64_t window = int64_t(rng.below(rng.below(2) == 0 ? 300 : 30)) + 1;
  const AttnShape shape = random_shape(rng, block, window);
  const DType t = rng.below(2) == 0 ? DType::f32 : DType::bf16;
  const int64_t entries = int64_t(rng.below(6)) + 1;
  AttnCase c(shape, t, seed, rng.below(2) == 0);
  SCOPED_TRACE(fmt::format("seed {} {} {} window {} block {} entries {}", seed, name_of(t), shape.text(),
                           window, block, entries));
  const bool sinks = rng.below(2) == 0, force = rng.below(2) == 0;
  const Pair sink = c.input_acc({shape.hq}), idx = c.output(DType::i32, {c.n(), shape.hkv, entries});
  const Pair random_idx = c.selection(block, entries);
  const Pair d_o = c.input({c.n(), shape.hq, shape.dv});
  const TensorView s = sinks ? sink[1] : TensorView{};
  std::vector<std::vector<double>> first;
  for (const int threads : {1, 2, 4}) {
    std::vector<Pair> out;
    const auto output = [&](DType type, const std::vector<int64_t>& dims) {
      out.push_back(c.output(type, dims));
      return out.back()[1];
    };
    const auto zeros = [&](const std::vector<int64_t>& dims) {
      int64_t n = 1;
      for (const int64_t d : dims) n *= d;
      out.push_back(c.of(DType::f32, dims, std::vector<double>(size_t(n), 0.0)));
      return out.back()[1];
    };
    AttnCase::run_side(1, threads, [&](int, Runtime& rt) {
      const int64_t n = c.n(), hq = shape.hq, hkv = shape.hkv;
      const KvView& kv = c.kv(1);
      const double scale = c.scale();
      const auto q = c.q[1];
      TensorView o[4], lse[4];
      for (int i = 0; i < 4; ++i) {
        o[i] = output(t, {n, hq, shape.dv});
        lse[i] = output(DType::f32, {n, hq});
      }
      idx.poison();
      cpu_attention_select(rt,
                           {{c.batch, q, kv, scale, o[0], lse[0]}, block, force, force, false, 0, 0, idx[1]});
      cpu_attention(rt, {c.batch, q, kv, scale, o[0], lse[0]});
      cpu_window_attention(rt, {c.batch, q, kv, window, scale, s, o[1], lse[1]});
      cpu_sparse_attention(rt, {c.batch, q, kv, {random_idx[1], block}, scale, s, o[2], lse[2]});
      cpu_sparse_attention(rt, {c.batch, q, kv, {idx[1], block}, scale, s, o[3], lse[3]});
      if (shape.kind != KvView::Kind::contiguous) return;
      const auto dk = [&] { return zeros({c.kv_rows(), hkv, shape.d}); };
      const auto dv = [&] { return zeros({c.kv_rows(), hkv, shape.dv}); };
      const auto dq = [&] { return output(t, {n, hq, shape.d}); };
      const auto ds = [&] { return sinks ? zeros({hq}) : TensorView{}; };
      cpu_attention_backward(rt, {c.batch, q, kv, scale, o[0], lse[0], d_o[1], dq(), dk(), dv()});
      cpu_window_attention_backward(
          rt, {c.batch, q, kv, window, scale, s, o[1], lse[1], d_o[1], dq(), dk(), dv(), ds()});
      for (const int i : {2, 3})
        cpu_sparse_attention_backward(rt, {c.batch,
                                           q,
                                           kv,
                                           {(i == 2 ? random_idx : idx)[1], block},
                                           scale,
                                           s,
                                           o[i],
                                           lse[i],
                                           d_o[1],
                                           dq(),
                                           dk(),
                                           dv(),
                                           ds()});
    });
    std::vector<std::vector<double>> got;
    for (const Pair& p : out) got.push_back(p.got());
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << threads << " threads";
  }
}

TEST(CpuAttentionSweep, SmallOddShapes) {
  for (uint64_t seed = 1; seed <= 40; ++seed) sweep(seed);
}
TEST(FullCpuAttentionSweep, SmallOddShapes) {
  for (uint64_t seed = 41; seed <= 2000; ++seed) sweep(seed);
}

}  // namespace
}  // namespace hysparse::test
