// Full, sparse and window attention, forward and backward, over every shape, against the reference.
#include "parity/kernels/attention_checks.h"

namespace hysparse::test {
namespace {

class Attention : public KernelTest {};

constexpr int64_t kBlocks[] = {64, 16, 4, 1};
constexpr int64_t kWindows[] = {4, 128, 1, 64, 37};

TEST_P(Attention, FullForwardWithBlockScores) {
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes(every_kind(), true, thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    check_forward(in, {.block = kBlocks[i++ % 4]});
    if (HasFailure()) return;
  }
}

TEST_P(Attention, FullForwardWithoutScores) {
  for (const AttentionShape& s : attention_shapes(every_kind(), true, 2 * thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    check_forward(in, {});
    if (HasFailure()) return;
  }
}

TEST_P(Attention, FullBackward) {
  for (const AttentionShape& s : attention_shapes({KvView::Kind::contiguous}, false, thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    check_backward(in, {});
    if (HasFailure()) return;
  }
}

TEST_P(Attention, SparseForward) {
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes(every_kind(), true, thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    const int64_t block = kBlocks[i % 4], entries = block == 1 ? 33 : block == 4 ? 9 : 3;
    const Values idx = random_selection(in, block, entries);
    check_forward(in, {.kind = Branch::Kind::sparse, .block = block, .entries = entries, .sinks = i % 3 != 1},
                  idx);
    if (HasFailure()) return;
    ++i;
  }
}

TEST_P(Attention, SparseBackward) {
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes({KvView::Kind::contiguous}, false, thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    const int64_t block = kBlocks[i % 4], entries = block == 1 ? 33 : block == 4 ? 9 : 2;
    const Values idx = random_selection(in, block, entries);
    check_backward(
        in, {.kind = Branch::Kind::sparse, .block = block, .entries = entries, .sinks = i % 3 != 1}, idx);
    if (HasFailure()) return;
    ++i;
  }
}

TEST_P(Attention, WindowForward) {
  size_t i = 0;
  for (const AttentionShape& shape : attention_shapes(every_kind(), true, thinning(GetParam()))) {
    AttentionShape s = shape;
    const int64_t window = kWindows[i % 5];
    s.ring_len = window + static_cast<int64_t>(i % 3);  // what the window needs, or a little more
    AttentionInputs in(GetParam(), s);
    check_forward(in, {.kind = Branch::Kind::window, .window = window, .sinks = i % 3 != 1});
    if (HasFailure()) return;
    ++i;
  }
}

TEST_P(Attention, WindowBackward) {
  size_t i = 0;
  for (const AttentionShape& s : attention_shapes({KvView::Kind::contiguous}, false, thinning(GetParam()))) {
    AttentionInputs in(GetParam(), s);
    check_backward(in, {.kind = Branch::Kind::window, .window = kWindows[i % 5], .sinks = i % 3 != 1});
    if (HasFailure()) return;
    ++i;
  }
}

// A past before the queries in backward too (a chunk of a longer sequence).
TEST_P(Attention, BackwardAfterAPast) {
  for (const HeadShape& h : {HeadShape{4, 2, 64, 64}, {3, 1, 32, 40}}) {
    const AttentionShape s{
        .sequences = {{9, 70}, {20, 3}, {1, 128}}, .hq = h.hq, .hkv = h.hkv, .d = h.d, .dv = h.dv};
    AttentionInputs full(GetParam(), s), sparse(GetParam(), s), window(GetParam(), s);
    check_backward(full, {});
    check_backward(sparse, {.kind = Branch::Kind::sparse, .block = 16, .entries = 3, .sinks = true},
                   random_selection(sparse, 16, 3));
    check_backward(window, {.kind = Branch::Kind::window, .window = 32, .sinks = true});
  }
}

// Logits up to 1e4: no overflow, and the error grows with the logits only.
TEST_P(Attention, LargeLogits) {
  for (const KvView::Kind kind : every_kind()) {
    const AttentionShape s{.sequences = {{70, 10}, {1, 65}, {40, 0}},
                           .hq = 4,
                           .hkv = 2,
                           .d = 64,
                           .dv = 64,
                           .kind = kind,
                           .sigma = 50};  // scale q.k ~ 50 * 50 * sqrt(64) / 8 * normal
    AttentionInputs full(GetParam(), s), sparse(GetParam(), s), window(GetParam(), s);
    check_forward(full, {.block = 16});
    check_forward(sparse, {.kind = Branch::Kind::sparse, .block = 16, .entries = 3, .sinks = true},
                  random_selection(sparse, 16, 3));
    check_forward(window, {.kind = Branch::Kind::window, .window = 32, .sinks = true});
  }
}

TEST_P(Attention, EmptyBatchAndEmptySequence) {
  for (const std::vector<Sequence>& sequences :
       {std::vector<Sequence>{}, {{0, 0}}, {{3, 0}, {0, 5}, {2, 0}}, {{4, 0}, {0, 0}}}) {
    for (const KvView::Kind kind : every_kind()) {
      const AttentionShape s{
          .sequences = sequences, .hq = 2, .hkv = 1, .d = 16, .dv = 16, .kind = kind, .ring_len = 8};
      AttentionInputs full(GetParam(), s), sparse(GetParam(), s), window(GetParam(), s);
      check_forward(full, {.block = 4});
      check_forward(sparse, {.kind = Branch::Kind::sparse, .block = 4, .entries = 2},
                    random_selection(sparse, 4, 2));
      check_forward(window, {.kind = Branch::Kind::window, .window = 8});
    }
  }
}

// Head counts that do not divide are refused, never partly computed (BC-04).
TEST_P(Attention, RefusesHeadsThatDoNotDivide) {
  for (const auto& [hq, hkv] : {std::pair<int64_t, int64_t>{33, 2}, {3, 2}, {2, 4}}) {
    const AttentionShape s{.sequences = {{5, 0}}, .hq = hq, .hkv = hkv, .d = 16, .dv = 16};
    AttentionInputs in(GetParam(), s);
    const Pair& o = in.bench.out({5, hq, 16});
    const Pair& lse = in.bench.out_acc({5, hq});
    ThreadPool pool(1);
    Memory& memory = GetParam().ops->memory();
    Arena scratch(memory);
    Runtime rt{pool, scratch, *GetParam().ops, memory};
    try {
      rt.ops.attention(rt, {in.batch, in.q()[1], in.kv(1), in.scale, o[1], lse[1]});
      FAIL() << hq << ":" << hkv << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(std::to_string(hq)), std::string::npos) << e.what();
    }
  }
}

HYSPARSE_KERNEL_SUITE(Attention);

}  // namespace
}  // namespace hysparse::test
