// Every backward operation of the reference, but attention, against central differences.
#include "unit/ref/gradient.h"

namespace hysparse::test {
namespace {

TEST(RefGradients, Embedding) {
  RefBench b(1);
  const TensorView tokens = b.ints({6}, {3, 0, 3, 4, 1, 3}), table = b.random({5, 4}), y = b.random({6, 4}),
                   dy = b.random({6, 4}), grad = b.zeros({5, 4});
  Weight w{.name = "embed", .value = table, .grad = grad};
  const auto loss = [&] {
    b.rt.ops.embedding(b.rt, {tokens, w, y});
    return inner(y, dy);
  };
  b.rt.ops.embedding_backward(b.rt, {tokens, dy, w});
  expect_gradient("embedding", table, grad, loss);
}

TEST(RefGradients, RmsNorm) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{3, 7}, {2, 3, 4}}) {
    RefBench b(2);
    const TensorView x = b.random(dims), weight = b.random({dims.back()}), y = b.random(dims),
                     dy = b.random(dims), dx = b.random(dims), grad = b.zeros({dims.back()}),
                     rstd = b.random({dims.begin(), dims.end() - 1});
    Weight w{.name = "norm", .value = weight, .grad = grad};
    const auto loss = [&] {
      b.rt.ops.rmsnorm(b.rt, {x, w, 0.1, y, {}});
      return inner(y, dy);
    };
    b.rt.ops.rmsnorm(b.rt, {x, w, 0.1, y, rstd});
    b.rt.ops.rmsnorm_backward(b.rt, {x, w, rstd, dy, dx, false});
    expect_gradient("x", x, dx, loss);
    expect_gradient("weight", weight, grad, loss);
    const TensorView twice = b.zeros(dims);  // accumulate: dx + dx
    assign(twice, values(dx));
    b.rt.ops.rmsnorm_backward(b.rt, {x, w, rstd, dy, twice, true});
    for (size_t i = 0; i < values(dx).size(); ++i) ASSERT_DOUBLE_EQ(values(twice)[i], 2 * values(dx)[i]);
  }
}

TEST(RefGradients, LinearWithBias) {
  RefBench b(3);
  const TensorView x = b.random({5, 6}), weight = b.random({4, 6}), bias = b.random({4}),
                   y = b.random({5, 4}), dy = b.random({5, 4}), dx = b.random({5, 6}), dw = b.zeros({4, 6}),
                   db = b.zeros({4});
  Weight w{.name = "w", .value = weight, .grad = dw}, c{.name = "b", .value = bias, .grad = db};
  const auto loss = [&] {
    b.rt.ops.linear(b.rt, {x, w, &c, y, false});
    return inner(y, dy);
  };
  b.rt.ops.linear_backward(b.rt, {x, w, &c, dy, dx, false});
  expect_gradient("x", x, dx, loss);
  expect_gradient("weight", weight, dw, loss);
  expect_gradient("bias", bias, db, loss);
  const std::vector<double> dx1 = values(dx), dw1 = values(dw), db1 = values(db);
  b.rt.ops.linear_backward(b.rt, {x, w, &c, dy, dx, true});
  for (size_t i = 0; i < dx1.size(); ++i) EXPECT_DOUBLE_EQ(values(dx)[i], 2 * dx1[i]);
  for (size_t i = 0; i < dw1.size(); ++i) EXPECT_NEAR(values(dw)[i], 2 * dw1[i], 1e-14);
  for (size_t i = 0; i < db1.size(); ++i) EXPECT_NEAR(values(db)[i], 2 * db1[i], 1e-14);
}

// A rotation: inverse undoes it, and is its transpose, which is what backward applies.
TEST(RefGradients, Rope) {
  RefBench b(4);
  const std::vector<int32_t> position = {0, 5, 3};
  const TensorView angle = b.random({6, 3}, 2), cos = b.random({6, 3}), sin = b.random({6, 3}),
                   x = b.random({3, 2, 8}), dy = b.random({3, 2, 8}), dx = b.random({3, 2, 8});
  std::vector<double> c, s;
  for (double a : values(angle)) {
    c.push_back(std::cos(a));
    s.push_back(std::sin(a));
  }
  assign(cos, c);
  assign(sin, s);
  const std::vector<double> before = values(x);
  const auto rotate = [&](const TensorView& v, bool inverse) {
    b.rt.ops.rope(b.rt, {v, position.data(), cos, sin, inverse});
  };
  const auto loss = [&] {
    const std::vector<double> keep = values(x);
    rotate(x, false);
    const double sum = inner(x, dy);
    assign(x, keep);
    return sum;
  };
  assign(dx, values(dy));
  rotate(dx, true);
  expect_gradient("x", x, dx, loss);
  rotate(x, false);
  // Half-split pairing: (x_i, x_{i+3}), and dims 6, 7 stay.
  const std::vector<double> after = values(x);
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t i = 0; i < 8; ++i) {
        const size_t at = size_t((row * 2 + h) * 8);
        const double co = i < 6 ? c[size_t(position[size_t(row)] * 3 + i % 3)] : 1;
        const double si = i < 6 ? s[size_t(position[size_t(row)] * 3 + i % 3)] : 0;
        const double other = i < 3 ? -before[at + size_t(i) + 3] : i < 6 ? before[at + size_t(i) - 3] : 0;
        EXPECT_NEAR(after[at + size_t(i)], before[at + size_t(i)] * co + other * si, 1e-14);
      }
  rotate(x, true);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(values(x)[i], before[i], 1e-14);
}

TEST(RefGradients, Swiglu) {
  RefBench b(5);
  const TensorView gate = b.random({3, 5}, 2), up = b.random({3, 5}), h = b.random({3, 5}),
                   dh = b.random({3, 5}), dgate = b.random({3, 5}), dup = b.random({3, 5});
  const auto loss = [&] {
    b.rt.ops.swiglu(b.rt, {gate, up, h});
    return inner(h, dh);
  };
  b.rt.ops.swiglu_backward(b.rt, {gate, up, dh, dgate, dup});
  expect_gradient("gate", gate, dgate, loss);
  expect_gradient("up", up, dup, loss);
}

TEST(RefGradients, GatedSum) {
  for (const bool channel : {false, true})
    for (const bool two : {false, true}) {
      RefBench b(6);
      const std::vector<int64_t> dims = {3, 2, 4}, gates = {3, channel ? 8 : 2};
      const TensorView a = b.random(dims), z = b.random(dims), ga = b.random(gates), gz = b.random(gates),
                       out = b.random(dims), d_out = b.random(dims), da = b.random(dims), dz = b.random(dims),
                       dga = b.random(gates), dgz = b.random(gates);
      const TensorView zb = two ? z : TensorView{}, gb = two ? gz : TensorView{};
      const auto loss = [&] {
        b.rt.ops.gated_sum(b.rt, {a, ga, zb, gb, out});
        return inner(out, d_out);
      };
      b.rt.ops.gated_sum_backward(b.rt, {a, ga, zb, gb, d_out, da, two ? dz : zb, dga, two ? dgz : gb});
      expect_gradient("a", a, da, loss);
      expect_gradient("gate_a", ga, dga, loss);
      if (!two) continue;
      expect_gradient("b", z, dz, loss);
      expect_gradient("gate_b", gz, dgz, loss);
    }
}

TEST(RefGradients, CrossEntropy) {
  RefBench b(7);
  const TensorView z = b.random({4, 6}, 3), labels = b.ints({4}, {2, kIgnoreLabel, 0, 5}),
                   loss = b.random({4}), dz = b.random({4, 6});
  const auto sum = [&] {
    b.rt.ops.cross_entropy(b.rt, {z, labels, 1, loss, {}});
    double total = 0;
    for (double e : values(loss)) total += 0.7 * e;
    return total;
  };
  b.rt.ops.cross_entropy(b.rt, {z, labels, 0.7, loss, dz});
  expect_gradient("logits", z, dz, sum);
  EXPECT_EQ(values(loss)[1], 0);
  for (int64_t i = 6; i < 12; ++i) EXPECT_EQ(values(dz)[size_t(i)], 0);
  // The loss is -log softmax.
  double denominator = 0;
  for (int64_t i = 0; i < 6; ++i) denominator += std::exp(values(z)[size_t(i)]);
  EXPECT_NEAR(values(loss)[0], -std::log(std::exp(values(z)[2]) / denominator), 1e-12);
  // In place.
  const std::vector<double> expected = values(dz);
  b.rt.ops.cross_entropy(b.rt, {z, labels, 0.7, loss, z});
  EXPECT_EQ(values(z), expected);
}

TEST(RefGradients, HeadLoss) {
  RefBench b(8);
  const TensorView x = b.random({70, 5}), weight = b.random({9, 5}), loss = b.random({70}),
                   dx = b.random({70, 5}), dw = b.zeros({9, 5});
  std::vector<double> y;
  for (int64_t i = 0; i < 70; ++i) y.push_back(i % 7 == 2 ? kIgnoreLabel : double(b.rng.below(9)));
  const TensorView labels = b.ints({70}, y);
  Weight w{.name = "head", .value = weight, .grad = dw}, frozen{.name = "head", .value = weight};
  const auto sum = [&] {
    b.rt.ops.head_loss(b.rt, {x, frozen, labels, 0, loss, {}});
    double total = 0;
    for (double e : values(loss)) total += 0.3 * e;
    return total;
  };
  b.rt.ops.head_loss(b.rt, {x, w, labels, 0.3, loss, dx});
  expect_gradient("x", x, dx, sum);
  expect_gradient("weight", weight, dw, sum);
}

TEST(RefGradients, AddRmsNorm) {
  RefBench b(9);
  const TensorView x = b.random({3, 4}), delta = b.random({3, 4}), weight = b.random({4}),
                   y = b.random({3, 4}), y2 = b.random({3, 4}), rstd = b.random({3}), rstd2 = b.random({3}),
                   sum = b.random({3, 4});
  const Weight w{.name = "norm", .value = weight};
  b.rt.ops.add(b.rt, {x, delta, sum});
  b.rt.ops.rmsnorm(b.rt, {sum, w, 1e-6, y2, rstd2});
  b.rt.ops.add_rmsnorm(b.rt, {x, delta, w, 1e-6, y, rstd});
  EXPECT_EQ(values(x), values(sum));
  EXPECT_EQ(values(y), values(y2));
  EXPECT_EQ(values(rstd), values(rstd2));
}

}  // namespace
}  // namespace hysparse::test
