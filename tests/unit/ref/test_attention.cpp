// Attention and selection of the reference: against the explicit-mask oracle, over every KV layout, in
// chunks.
#include "parity/kernels/attention_checks.h"
#include "unit/ref/gradient.h"

namespace hysparse::test {
namespace {

TEST(RefAttention, EqualsTheExplicitMasks) {
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes(every_kind(), true, 2)) {
    AttentionShape ring = s;
    ring.ring_len = 37;
    AttentionInputs full(ref_backend(), s), sparse(ref_backend(), s), window(ref_backend(), ring);
    check_forward(full, {.block = 16});
    const int64_t block = i % 2 ? 16 : 3;
    if (s.kind != KvView::Kind::paged || block == 16)
      check_forward(sparse, {.kind = Branch::Kind::sparse, .block = block, .entries = 4, .sinks = true},
                    random_selection(sparse, block, 4));
    check_forward(window, {.kind = Branch::Kind::window, .window = 37, .sinks = true});
    if (HasFailure()) return;
    ++i;
  }
}

// The same tokens in any layout, whole or in chunks, give the same bits.
TEST(RefAttention, LayoutsAndChunksAgreeToTheBit) {
  const int64_t length = 150;
  AttentionInputs whole(ref_backend(), {.sequences = {{length, 0}}, .hq = 6, .hkv = 2, .d = 8, .dv = 12});
  const Values q = whole.q().ref();
  const Branch window{.kind = Branch::Kind::window, .window = 20};
  const ForwardResult full_truth = check_forward(whole, {.block = 5});
  AttentionInputs whole_window(ref_backend(), whole.shape);
  const ForwardResult window_truth = check_forward(whole_window, window);
  const int64_t nblocks = int64_t(full_truth.scores.size()) / length / 2;
  for (const KvView::Kind kind : every_kind())
    for (const int64_t chunk : {1, 7, 64, 100, 150}) {
      AttentionShape s{.sequences = {}, .hq = 6, .hkv = 2, .d = 8, .dv = 12, .kind = kind, .page = 25};
      for (int64_t past = 0; past < length; past += chunk)
        s.sequences.push_back({std::min(chunk, length - past), past});
      const auto same = [&](char what, int64_t seq, int64_t p, int64_t g, int64_t c, double) {
        if (what == 'q') return q[size_t(((s.sequences[size_t(seq)].past + p) * 6 + g) * 8 + c)];
        return what == 'k' ? whole.k_of[0][size_t((p * 2 + g) * 8 + c)]
                           : whole.v_of[0][size_t((p * 2 + g) * 12 + c)];
      };
      AttentionInputs pieces(ref_backend(), s, same);
      const ForwardResult full = check_forward(pieces, {.block = 5});
      EXPECT_EQ(full.o, full_truth.o);
      EXPECT_EQ(full.lse, full_truth.lse);
      EXPECT_EQ(int64_t(full.scores.size()), length * 2 * nblocks);
      EXPECT_EQ(full.scores, full_truth.scores);
      s.ring_len = 20;
      AttentionInputs ring(ref_backend(), s, same);
      const ForwardResult some = check_forward(ring, window);
      EXPECT_EQ(some.o, window_truth.o);
      EXPECT_EQ(some.lse, window_truth.lse);
    }
}

TEST(RefAttention, RefusesAKeyThatLeftTheRing) {
  const AttentionShape s{
      .sequences = {{1, 50}}, .hq = 2, .hkv = 1, .d = 8, .dv = 8, .kind = KvView::Kind::ring, .ring_len = 16};
  AttentionInputs in(ref_backend(), s);
  const Pair& o = in.bench.out({1, 2, 8});
  const Pair& lse = in.bench.out({1, 2});
  RefBench b(1);
  EXPECT_THROW(b.rt.ops.attention(b.rt, {in.batch, in.q()[0], in.kv(0), 1, o[0], lse[0]}), Error);
  EXPECT_THROW(b.rt.ops.window_attention(b.rt, {in.batch, in.q()[0], in.kv(0), 17, 1, {}, o[0], lse[0]}),
               Error);
  EXPECT_NO_THROW(b.rt.ops.window_attention(b.rt, {in.batch, in.q()[0], in.kv(0), 16, 1, {}, o[0], lse[0]}));
}

TEST(RefAttention, RefusesWrongArguments) {
  const AttentionShape s{.sequences = {{4, 0}}, .hq = 3, .hkv = 2, .d = 8, .dv = 8};
  AttentionInputs in(ref_backend(), s);
  const Pair& o = in.bench.out({4, 3, 8});
  const Pair& lse = in.bench.out({4, 3});
  const Pair& narrow = in.bench.out({4, 3, 7});
  RefBench b(1);
  EXPECT_THROW(b.rt.ops.attention(b.rt, {in.batch, in.q()[0], in.kv(0), 1, o[0], lse[0]}),
               Error);  // 3 : 2 heads
  AttentionInputs good(ref_backend(), {.sequences = {{4, 0}}, .hq = 3, .hkv = 1, .d = 8, .dv = 8});
  EXPECT_NO_THROW(b.rt.ops.attention(b.rt, {good.batch, good.q()[0], good.kv(0), 1, o[0], lse[0]}));
  EXPECT_THROW(b.rt.ops.attention(b.rt, {good.batch, good.q()[0], good.kv(0), 1, narrow[0], lse[0]}), Error);
  RaggedBatch longer = good.batch;
  longer.add_sequence(1);
  EXPECT_THROW(b.rt.ops.attention(b.rt, {longer, good.q()[0], good.kv(0), 1, o[0], lse[0]}), Error);
  const TensorView twice = b.ints({4, 1, 2}, {0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_THROW(
      b.rt.ops.sparse_attention(b.rt, {good.batch, good.q()[0], good.kv(0), {twice, 2}, 1, {}, o[0], lse[0]}),
      Error);
}

// Fixed examples of the selection rules.
struct SelectExample {
  std::vector<double> scores;
  int64_t position, block, entries;
  bool first, diagonal;
  std::vector<double> expected;
};

TEST(RefSelect, Rules) {
  const std::vector<SelectExample> examples = {
      {{-1, -3, -2, -4}, 7, 2, 2, false, false, {0, 2}},                // the largest, ascending
      {{-5, -1, -1, -1}, 7, 2, 2, false, false, {1, 2}},                // ties: lower index
      {{-1, -2, 9, 9}, 3, 2, 3, false, false, {0, 1, -1}},              // what comes after the token, padding
      {{-1, -2, -3, -4}, 6, 2, 4, false, false, {0, 1, 2, 3}},          // the diagonal block competes
      {{-9, -2, -1, -8}, 7, 2, 2, true, false, {0, 2}},                 // forced first, same budget
      {{-9, -2, -1, -8}, 7, 2, 2, false, true, {2, 3}},                 // forced diagonal
      {{-9, -2, -1, -8}, 7, 2, 2, true, true, {0, 3}},                  // both
      {{-9, -2, -1, -8}, 7, 2, 1, true, true, {0}},                     // room for one: the first
      {{-9, -2, -1, -8}, 1, 2, 2, true, true, {0, -1}},                 // first and diagonal are one block
      {{-kInf, -2, -kInf, -kInf}, 7, 2, 3, false, false, {1, -1, -1}},  // -inf: no such block
      {{-kInf, -2, -kInf, -kInf}, 7, 2, 3, true, true, {0, 1, 3}},      // unless forced
      {{kNaN, -2, kNaN, -1e30}, 7, 2, 3, false, false, {1, 3, -1}},     // NaN never wins
      {{-1, -2, -3, -4, -5}, 4, 1, 2, false, false, {0, 1}},            // block of one token
      {{-1}, 0, 64, 3, false, false, {0, -1, -1}},
  };
  for (const SelectExample& e : examples) {
    RefBench b(1);
    RaggedBatch batch;
    batch.add_sequence(1, e.position);
    std::vector<double> scores = e.scores;
    const int64_t needed = e.position / e.block + 1;
    while (int64_t(scores.size()) < needed) scores.push_back(kNaN);
    const TensorView s = b.random({1, 1, int64_t(scores.size())}),
                     idx = b.ints({1, 1, e.entries}, std::vector<double>(size_t(e.entries), 5));
    assign(s, scores);
    b.rt.ops.select_blocks(b.rt, {batch, s, e.block, e.first, e.diagonal, idx});
    EXPECT_EQ(values(idx), e.expected);
  }
}

TEST(RefSelect, RandomScores) {
  RefBench b(1);
  RaggedBatch batch;
  batch.add_sequence(3, 4, 17);
  batch.step = 9;
  const TensorView s = b.random({3, 2, 4}), again = b.random({3, 2, 4});
  b.rt.ops.random_scores(b.rt, {batch, 5, 2, 2, s});
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t g = 0; g < 2; ++g)
      for (int64_t j = 0; j < 4; ++j) {
        const auto t = uint64_t(4 + row);
        const double x = values(s)[size_t((row * 2 + g) * 4 + j)];
        if (j > int64_t(t) / 2)
          EXPECT_EQ(x, -kInf);
        else
          EXPECT_EQ(x, double(float(to_unit(hash_words({5, 9, 17, 2, uint64_t(g), t, uint64_t(j)})))));
      }
  // Whether a token is reached in one step or by decode does not matter.
  RaggedBatch late;
  late.add_sequence(1, 6, 17);
  late.step = 9;
  b.rt.ops.random_scores(b.rt, {late, 5, 2, 2, again.rows(0, 1)});
  EXPECT_EQ(values(again.rows(0, 1)), values(s.rows(2, 3)));
}

// attention_select with more scores than one chunk may hold (64 MB): the chunks cut documents in the middle,
// and the result is that of attention and selection in one piece, to the bit.
TEST(RefSelect, AttentionSelectInChunks) {
  for (const KvView::Kind kind : {KvView::Kind::contiguous, KvView::Kind::paged})
    for (const bool random : {false, true}) {
      const AttentionShape s{.sequences = {{300, 0}, {0, 0}, {1, 0}, {10, 600}, {500, 0}},
                             .hq = 32,
                             .hkv = 32,
                             .d = 2,
                             .dv = 2,
                             .kind = kind};
      AttentionInputs in(ref_backend(), s);
      in.batch.step = 5;
      const int64_t n = in.n(), nblocks = in.batch.max_kv_len(), entries = 6;
      ASSERT_GT(n * 32 * nblocks * 8, int64_t(64) << 20);
      RefBench b(1);
      const TensorView o = b.random({n, 32, 2}), lse = b.random({n, 32}), o1 = b.random({n, 32, 2}),
                       lse1 = b.random({n, 32});
      const Buffer scores(DType::f64, {n, 32, nblocks}), idx(DType::i32, {n, 32, entries}),
          idx1(DType::i32, {n, 32, entries});
      const AttentionForward whole{in.batch, in.q()[0], in.kv(0), in.scale, o, lse, 1, scores};
      b.rt.ops.attention(b.rt, whole);
      if (random) b.rt.ops.random_scores(b.rt, {in.batch, 3, 4, 1, scores});
      b.rt.ops.select_blocks(b.rt, {in.batch, scores, 1, true, false, idx});
      b.rt.ops.attention_select(
          b.rt, {{in.batch, in.q()[0], in.kv(0), in.scale, o1, lse1}, 1, true, false, random, 3, 4, idx1});
      EXPECT_EQ(values(o), values(o1));
      EXPECT_EQ(values(lse), values(lse1));
      EXPECT_EQ(values(idx), values(idx1));
      EXPECT_LE(b.scratch.bytes_reserved(), size_t(130) << 20);
    }
}

// A block score is the largest log-probability inside the block over the heads of the group.
TEST(RefSelect, BlockScoresAreLogProbabilities) {
  AttentionInputs in(ref_backend(), {.sequences = {{13, 0}}, .hq = 4, .hkv = 2, .d = 8, .dv = 13},
                     [](char what, int64_t, int64_t p, int64_t, int64_t c, double x) {
                       return what == 'v' ? double(p == c) : x;  // o is the row of probabilities
                     });
  const ForwardResult r = check_forward(in, {.block = 4});
  const int64_t nblocks = int64_t(r.scores.size()) / 13 / 2;
  for (int64_t row = 0; row < 13; ++row)
    for (int64_t g = 0; g < 2; ++g)
      for (int64_t j = 0; j < nblocks; ++j) {
        double largest = 0;
        for (int64_t h = 2 * g; h < 2 * g + 2; ++h)
          for (int64_t p = 4 * j; p < std::min<int64_t>(13, 4 * j + 4); ++p)
            largest = std::max(largest, r.o[size_t((row * 4 + h) * 13 + p)]);
        const double score = r.scores[size_t((row * 2 + g) * nblocks + j)];
        if (largest == 0)
          EXPECT_EQ(score, -kInf);
        else
          EXPECT_NEAR(score, std::log(largest), 1e-12);
      }
}

}  // namespace
}  // namespace hysparse::test
