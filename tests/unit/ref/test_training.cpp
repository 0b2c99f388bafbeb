// AdamW, sums of squares and the row operations of the reference against their formulas.
#include "unit/ref/gradient.h"

namespace hysparse::test {
namespace {

TEST(RefTraining, AdamWFollowsTheFormula) {
  RefBench b(1);
  Buffer value(DType::f64, {3}), grad(DType::f64, {3}), m(DType::f64, {3}), v(DType::f64, {3});
  std::vector<double> w = {1, -2, 0.5}, mm(3, 0.0), vv(3, 0.0);
  assign(value, w);
  assign(m, mm);
  assign(v, vv);
  Weight weight{.name = "w", .value = value, .master = value, .grad = grad};
  for (int64_t step = 1; step <= 5; ++step) {
    const std::vector<double> g = normals(b.rng, 3, 1, DType::f64);
    assign(grad, g);
    b.rt.ops.adamw(b.rt, {weight, m, v, 0.1, 0.9, 0.95, 1e-10, 0.1, 0.5, step});
    EXPECT_EQ(weight.version, uint64_t(step));
    for (size_t i = 0; i < 3; ++i) {
      mm[i] = 0.9 * mm[i] + 0.1 * (0.5 * g[i]);
      vv[i] = 0.95 * vv[i] + 0.05 * (0.25 * g[i] * g[i]);
      const double update =
          mm[i] / (1 - std::pow(0.9, step)) / (std::sqrt(vv[i] / (1 - std::pow(0.95, step))) + 1e-10);
      w[i] = w[i] - 0.1 * update - 0.1 * 0.1 * w[i];
      EXPECT_NEAR(values(value)[i], w[i], 1e-14);
      // The first step moves by lr against the sign of the gradient, beside the decay.
      if (step == 1) {
        EXPECT_NEAR(update, g[i] > 0 ? 1 : -1, 1e-6);
      }
    }
  }
}

TEST(RefTraining, SumSquaresAddsUp) {
  RefBench b(1);
  Buffer sum(DType::f64, {1});
  assign(sum, {1});
  for (const DType t : {DType::f64, DType::f32, DType::bf16}) {
    Buffer x(t, {3});
    assign(x, {1, 2, 3});
    b.rt.ops.sum_squares(b.rt, {x, sum});
  }
  EXPECT_EQ(values(sum)[0], 1 + 3 * 14);
}

TEST(RefTraining, RowsAddCastGather) {
  RefBench b(2);
  const TensorView x = b.random({4, 3}), y = b.random({4, 3}), sum = b.random({4, 3}),
                   some = b.random({2, 3});
  b.rt.ops.add(b.rt, {x, y, sum});
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(values(sum)[i], values(x)[i] + values(y)[i]);
  const std::vector<int64_t> rows = {3, 0};
  b.rt.ops.gather_rows(b.rt, {x, rows.data(), some});
  EXPECT_EQ(values(some.rows(0, 1)), values(x.rows(3, 4)));
  EXPECT_EQ(values(some.rows(1, 2)), values(x.rows(0, 1)));
  Buffer narrow(DType::bf16, {4, 3}, true);
  b.rt.ops.cast(b.rt, {x, narrow});
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(values(narrow)[i], round_to(DType::bf16, values(x)[i]));
  EXPECT_TRUE(narrow.untouched());
}

TEST(RefTraining, ErrorsNameTheArgument) {
  RefBench b(3);
  const TensorView x = b.random({4, 3}), w = b.random({5, 2}), y = b.random({4, 5});
  const Weight weight{.name = "w", .value = w};
  try {
    b.rt.ops.linear(b.rt, {x, weight, nullptr, y, false});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("linear: weight: expected f64[any, 3], got f64[5, 2]"),
              std::string::npos)
        << e.what();
    EXPECT_EQ(e.kind(), ErrorKind::failure);
  }
}

}  // namespace
}  // namespace hysparse::test
