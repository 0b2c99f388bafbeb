// Sizes at which backends change their ways: long pasts that are split among workers, matrices of several
// blocks, selections of thousands of tokens. And the Full sweep: every shape on every backend and dispatch
// level.
#include "parity/kernels/attention_checks.h"

namespace hysparse::test {
namespace {

class Long : public KernelTest {};
class FullSweep : public KernelTest {};

constexpr int64_t kBlocks[] = {64, 16, 1, 4};

TEST_P(Long, DecodeAfterALongPast) {
  size_t i = 0;
  for (const KvView::Kind kind : every_kind())
    for (const HeadShape& h : {HeadShape{4, 1, 32, 32}, {2, 2, 64, 40}}) {
      const int64_t block = kBlocks[i++ % 4];
      const AttentionShape s{.sequences = {{1, 4999}, {2, 4094}, {1, 4094}, {5, 2047}, {1, 0}},
                             .hq = h.hq,
                             .hkv = h.hkv,
                             .d = h.d,
                             .dv = h.dv,
                             .kind = kind};
      AttentionInputs full(GetParam(), s), plain(GetParam(), s), sparse(GetParam(), s);
      check_forward(full, {.block = block});
      check_forward(plain, {});
      check_forward(sparse, {.kind = Branch::Kind::sparse, .block = 64, .entries = 16, .sinks = true},
                    random_selection(sparse, 64, 16));
      if (HasFailure()) return;
    }
}

TEST_P(Long, TokenLevelSelection) {
  const AttentionShape s{
      .sequences = {{2, 2600}, {1, 2047}, {30, 2100}}, .hq = 4, .hkv = 2, .d = 32, .dv = 32};
  AttentionInputs in(GetParam(), s), back(GetParam(), s);
  const Branch branch{.kind = Branch::Kind::sparse, .block = 1, .entries = 2048, .sinks = true};
  check_forward(in, branch, random_selection(in, 1, 2048));
  check_backward(back, branch, random_selection(back, 1, 2048));
}

TEST_P(Long, ManyTokens) {
  for (const HeadShape& h : {HeadShape{2, 1, 32, 32}, {1, 1, 64, 24}}) {
    const AttentionShape s{
        .sequences = {{700, 0}, {1, 0}, {260, 0}}, .hq = h.hq, .hkv = h.hkv, .d = h.d, .dv = h.dv};
    const Branch sparse{.kind = Branch::Kind::sparse, .block = 16, .entries = 8, .sinks = true};
    for (const Branch& branch : {Branch{.block = 16},
                                 sparse,
                                 {.kind = Branch::Kind::window, .window = 300, .sinks = true},
                                 {.kind = Branch::Kind::window, .window = 128, .sinks = true}}) {
      AttentionInputs forward(GetParam(), s), backward(GetParam(), s);
      const bool selects = branch.kind == Branch::Kind::sparse;
      check_forward(forward, branch, selects ? random_selection(forward, 16, 8) : Values{});
      check_backward(backward, branch, selects ? random_selection(backward, 16, 8) : Values{});
      if (HasFailure()) return;
    }
  }
}

TEST_P(Long, LargeMatrices) {
  struct Shape {
    int64_t n, in, out;
  };
  for (const Shape s : {Shape{400, 300, 130},
                        {130, 600, 300},
                        {1, 1030, 520},
                        {12, 700, 300},
                        {390, 96, 513},
                        {5000, 72, 40},
                        {4096, 64, 128}}) {
    SCOPED_TRACE(::testing::Message() << s.n << " x " << s.in << " -> " << s.out);
    Bench b(GetParam(), 7);
    const Pair& x = b.in({s.n, s.in});
    const Pair& w = b.in({s.out, s.in});
    const Pair& y = b.out({s.n, s.out});
    const Pair& dy = b.in({s.n, s.out});
    const Pair& dx = b.out({s.n, s.in});
    const Pair& dw = b.accumulator({s.out, s.in});
    const Values dw0 = dw.ref();
    b.run([&](int i, Runtime& rt) {
      Weight weight{.name = "w", .value = w[i], .grad = dw[i]};
      rt.ops.linear(rt, {x[i], weight, nullptr, y[i], false});
      rt.ops.linear_backward(rt, {x[i], weight, nullptr, dy[i], dx[i], false});
    });
    const double eps = epsilon(b.acc());
    const Values xt = transpose(x.ref(), s.n, s.in), dyt = transpose(dy.ref(), s.n, s.out),
                 wt = transpose(w.ref(), s.out, s.in);
    EXPECT_TRUE(b.close("y", y, abs_product(x.ref(), w.ref(), s.n, s.out, s.in), 8, eps));
    EXPECT_TRUE(b.close("dx", dx, abs_product(dy.ref(), wt, s.n, s.in, s.out), 8, eps));
    EXPECT_TRUE(b.close("dw", dw, plus_abs(abs_product(dyt, xt, s.out, s.in, s.n), dw0), 8, eps));
  }
}

TEST_P(Long, ManyElements) {
  Bench b(GetParam(), 8);
  const int64_t n = 150, h = 700;  // beyond one task of the elementwise loops
  const Pair& x = b.in({n, h});
  const Pair& z = b.in({n, h});
  const Pair& w = b.in({h});
  const Pair& sum = b.out({n, h});
  const Pair& product = b.out({n, h});
  const Pair& norm = b.out({n, h});
  const Pair& rstd = b.out_acc({n});
  const Pair& dx = b.out({n, h});
  const Pair& dw = b.accumulator({h});
  const Pair& squares = b.in_place(DType::f64, {1});
  const Values dw0 = dw.ref();
  b.run([&](int i, Runtime& rt) {
    Weight weight{.name = "norm", .value = w[i], .grad = dw[i]};
    rt.ops.add(rt, {x[i], z[i], sum[i]});
    rt.ops.swiglu(rt, {x[i], z[i], product[i]});
    rt.ops.rmsnorm(rt, {x[i], weight, 1e-6, norm[i], rstd[i]});
    rt.ops.rmsnorm_backward(rt, {x[i], weight, rstd[i], z[i], dx[i], false});
    rt.ops.sum_squares(rt, {x[i], squares[i]});
  });
  const double eps = epsilon(b.acc());
  EXPECT_TRUE(b.close("sum", sum, plus_abs(absolutes(x.ref()), z.ref()), 1, eps));
  EXPECT_TRUE(b.close("product", product, product.ref(), 64, eps));
  EXPECT_TRUE(b.close("norm", norm, norm.ref(), 8, eps));
  EXPECT_TRUE(b.close("squares", squares, {2.0 * double(n * h)}, 1000));
  Values dx_bound, dw_bound = absolutes(dw0);
  const Values xs = x.ref(), zs = z.ref(), ws = w.ref();
  for (size_t i = 0; i < xs.size(); ++i) {
    dx_bound.push_back(4 * (std::fabs(zs[i] * ws[i % size_t(h)]) + std::fabs(xs[i])));
    dw_bound[i % size_t(h)] += 2 * std::fabs(xs[i] * zs[i]);
  }
  EXPECT_TRUE(b.close("dx", dx, dx_bound, 8, eps));
  EXPECT_TRUE(b.close("dw", dw, dw_bound, 8));
}

HYSPARSE_MAIN_KERNEL_SUITE(Long);

// All shapes, with lengths up to 1000 and windows and blocks that walk through their lists at another pace
// than the default tests, so that other pairs meet.
TEST_P(FullSweep, Attention) {
  std::vector<AttentionShape> shapes = attention_shapes(every_kind(), true);
  for (const KvView::Kind kind : every_kind())
    for (const HeadShape& h : {HeadShape{4, 2, 64, 64}, {16, 1, 32, 32}, {3, 1, 192, 128}})
      shapes.push_back({.sequences = {{1000, 0}, {100, 900}},
                        .hq = h.hq,
                        .hkv = h.hkv,
                        .d = h.d,
                        .dv = h.dv,
                        .kind = kind,
                        .seed = 77});
  for (size_t i = 0; i < shapes.size(); ++i) {
    AttentionShape s = shapes[i];
    const int64_t block = kBlocks[(i / 2) % 4], entries = block == 1 ? 70 : block == 4 ? 20 : 5;
    const int64_t window = std::array<int64_t, 5>{128, 4, 300, 17, 1}[(i / 3) % 5];
    AttentionInputs full(GetParam(), s), sparse(GetParam(), s);
    check_forward(full, {.block = block});
    check_forward(sparse,
                  {.kind = Branch::Kind::sparse, .block = block, .entries = entries, .sinks = i % 4 != 1},
                  random_selection(sparse, block, entries));
    s.ring_len = window + 3;
    AttentionInputs ring(GetParam(), s);
    check_forward(ring, {.kind = Branch::Kind::window, .window = window, .sinks = i % 4 != 1});
    if (HasFailure()) return;
  }
}

TEST_P(FullSweep, AttentionBackward) {
  std::vector<AttentionShape> shapes = attention_shapes({KvView::Kind::contiguous}, true);
  for (const HeadShape& h : {HeadShape{4, 2, 64, 64}, {16, 1, 32, 32}, {3, 1, 192, 128}})
    shapes.push_back(
        {.sequences = {{700, 0}, {100, 200}}, .hq = h.hq, .hkv = h.hkv, .d = h.d, .dv = h.dv, .seed = 78});
  for (size_t i = 0; i < shapes.size(); ++i) {
    const AttentionShape& s = shapes[i];
    const int64_t block = kBlocks[(i / 2) % 4], entries = block == 1 ? 70 : block == 4 ? 20 : 5;
    const int64_t window = std::array<int64_t, 5>{128, 4, 300, 17, 2}[(i / 3) % 5];
    AttentionInputs full(GetParam(), s), sparse(GetParam(), s), own(GetParam(), s);
    check_backward(full, {});
    check_backward(sparse,
                   {.kind = Branch::Kind::sparse, .block = block, .entries = entries, .sinks = i % 4 != 1},
                   random_selection(sparse, block, entries));
    check_backward(own, {.kind = Branch::Kind::window, .window = window, .sinks = i % 4 != 1});
    if (HasFailure()) return;
  }
}

HYSPARSE_KERNEL_SUITE(FullSweep);

}  // namespace
}  // namespace hysparse::test
