// linear, linear_group, embedding and head_loss of weights kept as 8-bit integers, against the reference on
// the same integers and scales.
#include "kernels/quantise.h"
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

class Int8 : public KernelTest {};

// A random matrix, quantised; the same memory serves both sides.
struct Quantised {
  Tensor value, scales;
  Values wide;  // value * scale

  Quantised(Rng& rng, int64_t out, int64_t in)
      : value(DType::i8, {out, in}), scales(DType::f32, {out, quant_groups(in)}) {
    std::vector<float> from;
    for (const double x : normals(rng, out * in, 1, DType::f32)) from.push_back(static_cast<float>(x));
    EXPECT_TRUE(quantise_rows(from.data(), out, in, value.view().as<int8_t>(), scales.view().as<float>()));
    const Weight w = weight();
    wide.resize(size_t(out * in));
    for (int64_t r = 0; r < out; ++r) widen_row(w, r, wide.data() + r * in);
  }
  Weight weight() const { return {.name = "w", .value = value, .scales = scales}; }
};

struct Shape {
  int64_t n, in, out;
};
const std::vector<Shape> kShapes = {
    {0, 64, 8},   {1, 1, 1},    {1, 63, 5},    {1, 64, 97},   {1, 200, 64},  {2, 128, 33},   {3, 96, 10},
    {4, 576, 40}, {5, 1000, 3}, {33, 70, 257}, {64, 256, 96}, {65, 200, 65}, {129, 72, 600}, {300, 64, 192}};

// Above 64 rows the integers are rounded to T first (gemm_linear.cpp).
double weight_epsilon(const Bench& b, int64_t n) {
  return n <= 64 ? epsilon(b.acc()) : std::max(epsilon(b.acc()), epsilon(b.t()) / 8);
}

TEST_P(Int8, Linear) {
  if (!GetParam().on_host()) return;  // int8 is the CPU's
  for (const Shape& s : kShapes)
    for (const bool more : {false, true}) {  // bias, +=, gaps, y in A
      SCOPED_TRACE(::testing::Message() << s.n << " x " << s.in << " -> " << s.out << (more ? " more" : ""));
      Bench b(GetParam(), 20, more);
      const Quantised w(b.rng(), s.out, s.in);
      const Pair& x = b.in({s.n, s.in});
      const Pair& bias = b.in({s.out});
      const Pair& y = more ? b.in_place(b.acc(), {s.n, s.out}) : b.out({s.n, s.out});
      const Values before = more ? y.ref() : Values(size_t(s.n * s.out), 0.0);
      b.run([&](int i, Runtime& rt) {
        const Weight weight = w.weight(), bias_weight{.name = "b", .value = bias[i]};
        rt.ops.linear(rt, {x[i], weight, more ? &bias_weight : nullptr, y[i], more});
      });
      Values bound = abs_product(x.ref(), w.wide, s.n, s.out, s.in);
      const Values bias_values = bias.ref();
      for (size_t i = 0; i < bound.size(); ++i)
        bound[i] += std::fabs(before[i]) + (more ? std::fabs(bias_values[i % size_t(s.out)]) : 0);
      EXPECT_TRUE(b.close("y", y, bound, 8, weight_epsilon(b, s.n)));
    }
}

// Beside weights of T in one group; and a row's result does not depend on its neighbours.
TEST_P(Int8, Group) {
  if (!GetParam().on_host()) return;
  for (const int64_t n : {1, 3, 40, 64, 80}) {
    Bench b(GetParam(), 21);
    const Quantised w(b.rng(), 75, 320);
    const Pair& x = b.in({n, 320});
    const Pair& plain = b.in({40, 320});
    const Pair& y0 = b.out_acc({n, 75});
    const Pair& y1 = b.out({n, 40});
    const Pair& alone = b.out_acc({n, 75});
    b.run([&](int i, Runtime& rt) {
      const Weight a = w.weight(), c{.name = "c", .value = plain[i]};
      const std::vector<LinearForward> group = {{x[i], c, nullptr, y1[i], false},
                                                {x[i], a, nullptr, y0[i], false}};
      const Weight* next[] = {&a, &c};
      rt.ops.linear_group(rt, group, next);
      for (int64_t r = 0; r < n; ++r)
        rt.ops.linear(rt, {x[i].rows(r, r + 1), a, nullptr, alone[i].rows(r, r + 1), false});
    });
    const Values bound = abs_product(x.ref(), w.wide, n, 75, 320);
    EXPECT_TRUE(b.close("y0", y0, bound, 8, weight_epsilon(b, n)));
    EXPECT_TRUE(b.close("alone", alone, bound, 8, epsilon(b.acc())));
    EXPECT_TRUE(b.close("y1", y1, abs_product(x.ref(), plain.ref(), n, 40, 320), 8, epsilon(b.acc())));
    if (n <= 64) {
      EXPECT_EQ(values(y0[1]), values(alone[1]));
    }
  }
}

TEST_P(Int8, EmbeddingAndHeadLoss) {
  if (!GetParam().on_host()) return;
  const int64_t vocab = 130, hidden = 100;
  for (const int64_t n : {1, 7, 90}) {
    Bench b(GetParam(), 22);
    const Quantised w(b.rng(), vocab, hidden);
    Tensor tokens(DType::i32, {n}), labels(DType::i32, {n});
    for (int64_t i = 0; i < n; ++i) {
      tokens.view().as<int32_t>()[i] = static_cast<int32_t>((i * 37 + 129) % vocab);
      labels.view().as<int32_t>()[i] = i == 3 ? kIgnoreLabel : static_cast<int32_t>((i * 11 + 5) % vocab);
    }
    const Pair& x = b.in({n, hidden}, 0.3);
    const Pair& y = b.out({n, hidden});
    const Pair& loss = b.out_acc({n});
    b.run([&](int i, Runtime& rt) {
      Weight weight = w.weight();
      rt.ops.embedding(rt, {tokens, weight, y[i]});
      rt.ops.head_loss(rt, {.x = x[i], .weight = weight, .labels = labels, .grad_scale = 0, .loss = loss[i]});
    });
    Values bound;
    for (const double e : y.ref()) bound.push_back(std::fabs(e));
    EXPECT_TRUE(b.close("y", y, bound, 1, epsilon(b.acc())));
    // A loss moves no more than its logits do.
    const Values products = abs_product(x.ref(), w.wide, n, vocab, hidden);
    Values loss_bound;
    for (int64_t i = 0; i < n; ++i)
      loss_bound.push_back(
          2 * *std::max_element(products.begin() + i * vocab, products.begin() + (i + 1) * vocab));
    EXPECT_TRUE(b.close("loss", loss, loss_bound, 8, weight_epsilon(b, n)));
  }
}

TEST_P(Int8, RefusesWhatDoesNotFit) {
  if (!GetParam().on_host()) return;
  Bench b(GetParam(), 23);
  const Quantised w(b.rng(), 6, 128);
  const Pair& x = b.in({4, 128});
  const Pair& y = b.out({4, 6});
  const Pair& dw = b.accumulator({6, 128});
  ThreadPool pool(1);
  Arena scratch;
  Runtime rt{pool, scratch, *GetParam().ops, host_memory()};
  Weight fewer = w.weight();
  fewer.scales = TensorView(w.scales.view().data, DType::f32, {6, 1});
  EXPECT_THROW(rt.ops.linear(rt, {x[1], fewer, nullptr, y[1], false}), Error);
  Weight none = w.weight();
  none.scales = {};
  EXPECT_THROW(rt.ops.linear(rt, {x[1], none, nullptr, y[1], false}), Error);
  Weight trained = w.weight();
  trained.grad = dw[1];
  EXPECT_THROW(rt.ops.linear_backward(rt, {x[1], trained, nullptr, y[1], {}, false}), Error);
}

HYSPARSE_KERNEL_SUITE(Int8);

}  // namespace
}  // namespace hysparse::test
