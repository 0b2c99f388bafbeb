// Cross entropy, head loss, AdamW and the sum of squares against the reference.
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

class Training : public KernelTest {};

std::vector<double> labels_of(Rng& rng, int64_t n, int64_t vocab) {
  std::vector<double> y;
  for (int64_t i = 0; i < n; ++i)
    y.push_back(i % 5 == 3 ? kIgnoreLabel : static_cast<double>(rng.below(uint64_t(vocab))));
  return y;
}

TEST_P(Training, CrossEntropy) {
  struct Shape {
    int64_t n, vocab;
    double sigma;
  };
  for (const Shape s : {Shape{1, 1, 1}, {6, 2, 1}, {9, 17, 3}, {20, 97, 1}, {5, 1000, 5}, {6, 33, 3000}})
    for (const int where : {0, 1, 2})  // dlogits in T, in A over the logits, not wanted
      for (const bool gaps : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << s.n << " x " << s.vocab << " sigma " << s.sigma << " where " << where);
        Bench b(GetParam(), 41, gaps);
        const Pair& z = b.in_place(b.acc(), {s.n, s.vocab}, s.sigma);
        const Pair& labels = b.in_values(DType::i32, {s.n}, labels_of(b.rng(), s.n, s.vocab));
        const Pair& loss = b.out_acc({s.n});
        const Pair& dz = b.out({s.n, s.vocab});
        const Values z0 = z.ref();
        b.run([&](int i, Runtime& rt) {
          rt.ops.cross_entropy(rt, {z[i], labels[i], 0.37, loss[i],
                                    where == 0   ? dz[i]
                                    : where == 1 ? z[i]
                                                 : TensorView{}});
        });
        Values loss_bound, dz_bound;
        for (int64_t t = 0; t < s.n; ++t) {
          double largest = 0;
          for (int64_t v = 0; v < s.vocab; ++v)
            largest = std::max(largest, std::fabs(z0[size_t(t * s.vocab + v)]));
          loss_bound.push_back(largest + 8);
          for (int64_t v = 0; v < s.vocab; ++v) dz_bound.push_back(0.37 * (1 + largest));
        }
        EXPECT_TRUE(b.close("loss", loss, loss_bound, 4));
        const Pair& gradient = where == 1 ? z : dz;
        if (where == 2) continue;
        // A gradient entry is p or p - 1: its error is relative to p, except at the label.
        const Values y = labels.ref(), dz1 = gradient.ref();
        for (size_t i = 0; i < dz_bound.size(); ++i) {
          const int64_t label = static_cast<int64_t>(y[i / size_t(s.vocab)]);
          if (label != static_cast<int64_t>(i % size_t(s.vocab))) dz_bound[i] *= std::fabs(dz1[i]) / 0.37;
        }
        EXPECT_TRUE(b.close("dlogits", gradient, dz_bound, 4, epsilon(b.acc())));
        const Values g = gradient.got();
        for (int64_t t = 3; t < s.n; t += 5)
          for (int64_t v = 0; v < s.vocab; ++v)
            ASSERT_EQ(g[size_t(t * s.vocab + v)], 0) << "ignored row " << t;
      }
}

TEST_P(Training, CrossEntropyRefusesForeignLabels) {
  for (const double bad : {-1.0, 5.0}) {
    Bench b(GetParam(), 42);
    const Pair& z = b.in_acc({2, 5});
    const Pair& labels = b.in_values(DType::i32, {2}, {0, bad});
    const Pair& loss = b.out_acc({2});
    ThreadPool pool(1);
    Memory& memory = GetParam().ops->memory();
    Arena scratch(memory);
    Runtime rt{pool, scratch, *GetParam().ops, memory};
    if (GetParam().on_host()) {
      EXPECT_THROW(rt.ops.cross_entropy(rt, {z[1], labels[1], 1, loss[1], {}}), Error);
    } else {  // a device does not stop for it: the loss is NaN
      rt.ops.cross_entropy(rt, {z[1], labels[1], 1, loss[1], {}});
      memory.synchronize();
      EXPECT_TRUE(std::isnan(loss.got()[1]) && !std::isnan(loss.got()[0]));
    }
  }
}

TEST_P(Training, HeadLoss) {
  struct Shape {
    int64_t n, hidden, vocab;
  };
  std::vector<Shape> shapes = {{1, 8, 5}, {20, 32, 97}, {130, 16, 64}};
  // More rows than one chunk of the default chain holds (64 MB of logits).
  if (GetParam().main) shapes.push_back({300, 8, 70001});
  for (const Shape s : shapes)
    for (const int mode : {0, 1, 2, 3}) {  // all gradients, dx alone, weight.grad alone, losses alone
      if (s.vocab > 1000 && mode != 0) continue;
      SCOPED_TRACE(::testing::Message() << s.n << " x " << s.hidden << " x " << s.vocab << " mode " << mode);
      Bench b(GetParam(), 43, s.n == 20);
      const Pair& x = b.in({s.n, s.hidden});
      const Pair& w = b.in({s.vocab, s.hidden}, 0.5);
      const Pair& labels = b.in_values(DType::i32, {s.n}, labels_of(b.rng(), s.n, s.vocab));
      const Pair& loss = b.out_acc({s.n});
      const Pair& dx = b.in_place(b.t(), {s.n, s.hidden});  // to see that losses alone leave it
      const Pair& dw = b.accumulator({s.vocab, s.hidden});
      const Values dx0 = dx.ref(), dw0 = dw.ref();
      b.run([&](int i, Runtime& rt) {
        Weight weight{.name = "head", .value = w[i]};
        if (mode != 1) weight.grad = dw[i];
        rt.ops.head_loss(rt, {x[i], weight, labels[i], mode == 3 ? 0.0 : 0.1, loss[i],
                              mode == 0 || mode == 1 || mode == 3 ? dx[i] : TensorView{}});
      });
      const Values logit_bound =
          s.vocab > 1000 ? Values() : abs_product(x.ref(), w.ref(), s.n, s.vocab, s.hidden);
      double largest = s.vocab > 1000 ? 32 : 0;
      for (double e : logit_bound) largest = std::max(largest, e);
      EXPECT_TRUE(b.close("loss", loss, Values(size_t(s.n), largest + 8), 8));
      if (mode == 3 || mode == 2) {
        EXPECT_EQ(dx.got(), dx0);
      }
      if (mode == 3 || mode == 1) {
        EXPECT_EQ(dw.got(), dw0);
      }
      // dlogits sum to at most 2 x 0.1 a row and are rounded to T.
      const double eps = epsilon(b.t()) + epsilon(b.acc()) * (largest + 8);
      if (mode == 0 || mode == 1) {
        EXPECT_TRUE(b.close("dx", dx, Values(dx0.size(), 0.2 * 4 * 0.5), 2, eps));
      }
      if (mode == 0 || mode == 2) {
        Values column(dw0.size(), 0.0);  // sum over rows of |dlogits| |x| <= 0.1 sum |x|
        double sum = 0;
        for (double e : x.ref()) sum = std::max(sum, std::fabs(e));
        const Values dw1 = dw.ref();
        for (size_t i = 0; i < column.size(); ++i)
          column[i] = std::fabs(dw0[i]) + 2 * std::fabs(dw1[i] - dw0[i]) + 0.1 * sum;
        EXPECT_TRUE(b.close("dw", dw, column, 2, eps));
      }
    }
}

TEST_P(Training, AdamW) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{1}, {17}, {8, 13}, {64, 33}})
    for (const int64_t step : {1, 2, 1000, 1000000}) {
      SCOPED_TRACE(::testing::Message() << "step " << step);
      Bench b(GetParam(), 44);
      const bool own_master = b.t() != b.acc();
      const Pair& master = b.in_place(b.acc(), dims);
      const Pair& value = b.out(dims);  // used where T is narrower than the master
      const Pair& grad = b.in_acc(dims);
      const Pair& m = b.in_place(b.acc(), dims);
      Values v0;
      for (double e : normals(b.rng(), int64_t(m.ref().size()), 1, b.acc()))
        v0.push_back(round_to(b.acc(), e * e));
      const Pair& v_start = b.in_values(b.acc(), dims, v0);
      const Pair& v = b.out_acc(dims);
      const Values master0 = master.ref(), m0 = m.ref(), g = grad.ref();
      const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-10, wd = 0.1, scale = 0.5;
      uint64_t versions[2] = {0, 0};
      b.run([&](int i, Runtime& rt) {
        assign(v[i], values(v_start[i]));
        Weight weight{.name = "w",
                      .value = i == 1 && own_master ? value[i] : master[i],
                      .master = master[i],
                      .grad = grad[i]};
        rt.ops.adamw(rt, {weight, m[i], v[i], lr, b1, b2, eps, wd, scale, step});
        versions[i] = weight.version;
      });
      EXPECT_GT(versions[1], 0u);
      const Values v1 = v.ref();
      Values m_bound, v_bound, master_bound;
      const double bias1 = 1 - std::pow(b1, double(step)), bias2 = 1 - std::pow(b2, double(step));
      for (size_t i = 0; i < g.size(); ++i) {
        m_bound.push_back(b1 * std::fabs(m0[i]) + (1 - b1) * std::fabs(scale * g[i]));
        v_bound.push_back(v1[i]);
        master_bound.push_back(
            std::fabs(master0[i]) +
            lr * (m_bound[i] / bias1 / (std::sqrt(v1[i] / bias2) + eps) + wd * std::fabs(master0[i])));
      }
      EXPECT_TRUE(b.close("m", m, m_bound, 4));
      EXPECT_TRUE(b.close("v", v, v_bound, 4));
      EXPECT_TRUE(b.close("master", master, master_bound, 4));
      if (own_master) {
        const Values stored = value.got(), moved = master.got();
        for (size_t i = 0; i < g.size(); ++i) ASSERT_EQ(stored[i], round_to(b.t(), moved[i]));
      }
    }
}

TEST_P(Training, SumSquares) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (const int64_t n : {0, 1, 7, 64, 1001, 100000}) {
      Bench b(GetParam(), 45);
      const Pair& x = b.in_values(type, {n}, normals(b.rng(), n, 3, type));
      const Pair& sum = b.in_place(DType::f64, {1});
      const Values sum0 = sum.ref();
      b.run([&](int i, Runtime& rt) { rt.ops.sum_squares(rt, {x[i], sum[i]}); });
      // The plain running sum of the reference is itself off by about sqrt(n) roundings.
      EXPECT_TRUE(b.close("sum", sum, {std::fabs(sum0[0]) + 10.0 * double(n)}, 64 + std::sqrt(double(n))));
    }
}

HYSPARSE_KERNEL_SUITE(Training);

}  // namespace
}  // namespace hysparse::test
