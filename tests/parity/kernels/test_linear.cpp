// linear and linear_backward against the reference.
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

class Linear : public KernelTest {};

struct Shape {
  int64_t n, in, out;
};
const std::vector<Shape> kShapes = {
    {0, 8, 8},     {1, 8, 8},     {1, 64, 97},    {2, 96, 64},   {3, 17, 5},     {4, 33, 130},
    {7, 64, 64},   {8, 64, 64},   {9, 100, 72},   {15, 64, 128}, {17, 128, 1},   {31, 1, 40},
    {64, 256, 96}, {65, 200, 65}, {129, 72, 200}, {5, 1000, 3},  {300, 64, 192}, {33, 511, 257}};

struct Options {
  bool bias, accumulate, acc_side, gaps;  // acc_side: y or dy in A
};
const std::vector<Options> kOptions = {{false, false, false, false},
                                       {true, false, false, true},
                                       {true, true, false, false},
                                       {false, true, true, true},
                                       {true, false, true, false}};

TEST_P(Linear, Forward) {
  for (const Shape& s : kShapes) {
    for (const Options& o : kOptions) {
      SCOPED_TRACE(::testing::Message() << s.n << " x " << s.in << " -> " << s.out << " bias " << o.bias
                                        << " accumulate " << o.accumulate << " A " << o.acc_side);
      Bench b(GetParam(), 7, o.gaps);
      const Pair& x = b.in({s.n, s.in});
      const Pair& w = b.in({s.out, s.in});
      const Pair& bias = b.in({s.out});
      const DType y_type = o.acc_side ? b.acc() : b.t();
      const Pair& y = o.accumulate ? b.in_place(y_type, {s.n, s.out}) : b.out_type(y_type, {s.n, s.out});
      const Values before = o.accumulate ? y.ref() : Values(size_t(s.n * s.out), 0.0);
      b.run([&](int i, Runtime& rt) {
        const Weight weight{.name = "w", .value = w[i]}, bias_weight{.name = "b", .value = bias[i]};
        rt.ops.linear(rt, {x[i], weight, o.bias ? &bias_weight : nullptr, y[i], o.accumulate});
      });
      Values bound = abs_product(x.ref(), w.ref(), s.n, s.out, s.in);
      const Values bias_values = bias.ref();
      for (int64_t r = 0; r < s.n; ++r)
        for (int64_t c = 0; c < s.out; ++c) {
          double& e = bound[size_t(r * s.out + c)];
          e += std::fabs(before[size_t(r * s.out + c)]);
          if (o.bias) e += std::fabs(bias_values[size_t(c)]);
        }
      EXPECT_TRUE(b.close("y", y, bound, 8, epsilon(b.acc())));
    }
  }
}

TEST_P(Linear, Backward) {
  for (const Shape& s : kShapes) {
    for (const Options& o : kOptions) {
      SCOPED_TRACE(::testing::Message() << s.n << " x " << s.in << " -> " << s.out << " bias " << o.bias
                                        << " accumulate " << o.accumulate << " A " << o.acc_side);
      Bench b(GetParam(), 8, o.gaps);
      const Pair& x = b.in({s.n, s.in});
      const Pair& w = b.in({s.out, s.in});
      const DType dy_type = o.acc_side ? b.acc() : b.t();
      const Pair& dy = o.acc_side ? b.in_acc({s.n, s.out}) : b.in({s.n, s.out});
      const Pair& dw = b.accumulator({s.out, s.in});
      const Pair& db = b.accumulator({s.out});
      const Pair& dx = o.accumulate ? b.in_place(b.t(), {s.n, s.in}) : b.out({s.n, s.in});
      const Values dw0 = dw.ref(), db0 = db.ref();
      const Values dx0 = o.accumulate ? dx.ref() : Values(size_t(s.n * s.in), 0.0);
      b.run([&](int i, Runtime& rt) {
        Weight weight{.name = "w", .value = w[i], .grad = dw[i]};
        Weight bias{.name = "b", .grad = db[i]};
        rt.ops.linear_backward(rt, {.x = x[i],
                                    .weight = weight,
                                    .bias = o.bias ? &bias : nullptr,
                                    .dy = dy[i],
                                    .dx = dx[i],
                                    .accumulate = o.accumulate});
      });
      const Values xt = transpose(x.ref(), s.n, s.in), dyt = transpose(dy.ref(), s.n, s.out);
      const Values wt = transpose(w.ref(), s.out, s.in), ones(size_t(s.n), 1.0);
      // A dy in A may be rounded to T on its way into a product.
      const double eps = dy_type == b.t() ? epsilon(b.acc()) : std::max(epsilon(b.acc()), epsilon(b.t()) / 8);
      EXPECT_TRUE(b.close("dx", dx, plus_abs(abs_product(dy.ref(), wt, s.n, s.in, s.out), dx0), 8, eps));
      EXPECT_TRUE(b.close("dw", dw, plus_abs(abs_product(dyt, xt, s.out, s.in, s.n), dw0), 8, eps));
      EXPECT_TRUE(
          b.close("db", db, plus_abs(abs_product(dyt, ones, s.out, 1, s.n), db0), 8, epsilon(b.acc())));
    }
  }
}

// Without a gradient buffer or without dx, the other output is the same.
TEST_P(Linear, BackwardSkipsWhatIsNotWanted) {
  Bench b(GetParam(), 9);
  const Pair& x = b.in({20, 40});
  const Pair& w = b.in({24, 40});
  const Pair& dy = b.in({20, 24});
  const Pair& dx = b.out({20, 40});
  const Pair& dw = b.accumulator({24, 40});
  const Values dw0 = dw.ref();
  b.run([&](int i, Runtime& rt) {
    Weight no_grad{.name = "w", .value = w[i]}, weight{.name = "w", .value = w[i], .grad = dw[i]};
    rt.ops.linear_backward(rt, {x[i], no_grad, nullptr, dy[i], dx[i], false});
    rt.ops.linear_backward(rt, {x[i], weight, nullptr, dy[i], {}, false});
  });
  const Values xt = transpose(x.ref(), 20, 40), dyt = transpose(dy.ref(), 20, 24),
               wt = transpose(w.ref(), 24, 40);
  EXPECT_TRUE(b.close("dx", dx, abs_product(dy.ref(), wt, 20, 40, 24), 8, epsilon(b.acc())));
  EXPECT_TRUE(b.close("dw", dw, plus_abs(abs_product(dyt, xt, 24, 40, 20), dw0)));
}

// A weight that changes (version bumped) must not be read through a stale packed copy.
TEST_P(Linear, NewVersionIsRead) {
  for (const int64_t n : {1, 4, 40}) {
    Bench b(GetParam(), 10);
    const Pair& x = b.in({n, 64});
    const Pair& w1 = b.in({48, 64});
    const Pair& w2 = b.in({48, 64});
    const Pair& w = b.in_place(b.t(), {48, 64});
    const Pair& y = b.out({n, 48});
    const Pair& dx = b.out({n, 64});
    b.run([&](int i, Runtime& rt) {
      Weight weight{.name = "w", .value = w[i]};
      assign(w[i], values(w1[i]));
      rt.ops.linear(rt, {x[i], weight, nullptr, y[i], false});
      rt.ops.linear_backward(rt, {x[i], weight, nullptr, y[i], dx[i], false});
      assign(w[i], values(w2[i]));
      ++weight.version;
      rt.ops.linear(rt, {x[i], weight, nullptr, y[i], false});
      rt.ops.linear_backward(rt, {x[i], weight, nullptr, y[i], dx[i], false});
    });
    const Values y_bound = abs_product(x.ref(), w2.ref(), n, 48, 64);
    EXPECT_TRUE(b.close("y", y, y_bound, 8, epsilon(b.acc())));
    // y itself differs by its rounding between the sides.
    EXPECT_TRUE(b.close("dx", dx, abs_product(y_bound, transpose(w2.ref(), 48, 64), n, 64, 48), 2));
  }
}

// One row alone and the same row among others are the same product (serving and training agree).
TEST_P(Linear, RowsDoNotDependOnTheirNeighbours) {
  Bench b(GetParam(), 11);
  const Pair& x = b.in({40, 72});
  const Pair& w = b.in({56, 72});
  const Pair& whole = b.out_acc({40, 56});
  const Pair& alone = b.out_acc({40, 56});
  b.run([&](int i, Runtime& rt) {
    const Weight weight{.name = "w", .value = w[i]};
    rt.ops.linear(rt, {x[i], weight, nullptr, whole[i], false});
    for (int64_t r = 0; r < 40; ++r)
      rt.ops.linear(rt, {x[i].rows(r, r + 1), weight, nullptr, alone[i].rows(r, r + 1), false});
  });
  const Values bound = abs_product(x.ref(), w.ref(), 40, 56, 72);
  EXPECT_TRUE(b.close("whole", whole, bound));
  EXPECT_TRUE(b.close("alone", alone, bound));
}

// A group is its members one by one, to the bit: few rows (one stream of weights), many, and both in one
// group.
TEST_P(Linear, AGroupIsItsMembers) {
  // Depths with and without whole 16-byte groups of bf16; more than a pass of all warps of a GPU's kernel.
  for (const auto [n, depth] : std::vector<std::pair<int64_t, int64_t>>{{0, 1100},
                                                                        {1, 1100},
                                                                        {2, 1100},
                                                                        {5, 1100},
                                                                        {64, 1100},
                                                                        {90, 1100},
                                                                        {130, 1100},
                                                                        {1, 8},
                                                                        {1, 4360},
                                                                        {2, 2048},
                                                                        {3, 1112},
                                                                        {4, 2312},
                                                                        {5, 2048}}) {
    SCOPED_TRACE(::testing::Message() << n << " rows of " << depth);
    Bench b(GetParam(), 13, true);
    const Pair& x = b.in({n, depth});
    const Pair& w0 = b.in({70, depth});
    const Pair& w1 = b.in({9, depth});
    const Pair& w2 = b.in({33, depth});
    const Pair& bias = b.in({9});
    const Pair& y0 = b.out({n, 70});
    const Pair& y1 = b.out({n, 9});
    const Pair& y2 = b.in_place(b.acc(), {n, 33});
    const Pair& alone0 = b.out({n, 70});
    const Pair& alone1 = b.out({n, 9});
    const Pair& alone2 = b.out_acc({n, 33});
    const Values before = y2.ref();
    b.run([&](int i, Runtime& rt) {
      const Weight a{.name = "a", .value = w0[i]}, c{.name = "c", .value = w1[i]},
          d{.name = "d", .value = w2[i]}, bias_weight{.name = "bias", .value = bias[i]};
      const auto members = [&](const Pair& u, const Pair& v, const Pair& w) {
        return std::vector<LinearForward>{{x[i], a, nullptr, u[i], false},
                                          {x[i], c, &bias_weight, v[i], false},
                                          {x[i], d, nullptr, w[i], true}};
      };
      assign(alone2[i], before);
      for (const LinearForward& member : members(alone0, alone1, alone2)) rt.ops.linear(rt, member);
      rt.ops.linear_group(rt, members(y0, y1, y2));
    });
    EXPECT_EQ(values(y0[1]), values(alone0[1]));
    EXPECT_EQ(values(y1[1]), values(alone1[1]));
    EXPECT_EQ(values(y2[1]), values(alone2[1]));
    EXPECT_TRUE(b.close("y0", y0, abs_product(x.ref(), w0.ref(), n, 70, depth), 8, epsilon(b.acc())));
  }
}

TEST_P(Linear, RefusesWrongShapes) {
  Bench b(GetParam(), 12);
  const Pair& x = b.in({4, 8});
  const Pair& w = b.in({6, 9});
  const Pair& y = b.out({4, 6});
  ThreadPool pool(1);
  Memory& memory = GetParam().ops->memory();
  Arena scratch(memory);
  Runtime rt{pool, scratch, *GetParam().ops, memory};
  const Weight weight{.name = "w", .value = w[1]};
  EXPECT_THROW(rt.ops.linear(rt, {x[1], weight, nullptr, y[1], false}), Error);
}

HYSPARSE_KERNEL_SUITE(Linear);

}  // namespace
}  // namespace hysparse::test
