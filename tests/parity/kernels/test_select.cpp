// Block selection, random scores, and the attention composites against their definitions.
#include <iostream>
#include <set>

#include "parity/kernels/attention_checks.h"

namespace hysparse::test {
namespace {

class Select : public KernelTest {};

RaggedBatch ragged_batch(const std::vector<Sequence>& sequences) {
  RaggedBatch batch;
  for (const Sequence& s : sequences) batch.add_sequence(s.q, s.past, batch.sequences() * 3 + 1);
  batch.step = 41;
  return batch;
}

// Scores of many kinds: ties, few distinct values, -inf, NaN, everything absent; beyond the diagonal NaN,
// +inf.
Values hard_scores(Rng& rng, const RaggedBatch& batch, int64_t hkv, int64_t block, int64_t nblocks,
                   DType acc) {
  Values x;
  for (int64_t row = 0; row < batch.tokens(); ++row)
    for (int64_t g = 0; g < hkv; ++g) {
      const uint64_t style = rng.below(7);
      for (int64_t j = 0; j < nblocks; ++j) {
        double score = round_to(acc, -8 + 3 * rng.normal());
        if (style == 1) score = -double(rng.below(3));
        if (style == 2) score = 0;
        if (style == 3 && rng.below(2)) score = -kInf;
        if (style == 4 && rng.below(3) == 0) score = kNaN;
        if (style == 5) score = -kInf;
        if (style == 6) score = rng.below(2) ? -1e4 : -0.0;
        if (j > batch.position[size_t(row)] / block) score = rng.below(2) ? kNaN : kInf;
        x.push_back(score);
      }
    }
  return x;
}

TEST_P(Select, EqualsTheReferenceExactly) {
  for (const int64_t block : {1, 4, 16, 64}) {
    const std::vector<Sequence> sequences = {{30, 0},         {1, 0},  {1, 63},
                                             {5, 50 * block}, {2, 64}, {1, 150 * block}};
    for (const int64_t entries : {1, 2, 3, 16, 100, 2048})
      for (const int forced : {0, 1, 2, 3}) {
        if (entries == 2048 && forced % 3) continue;
        SCOPED_TRACE(::testing::Message()
                     << "block " << block << " entries " << entries << " forced " << forced);
        Bench b(GetParam(), uint64_t(block * 10 + forced), forced == 2);
        const RaggedBatch batch = ragged_batch(sequences);
        const int64_t hkv = 2, nblocks = (batch.max_kv_len() - 1) / block + 1 + forced;
        const Pair& scores = b.in_values(b.acc(), {batch.tokens(), hkv, nblocks},
                                         hard_scores(b.rng(), batch, hkv, block, nblocks, b.acc()));
        const Pair& idx = b.out_type(DType::i32, {batch.tokens(), hkv, entries});
        b.run([&](int i, Runtime& rt) {
          rt.ops.select_blocks(rt, {batch, scores[i], block, (forced & 1) != 0, (forced & 2) != 0, idx[i]});
        });
        ASSERT_EQ(idx.got(), idx.ref());
      }
  }
}

TEST_P(Select, RandomScoresAgreeToTheBit) {
  for (const int64_t block : {1, 16, 64}) {
    Bench b(GetParam(), 3, block == 16);
    const RaggedBatch batch = ragged_batch({{70, 0}, {1, 0}, {3, 200}, {1, 64}});
    const int64_t nblocks = (batch.max_kv_len() - 1) / block + 2;
    const Pair& scores = b.out_acc({batch.tokens(), 3, nblocks});
    b.run([&](int i, Runtime& rt) { rt.ops.random_scores(rt, {batch, 7, 5, block, scores[i]}); });
    EXPECT_EQ(scores.got(), scores.ref());
  }
}

struct Composite {
  AttentionShape shape;
  int64_t block, entries;
  bool first = false, diagonal = false, random = false, want_scores = false;
};

// The composite must be the chain: same o and lse as attention; indices exactly the reference's selection on
// the kernel's own scores; against float64 scores equal but for blocks closer than 1e-5, which are counted.
void check_composite(const Backend& backend, const Composite& c) {
  SCOPED_TRACE(::testing::Message() << describe(c.shape) << ", block " << c.block << ", entries " << c.entries
                                    << (c.random ? ", random" : "") << (c.first ? ", first" : "")
                                    << (c.diagonal ? ", diagonal" : "") << (c.want_scores ? ", scores" : ""));
  AttentionInputs in(backend, c.shape);
  in.batch.step = 3;
  for (size_t s = 0; s < in.batch.row.size(); ++s) in.batch.row[s] = int64_t(s) + 1;
  Bench& b = in.bench;
  const int64_t n = in.n(), hq = c.shape.hq, hkv = c.shape.hkv,
                nblocks = (in.batch.max_kv_len() - 1) / c.block + 1;
  const Pair& o = b.out({n, hq, c.shape.dv});
  const Pair& lse = b.out_acc({n, hq});
  const Pair& idx = b.out_type(DType::i32, {n, hkv, c.entries});
  const Pair& full = b.out_acc({n, hkv, nblocks});
  b.run([&](int i, Runtime& rt) {
    AttentionForward f{in.batch, in.q()[i], in.kv(i), in.scale, o[i], lse[i]};
    if (c.want_scores) f.score_block = c.block, f.block_scores = full[i];
    rt.ops.attention_select(rt, {f, c.block, c.first, c.diagonal, c.random, 99, 6, idx[i]});
  });
  const ForwardOracle truth = forward_oracle(in, causal_mask(), {}, c.block, nblocks);
  EXPECT_TRUE(agrees(b, "o", o, truth.o));
  EXPECT_TRUE(agrees(b, "lse", lse, truth.lse));
  ThreadPool pool(1);
  Arena scratch;
  Runtime rt{pool, scratch, ref_ops(), host_memory()};
  const auto select = [&](const Values& scores) {
    const Buffer s(DType::f64, {n, hkv, nblocks}), out(DType::i32, {n, hkv, c.entries});
    assign(s, scores);
    rt.ops.select_blocks(rt, {in.batch, s, c.block, c.first, c.diagonal, out});
    return values(out);
  };
  if (c.want_scores) {
    EXPECT_TRUE(agrees(b, "block_scores", full, truth.scores));
  }
  if (c.random) {
    const Buffer s(DType::f64, {n, hkv, nblocks});
    rt.ops.random_scores(rt, {in.batch, 99, 6, c.block, s});
    EXPECT_EQ(idx.got(), select(values(s)));
    return;
  }
  if (c.want_scores) {
    EXPECT_EQ(idx.got(), select(full.got())) << "not the selection of the kernel's own scores";
  }
  const Values got = idx.got(), expected = idx.ref();
  int64_t flipped = 0;
  for (int64_t r = 0; r < n * hkv; ++r) {
    std::set<int64_t> mine, theirs, only_mine, only_theirs;
    for (int64_t e = 0; e < c.entries; ++e) {
      mine.insert(int64_t(got[size_t(r * c.entries + e)]));
      theirs.insert(int64_t(expected[size_t(r * c.entries + e)]));
    }
    if (mine == theirs) continue;
    ++flipped;
    std::set_difference(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                        std::inserter(only_mine, only_mine.end()));
    std::set_difference(theirs.begin(), theirs.end(), mine.begin(), mine.end(),
                        std::inserter(only_theirs, only_theirs.end()));
    ASSERT_EQ(only_mine.size(), only_theirs.size());
    for (const int64_t x : only_mine)
      for (const int64_t y : only_theirs) {
        const double sx = truth.scores.value[size_t(r * nblocks + x)],
                     sy = truth.scores.value[size_t(r * nblocks + y)];
        ASSERT_LE(std::fabs(sx - sy), 1e-5 * std::max(1.0, std::fabs(sx)))
            << "row " << r << " took block " << x << " for " << y;
      }
  }
  if (flipped)
    std::cout << backend.name << ": " << flipped << " rows flipped a near-tie: " << describe(c.shape) << '\n';
}

TEST_P(Select, AttentionSelect) {
  std::vector<Composite> cases;
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes(every_kind(), true, thinning(GetParam()))) {
    const int64_t block = std::array<int64_t, 4>{16, 64, 1, 4}[i % 4];
    cases.push_back(
        {s, block, std::array<int64_t, 3>{2, 5, 16}[i % 3], i % 5 == 1, i % 7 == 3, i % 6 == 5, i % 2 == 0});
    ++i;
  }
  for (const Composite& c : cases) {
    check_composite(GetParam(), c);
    if (HasFailure()) return;
  }
}

TEST_P(Select, SparseWindowGated) {
  for (const bool window : {true, false})
    for (const bool channel : {false, true})
      for (const bool over : {false, true}) {
        const AttentionShape s{.sequences = ragged(), .hq = 4, .hkv = 2, .d = 32, .dv = 24};
        AttentionShape ring = s;
        ring.kind = KvView::Kind::ring;
        ring.ring_len = 16;
        AttentionInputs in(GetParam(), s), own(GetParam(), ring);
        Bench &b = in.bench, &w = own.bench;
        const int64_t n = in.n(), gate_width = channel ? 4 * 24 : 4;
        const Pair& idx = b.in_values(DType::i32, {n, 2, 3}, random_selection(in, 16, 3));
        const Pair& sinks = in.sinks();
        const Pair& window_sinks = w.in_acc({4});
        const Pair& g1 = b.in_acc({n, gate_width});
        const Pair& g2 = b.in_acc({n, gate_width});
        const Pair& o = b.out({n, 4, 24});
        const Pair& o_window = b.out({n, 4, 24});
        const Pair& lse = b.out_acc({n, 4});
        const Pair& lse_window = b.out_acc({n, 4});
        const Pair& out = b.out({n, 4, 24});
        b.run([&](int i, Runtime& rt) {
          const WindowAttentionForward f{in.batch, in.q()[i],       own.kv(i),   16,
                                         in.scale, window_sinks[i], o_window[i], lse_window[i]};
          rt.ops.sparse_window_gated(
              rt, {{in.batch, in.q()[i], in.kv(i), {idx[i], 16}, in.scale, sinks[i], o[i], lse[i]},
                   window ? &f : nullptr,
                   g1[i],
                   window ? g2[i] : TensorView{},
                   over ? o[i] : out[i]});
        });
        double size = 0;
        for (double x : in.v().ref()) size = std::max(size, std::isnan(x) ? 0 : std::fabs(x));
        const Pair& result = over ? o : out;
        const Values tolerance(result.ref().size(),
                               2 * size * (b.t() == DType::bf16 ? epsilon(b.t()) : 64 * epsilon(b.t())));
        EXPECT_TRUE(within(b.backend().name, result[1], result[0], tolerance));
        EXPECT_TRUE(within("lse", lse[1], lse[0], Values(size_t(n * 4), 64 * epsilon(b.acc()))));
        if (window) {
          EXPECT_TRUE(
              within("lse", lse_window[1], lse_window[0], Values(size_t(n * 4), 64 * epsilon(b.acc()))));
        }
      }
}

HYSPARSE_KERNEL_SUITE(Select);

}  // namespace
}  // namespace hysparse::test
