// What the parity harness does not reach: long rows, chunk borders, exact orders and messages.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/elem_kernels.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {
namespace {

class ElemOps : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_cpu_dispatch_level(GetParam()); }
  void TearDown() override { force_cpu_dispatch_level(""); }

  Runtime runtime(int threads) {
    pool_ = std::make_unique<ThreadPool>(threads);
    return {*pool_, scratch_, cpu_ops(), host_memory()};
  }

 private:
  std::unique_ptr<ThreadPool> pool_;
  Arena scratch_;
};

Tensor random_tensor(DType t, std::initializer_list<int64_t> dims, uint64_t seed, double sigma = 1) {
  Rng rng(seed);
  Tensor x(t, dims);
  assign(x.view(), normals(rng, x.view().numel(), sigma, t));
  return x;
}

// A vocabulary of several runs of the loss's sum, a last one that is ragged, logits far apart.
TEST_P(ElemOps, CrossEntropyOfALongRow) {
  for (const double sigma : {1.0, 40.0}) {
    const int64_t vocab = 3 * 4096 + 77;
    const Tensor logits = random_tensor(DType::f32, {vocab}, 3, sigma);
    const std::vector<double> x = values(logits.view());
    const int64_t label = 4097;
    double max = -kInf, sum = 0;
    for (double e : x) max = std::max(max, e);
    for (double e : x) sum += std::exp(e - max);
    const double loss = std::log(sum) + max - x[size_t(label)];
    std::vector<float> d(static_cast<size_t>(vocab));
    const float got =
        elem::cross_entropy(logits.view().as<float>(), vocab, label, 2.0f, d.data(), DType::f32);
    EXPECT_NEAR(got, loss, 8 * epsilon(DType::f32) * (std::fabs(loss) + 1));
    double total = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      const double p = std::exp(x[size_t(i)] - max) / sum, shift = max - x[size_t(i)];
      ASSERT_NEAR(d[size_t(i)], 2 * (p - (i == label)),
                  1e-37 + 4 * epsilon(DType::f32) * (2 * p * (1 + shift) + (i == label)));
      total += d[size_t(i)];
    }
    EXPECT_NEAR(total, 0, 1e-5);  // the gradient of a softmax sums to nothing
  }
}

TEST_P(ElemOps, CrossEntropyOfMaskedAndBrokenLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(37, -inf), d(37);
  x[5] = 1e4f;
  EXPECT_EQ(elem::cross_entropy(x.data(), 37, 5, 1.0f, d.data(), DType::f32), 0.0f);
  for (float e : d) EXPECT_EQ(e, 0.0f);
  EXPECT_EQ(elem::cross_entropy(x.data(), 37, 6, 1.0f, d.data(), DType::f32), inf);
  for (const int at : {0, 20, 36}) {
    x.assign(37, 0.5f);
    x[size_t(at)] = std::nanf("");
    EXPECT_TRUE(std::isnan(elem::cross_entropy(x.data(), 37, 3, 1.0f, nullptr, DType::f32))) << at;
  }
}

// More rows than a chunk of logits, some ignored: equal to the whole matrix at once.
TEST_P(ElemOps, HeadLossAcrossChunks) {
  const int64_t n = 600, hidden = 24, vocab = 50;
  for (const DType t : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor(t, {n, hidden}, 1), w = random_tensor(t, {vocab, hidden}, 2);
    Tensor labels(DType::i32, {n});
    Rng rng(4);
    for (int64_t i = 0; i < n; ++i)
      labels.view().as<int32_t>()[i] =
          i % 7 == 0 ? kIgnoreLabel : static_cast<int32_t>(rng.below(uint64_t(vocab)));
    std::vector<double> xs = values(x.view()), ws = values(w.view());
    std::vector<double> loss(size_t(n), 0.0), dx(size_t(n * hidden), 0.0), dw(size_t(vocab * hidden), 0.0);
    const double scale = 0.25;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t label = labels.view().as<int32_t>()[i];
      if (label == kIgnoreLabel) continue;
      std::vector<double> z(size_t(vocab), 0.0);
      double sum = 0;
      for (int64_t v = 0; v < vocab; ++v) {
        for (int64_t h = 0; h < hidden; ++h)
          z[size_t(v)] += xs[size_t(i * hidden + h)] * ws[size_t(v * hidden + h)];
        sum += std::exp(z[size_t(v)]);
      }
      loss[size_t(i)] = std::log(sum) - z[size_t(label)];
      for (int64_t v = 0; v < vocab; ++v) {
        const double g = scale * (std::exp(z[size_t(v)]) / sum - (v == label));
        for (int64_t h = 0; h < hidden; ++h) {
          dx[size_t(i * hidden + h)] += g * ws[size_t(v * hidden + h)];
          dw[size_t(v * hidden + h)] += g * xs[size_t(i * hidden + h)];
        }
      }
    }
    for (const int threads : {1, 3}) {
      Tensor got_loss(DType::f32, {n}), got_dx(t, {n, hidden}), grad(DType::f32, {vocab, hidden});
      Weight weight{.name = "head", .value = w, .grad = grad};
      Runtime rt = runtime(threads);
      cpu_ops().head_loss(rt, {x, weight, labels, scale, got_loss, got_dx});
      const double e = t == DType::f32 ? 1e-5 : 2e-2;
      const std::vector<double> l = values(got_loss.view()), gx = values(got_dx.view()),
                                gw = values(grad.view());
      for (size_t i = 0; i < l.size(); ++i) ASSERT_NEAR(l[i], loss[i], 1e-5 * (1 + loss[i])) << i;
      for (size_t i = 0; i < gx.size(); ++i) ASSERT_NEAR(gx[i], dx[i], e) << i;
      for (size_t i = 0; i < gw.size(); ++i) ASSERT_NEAR(gw[i], dw[i], 10 * e) << i;
    }
    // Without gradients only the loss is written.
    Tensor got_loss(DType::f32, {n}), grad(DType::f32, {vocab, hidden});
    Weight weight{.name = "head", .value = w, .grad = grad};
    Runtime rt = runtime(2);
    cpu_ops().head_loss(rt, {x, weight, labels, 0.0, got_loss, {}});
    for (const double g : values(grad.view())) ASSERT_EQ(g, 0.0);
    for (int64_t i = 0; i < n; ++i)
      ASSERT_NEAR(load(got_loss.view(), i), loss[size_t(i)], 1e-5 * (1 + loss[size_t(i)]));
  }
}

// Gradients of one id add up in token order, whatever else the batch holds.
TEST_P(ElemOps, EmbeddingBackwardInTokenOrder) {
  const int64_t n = 500, hidden = 130, vocab = 5;
  const Tensor dy = random_tensor(DType::f32, {n, hidden}, 8, 100);
  Tensor tokens(DType::i32, {n});
  for (int64_t i = 0; i < n; ++i) tokens.view().as<int32_t>()[i] = static_cast<int32_t>(i * i % vocab);
  Tensor grad = random_tensor(DType::f32, {vocab, hidden}, 9);
  std::vector<float> expected(grad.view().as<float>(), grad.view().as<float>() + vocab * hidden);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t h = 0; h < hidden; ++h)
      expected[size_t(tokens.view().as<int32_t>()[i] * hidden + h)] += dy.view().as<float>()[i * hidden + h];
  Weight weight{.name = "embedding", .value = grad, .grad = grad};
  Runtime rt = runtime(3);
  cpu_ops().embedding_backward(rt, {tokens, dy, weight});
  for (int64_t i = 0; i < vocab * hidden; ++i)
    ASSERT_EQ(grad.view().as<float>()[i], expected[size_t(i)]) << i;
}

TEST_P(ElemOps, ForeignTokenIsNamed) {
  const Tensor table = random_tensor(DType::f32, {97, 8}, 1);
  Tensor tokens(DType::i32, {3}), y(DType::f32, {3, 8});
  const Weight weight{.name = "model.embed_tokens.weight", .value = table};
  Runtime rt = runtime(1);
  for (const int32_t bad : {97, -1}) {
    tokens.view().as<int32_t>()[1] = bad;
    try {
      cpu_ops().embedding(rt, {tokens, weight, y});
      FAIL() << "id " << bad << " was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      const std::string what = e.what();
      EXPECT_NE(what.find(std::to_string(bad)), std::string::npos) << what;
      EXPECT_NE(what.find("97"), std::string::npos) << what;
      EXPECT_NE(what.find("model.embed_tokens.weight"), std::string::npos) << what;
    }
  }
}

// A gradient that overflowed or holds a NaN must show in the norm.
TEST_P(ElemOps, SumSquaresShowsBrokenGradients) {
  for (const double bad : {kInf, -kInf, kNaN, 3e38}) {
    Tensor x(DType::f32, {100001}), out(DType::f64, {1});
    store(x.view(), 70000, bad);
    Runtime rt = runtime(2);
    cpu_ops().sum_squares(rt, {x, out});
    const double sum = load(out.view(), 0);
    if (std::isfinite(bad))
      EXPECT_NEAR(sum, std::pow(static_cast<double>(static_cast<float>(bad)), 2), 1e63);
    else
      EXPECT_FALSE(std::isfinite(sum)) << bad;
  }
}

TEST_P(ElemOps, Float64IsRefused) {
  Tensor a(DType::f64, {2, 4});
  Runtime rt = runtime(1);
  EXPECT_THROW(cpu_ops().add(rt, {a, a, a}), Error);
  EXPECT_THROW(cpu_ops().swiglu(rt, {a, a, a}), Error);
  const Weight w{.name = "w", .value = a};
  Tensor y(DType::f64, {2, 2});
  EXPECT_THROW(cpu_ops().linear(rt, {a, w, nullptr, y, false}), Error);
}

std::vector<std::string> levels() {
  std::vector<std::string> list = cpu_dispatch_levels();
  list.insert(list.begin(), "");
  return list;
}
INSTANTIATE_TEST_SUITE_P(Levels, ElemOps, ::testing::ValuesIn(levels()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("best") : info.param;
                         });

}  // namespace
}  // namespace hysparse::test
