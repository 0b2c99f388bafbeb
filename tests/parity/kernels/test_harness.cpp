// Does the harness notice? Kernels that are wrong in the ways that kernels go wrong must fail its checks.
#include <gtest/gtest-spi.h>

#include "kernels/cpu/cpu.h"
#include "parity/kernels/cases.h"

namespace hysparse::test {
namespace {

// The CPU backend, with some operations replaced.
class Wrong : public Ops {
 public:
  std::string name() const override { return "wrong"; }
  void embedding(Runtime& rt, const EmbeddingForward& a) const override { right.embedding(rt, a); }
  void embedding_backward(Runtime& rt, const EmbeddingBackward& a) const override {
    right.embedding_backward(rt, a);
  }
  void rmsnorm(Runtime& rt, const RmsNormForward& a) const override { right.rmsnorm(rt, a); }
  void rmsnorm_backward(Runtime& rt, const RmsNormBackward& a) const override {
    right.rmsnorm_backward(rt, a);
  }
  void linear(Runtime& rt, const LinearForward& a) const override { right.linear(rt, a); }
  void linear_backward(Runtime& rt, const LinearBackward& a) const override { right.linear_backward(rt, a); }
  void rope(Runtime& rt, const Rope& a) const override { right.rope(rt, a); }
  void add(Runtime& rt, const Add& a) const override { right.add(rt, a); }
  void cast(Runtime& rt, const Cast& a) const override { right.cast(rt, a); }
  void gather_rows(Runtime& rt, const GatherRows& a) const override { right.gather_rows(rt, a); }
  void quantise_kv(Runtime& rt, const QuantiseKv& a) const override { right.quantise_kv(rt, a); }
  void swiglu(Runtime& rt, const SwigluForward& a) const override { right.swiglu(rt, a); }
  void swiglu_backward(Runtime& rt, const SwigluBackward& a) const override { right.swiglu_backward(rt, a); }
  void attention(Runtime& rt, const AttentionForward& a) const override { right.attention(rt, a); }
  void attention_backward(Runtime& rt, const AttentionBackward& a) const override {
    right.attention_backward(rt, a);
  }
  void select_blocks(Runtime& rt, const SelectBlocks& a) const override { right.select_blocks(rt, a); }
  void random_scores(Runtime& rt, const RandomScores& a) const override { right.random_scores(rt, a); }
  void sparse_attention(Runtime& rt, const SparseAttentionForward& a) const override {
    right.sparse_attention(rt, a);
  }
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const override {
    right.sparse_attention_backward(rt, a);
  }
  void window_attention(Runtime& rt, const WindowAttentionForward& a) const override {
    right.window_attention(rt, a);
  }
  void window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) const override {
    right.window_attention_backward(rt, a);
  }
  void gated_sum(Runtime& rt, const GatedSumForward& a) const override { right.gated_sum(rt, a); }
  void gated_sum_backward(Runtime& rt, const GatedSumBackward& a) const override {
    right.gated_sum_backward(rt, a);
  }
  void cross_entropy(Runtime& rt, const CrossEntropy& a) const override { right.cross_entropy(rt, a); }
  void adamw(Runtime& rt, const AdamW& a) const override { right.adamw(rt, a); }
  void sum_squares(Runtime& rt, const SumSquares& a) const override { right.sum_squares(rt, a); }

 protected:
  const Ops& right = cpu_ops();
};

int failures(const std::function<void()>& check) {
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter catcher(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    check();
  }
  int count = 0;
  for (int i = 0; i < results.size(); ++i) count += results.GetTestPartResult(i).failed();
  return count;
}

// Runs a check on both dtypes with a wrong backend (must fail) and with the right one (must pass).
void expect_noticed(const Ops& wrong, const std::function<void(const Backend&)>& check, bool in_bf16 = true) {
  for (const DType t : {DType::f32, DType::bf16}) {
    if (t == DType::bf16 && !in_bf16) continue;  // smaller than what bf16 rounds away
    EXPECT_EQ(failures([&] { check({"right", &cpu_ops(), t, ""}); }), 0) << name_of(t);
    EXPECT_GT(failures([&] { check({"wrong", &wrong, t, ""}); }), 0) << name_of(t);
  }
}

const AttentionShape kShape{.sequences = {{70, 0}, {9, 60}}, .hq = 4, .hkv = 2, .d = 32, .dv = 32};
const Branch kFull{.block = 16}, kWindow{.kind = Branch::Kind::window, .window = 32, .sinks = true},
    kSparse{.kind = Branch::Kind::sparse, .block = 16, .entries = 3, .sinks = true};

void check_full(const Backend& backend) {
  AttentionInputs in(backend, kShape);
  check_forward(in, kFull);
}
void check_window(const Backend& backend) {
  AttentionInputs in(backend, kShape);
  check_forward(in, kWindow);
}
void check_sparse(const Backend& backend) {
  AttentionInputs in(backend, kShape);
  check_forward(in, kSparse, random_selection(in, 16, 3));
}
void check_sparse_backward(const Backend& backend) {
  AttentionInputs in(backend, kShape);
  check_backward(in, kSparse, random_selection(in, 16, 3));
}

template <int kMore>
struct OtherWindow : Wrong {
  void window_attention(Runtime& rt, const WindowAttentionForward& a) const override {
    WindowAttentionForward b = a;
    b.window += kMore;
    right.window_attention(rt, b);
  }
};
TEST(Harness, NoticesAWindowThatIsOffByOne) {
  expect_noticed(OtherWindow<1>(), check_window);
  expect_noticed(OtherWindow<-1>(), check_window);
}

struct NarrowScores : Wrong {  // ranks in bf16
  void attention(Runtime& rt, const AttentionForward& a) const override {
    right.attention(rt, a);
    if (!a.block_scores) return;
    for (int64_t o : offsets(a.block_scores))
      store(a.block_scores, o, round_to(DType::bf16, load(a.block_scores, o)));
  }
};
TEST(Harness, NoticesScoresInBf16) {
  expect_noticed(NarrowScores(), check_full);
}

struct DropsLastEntry : Wrong {
  void sparse_attention(Runtime& rt, const SparseAttentionForward& a) const override {
    SparseAttentionForward b = a;
    b.selection.idx.shape[2] -= 1;
    right.sparse_attention(rt, b);
  }
};
struct IgnoresSinks : Wrong {
  void sparse_attention(Runtime& rt, const SparseAttentionForward& a) const override {
    SparseAttentionForward b = a;
    b.sinks = {};
    right.sparse_attention(rt, b);
  }
};
TEST(Harness, NoticesADroppedEntryAndIgnoredSinks) {
  expect_noticed(DropsLastEntry(), check_sparse);
  expect_noticed(IgnoresSinks(), check_sparse);
}

struct Overwrites : Wrong {  // instead of adding
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const override {
    fill(a.dk, 0);
    right.sparse_attention_backward(rt, a);
  }
};
struct TouchesUnchosen : Wrong {
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const override {
    right.sparse_attention_backward(rt, a);
    const TensorView& first = a.dv;  // row 0 holds no key
    store(first, 0, load(first, 0) * (1 + 1e-6));
  }
};
struct ScalesDkTwice : Wrong {
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const override {
    const std::vector<double> before = values(a.dk);
    right.sparse_attention_backward(rt, a);
    std::vector<double> after = values(a.dk);
    for (size_t i = 0; i < after.size(); ++i) after[i] = before[i] + a.scale * (after[i] - before[i]);
    assign(a.dk, after);
  }
};
TEST(Harness, NoticesWrongKeyGradients) {
  expect_noticed(Overwrites(), check_sparse_backward);
  expect_noticed(TouchesUnchosen(), check_sparse_backward);
  expect_noticed(ScalesDkTwice(), check_sparse_backward);
}

struct WritesBetweenRows : Wrong {
  void add(Runtime& rt, const Add& a) const override {
    right.add(rt, a);
    store(a.y, a.y.stride[0] - 1, 0);  // one past the last element of row 0
  }
};
struct DependsOnThreads : Wrong {
  void add(Runtime& rt, const Add& a) const override {
    right.add(rt, a);
    store(a.y, 0, load(a.y, 0) * (1 + (rt.pool.threads() == 2) * epsilon(a.y.dtype)));
  }
};
struct ChangesItsInput : Wrong {
  void add(Runtime& rt, const Add& a) const override {
    right.add(rt, a);
    store(a.a, 0, 5);
  }
};
struct LeavesARow : Wrong {
  void add(Runtime& rt, const Add& a) const override {
    const int64_t n = a.y.dim(0) - 1;
    right.add(rt, {a.a.rows(0, n), a.b.rows(0, n), a.y.rows(0, n)});
  }
};
TEST(Harness, NoticesStrayWritesAndNondeterminism) {
  const auto check = [](const Backend& backend) {
    Bench b(backend, 1, true);
    const Pair& x = b.in({5, 12});
    const Pair& z = b.in({5, 12});
    const Pair& y = b.out({5, 12});
    b.run([&](int i, Runtime& rt) { rt.ops.add(rt, {x[i], z[i], y[i]}); });
    EXPECT_TRUE(b.close("y", y, plus_abs(absolutes(x.ref()), z.ref()), 1));
  };
  expect_noticed(WritesBetweenRows(), check);
  expect_noticed(DependsOnThreads(), check);
  expect_noticed(ChangesItsInput(), check);
  expect_noticed(LeavesARow(), check);
}

struct HigherTie : Wrong {  // prefers the higher index among equals
  void select_blocks(Runtime& rt, const SelectBlocks& a) const override {
    right.select_blocks(rt, a);
    for (int64_t row = 0; row < a.idx.dim(0); ++row)
      for (int64_t g = 0; g < a.idx.dim(1); ++g) {
        const TensorView idx = a.idx.at(row).at(g), score = a.block_scores.at(row).at(g);
        const int64_t e = a.idx.dim(2) - 1, j = static_cast<int64_t>(load(idx, e));
        if (j >= 0 && j < a.batch.position[size_t(row)] / a.block && load(score, j) == load(score, j + 1))
          store(idx, e, double(j + 1));
      }
  }
};
TEST(Harness, NoticesTheWrongSideOfATie) {
  expect_noticed(HigherTie(), [](const Backend& backend) {
    Bench b(backend);
    RaggedBatch batch;
    batch.add_sequence(20);
    const Pair& scores = b.in_values(backend.acc(), {20, 1, 10}, Values(200, -1));
    const Pair& idx = b.out_type(DType::i32, {20, 1, 3});
    b.run([&](int i, Runtime& rt) { rt.ops.select_blocks(rt, {batch, scores[i], 2, false, false, idx[i]}); });
    EXPECT_EQ(idx.got(), idx.ref());
  });
}

}  // namespace
}  // namespace hysparse::test
