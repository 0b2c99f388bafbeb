// The reference's mixture of experts: choices, tables, and every gradient against central differences.
#include "unit/ref/gradient.h"

namespace hysparse::test {
namespace {

// Tables of a choice, in host memory.
struct Tables {
  Tables(RefBench& b, const TensorView& experts, int64_t count)
      : offset(b.ints({count + 1}, std::vector<double>(size_t(count + 1), 0))),
        source(b.ints({experts.numel()}, std::vector<double>(size_t(experts.numel()), 0))),
        slot(b.ints({experts.dim(0), experts.dim(1)}, std::vector<double>(size_t(experts.numel()), 0))) {
    b.rt.ops.expert_tables(b.rt, {experts, {}, view(), {}});
  }
  ExpertTables view() const { return {offset, source, slot}; }
  TensorView offset, source, slot;
};

std::vector<Weight> group(const TensorView& values, const TensorView& grads) {
  std::vector<Weight> out;
  for (int64_t e = 0; e < values.dim(0); ++e)
    out.push_back({.name = "expert", .value = values.at(e), .grad = grads ? grads.at(e) : TensorView{}});
  return out;
}

TEST(RefExperts, TheLargestBiasedScoresAreChosenAndTiesGoToTheLowerExpert) {
  RefBench b(1);
  const double nan = std::nan("");
  const TensorView logits = b.zeros({6, 5}), bias = b.zeros({5}), weights = b.zeros({6, 2});
  const TensorView experts = b.ints({6, 2}, std::vector<double>(12, -7));
  assign(logits, {0,   0,   0,   0,   0,    //
                  1,   2,   3,   2,   1,    //
                  3,   1,   2,   2,   0,    //
                  5,   4,   3,   2,   1,    //
                  nan, -1,  nan, -2,  nan,  //
                  nan, nan, nan, nan, 0});
  const auto route = [&](bool normalise, double scale) {
    b.rt.ops.route(b.rt, {logits, bias, normalise, scale, false, experts, weights});
  };
  route(true, 2);
  EXPECT_EQ(values(experts), (std::vector<double>{0, 1, 1, 2, 0, 2, 0, 1, 1, 3, 0, 4}));
  const auto s = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(values(weights)[0], 1, 1e-15);
  EXPECT_NEAR(values(weights)[2], 2 * s(2) / (s(2) + s(3)), 1e-15);
  EXPECT_NEAR(values(weights)[3], 2 * s(3) / (s(2) + s(3)), 1e-15);
  route(false, 2);
  EXPECT_NEAR(values(weights)[2], 2 * s(2), 1e-15);
  // The bias decides who is chosen and has no part in the weights.
  assign(bias, {0, 0, 0, 0.5, 0.5});
  route(true, 1);
  EXPECT_EQ(values(experts)[0], 3);
  EXPECT_EQ(values(experts)[1], 4);
  EXPECT_NEAR(values(weights)[0], 0.5, 1e-15);
  // Scores that vanish give weights of 0, not NaN.
  assign(logits, std::vector<double>(30, -800));
  route(true, 1);
  for (double w : values(weights)) EXPECT_EQ(w, 0);
}

TEST(RefExperts, TablesAreOrderedByExpertThenToken) {
  RefBench b(2);
  const TensorView experts = b.ints({4, 2}, {0, 3, 1, 3, 0, 1, 3, 4});
  const Tables t(b, experts, 6);
  EXPECT_EQ(values(t.offset), (std::vector<double>{0, 2, 4, 4, 7, 8, 8}));
  EXPECT_EQ(values(t.source), (std::vector<double>{0, 4, 2, 5, 1, 3, 6, 7}));
  EXPECT_EQ(values(t.slot), (std::vector<double>{0, 4, 2, 5, 1, 3, 6, 7}));
  const TensorView labels = b.ints({4}, {5, kIgnoreLabel, 5, 5});
  const Tensor load(DType::i64, {6});
  for (int i = 0; i < 2; ++i) b.rt.ops.expert_tables(b.rt, {experts, labels, t.view(), load});
  const int64_t* n = load.view().as<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(n, n + 6), (std::vector<int64_t>{4, 2, 0, 4, 2, 0}));
}

TEST(RefExperts, GatherAndSumAreTransposes) {
  RefBench b(3);
  const TensorView experts = b.ints({4, 2}, {0, 3, 1, 3, 0, 1, 3, 4}), x = b.random({4, 5}),
                   y = b.random({8, 5}), rows = b.random({8, 5}), sum = b.random({4, 5});
  const Tables t(b, experts, 6);
  b.rt.ops.expert_gather(b.rt, {x, t.view(), rows});
  b.rt.ops.expert_sum(b.rt, {y, t.view(), sum, false});
  EXPECT_NEAR(inner(rows, y), inner(x, sum), 1e-13);
  const std::vector<double> once = values(sum);
  b.rt.ops.expert_sum(b.rt, {y, t.view(), sum, true});
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(values(sum)[i], 2 * once[i], 1e-14);
}

TEST(RefExperts, GroupedLinear) {
  RefBench b(4);
  const TensorView experts = b.ints({4, 2}, {0, 3, 1, 3, 0, 1, 3, 4});
  const Tables t(b, experts, 6);
  const TensorView x = b.random({8, 5}), w = b.random({6, 3, 5}), y = b.random({8, 3}), dy = b.random({8, 3}),
                   dx = b.random({8, 5}), dw = b.zeros({6, 3, 5});
  std::vector<Weight> weights = group(w, dw);
  for (int64_t e : {2, 5}) fill(dw.at(e), 1e300);  // dirty memory: nothing there is touched
  const auto loss = [&] {
    b.rt.ops.grouped_linear(b.rt, {x, t.view(), weights, y});
    return inner(y, dy);
  };
  b.rt.ops.grouped_linear_backward(b.rt, {x, t.view(), weights, dy, dx, false});
  for (int64_t e : {2, 5}) {
    for (double g : values(dw.at(e))) EXPECT_EQ(g, 1e300);
    fill(dw.at(e), 0);
  }
  expect_gradient("x", x, dx, loss);
  for (int64_t e : {0, 1, 3, 4}) expect_gradient("weight", w.at(e), dw.at(e), loss);
  const std::vector<double> once = values(dx);
  b.rt.ops.grouped_linear_backward(b.rt, {x, t.view(), weights, dy, dx, true});
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(values(dx)[i], 2 * once[i], 1e-14);
}

TEST(RefExperts, Swiglu) {
  RefBench b(5);
  const TensorView experts = b.ints({3, 2}, {0, 2, 1, 2, 0, 1});
  const Tables t(b, experts, 3);
  const TensorView gate = b.random({6, 4}, 2), up = b.random({6, 4}), h = b.random({6, 4}),
                   dh = b.random({6, 4}), dgate = b.random({6, 4}), dup = b.random({6, 4});
  const Tensor weights(DType::f64, {3, 2}), dweights(DType::f64, {3, 2});
  for (int64_t i = 0; i < 6; ++i) weights.view().as<double>()[i] = b.rng.normal();
  const auto loss = [&] {
    b.rt.ops.expert_swiglu(b.rt, {gate, up, t.view(), weights, h});
    return inner(h, dh);
  };
  b.rt.ops.expert_swiglu_backward(b.rt, {gate, up, t.view(), weights, dh, dgate, dup, dweights});
  expect_gradient("gate", gate, dgate, loss);
  expect_gradient("up", up, dup, loss);
  expect_gradient("weights", weights, dweights, loss);
}

// The losses of the router by their definition, each from its own loops.
double balance_loss(const RaggedBatch& batch, const TensorView& logits, const TensorView& experts,
                    const TensorView& labels) {
  const int64_t count = logits.dim(1), k = experts.dim(1);
  const std::vector<double> x = values(logits), chosen = values(experts), label = values(labels);
  double loss = 0;
  for (int64_t q = 0; q < batch.sequences(); ++q) {
    double m = 0;
    for (int64_t t = batch.cu_q[size_t(q)]; t < batch.cu_q[size_t(q) + 1]; ++t) m += label[size_t(t)] >= 0;
    for (int64_t e = 0; e < count && m > 0; ++e) {
      double f = 0, p = 0;
      for (int64_t t = batch.cu_q[size_t(q)]; t < batch.cu_q[size_t(q) + 1]; ++t) {
        if (label[size_t(t)] < 0) continue;
        double sum = 0;
        for (int64_t j = 0; j < count; ++j) sum += 1 / (1 + std::exp(-x[size_t(t * count + j)]));
        p += 1 / (1 + std::exp(-x[size_t(t * count + e)])) / sum / m;
        for (int64_t j = 0; j < k; ++j)
          f += (chosen[size_t(t * k + j)] == double(e)) * double(count) / double(k) / m;
      }
      loss += m * f * p;
    }
  }
  return loss;
}
double z_loss(const TensorView& logits, const TensorView& labels) {
  double loss = 0;
  for (int64_t t = 0; t < logits.dim(0); ++t) {
    double sum = 0;
    for (double x : values(logits.at(t))) sum += std::exp(x);
    if (values(labels)[size_t(t)] >= 0) loss += std::log(sum) * std::log(sum);
  }
  return loss;
}

TEST(RefExperts, RouterGradients) {
  for (const bool normalise : {true, false}) {
    RefBench b(6);
    RaggedBatch batch;
    for (int64_t n : {3, 1, 4}) batch.add_sequence(n);
    const TensorView logits = b.random({8, 5}, 2), bias = b.random({5}), dweights = b.random({8, 2}),
                     weights = b.random({8, 2}), dlogits = b.random({8, 5});
    const TensorView experts = b.ints({8, 2}, std::vector<double>(16, 0));
    const TensorView labels = b.ints({8}, {1, 2, kIgnoreLabel, kIgnoreLabel, 3, kIgnoreLabel, 4, 5});
    b.rt.ops.route(b.rt, {logits, bias, normalise, 1.7, false, experts, weights});
    struct Factors {
      double balance, z;
    };
    for (const Factors& f : {Factors{0, 0}, {0.3, 0}, {0, 0.2}, {0.3, 0.2}}) {
      const auto loss = [&] {
        b.rt.ops.route(b.rt, {logits, bias, normalise, 1.7, true, experts, weights});
        return inner(weights, dweights) + f.balance * balance_loss(batch, logits, experts, labels) +
               f.z * z_loss(logits, labels);
      };
      b.rt.ops.route_backward(
          b.rt, {batch, logits, experts, normalise, 1.7, dweights, labels, f.balance, f.z, dlogits});
      expect_gradient("logits", logits, dlogits, loss);
    }
  }
}

// Even routing: the balance loss of a sequence is its number of tokens that count.
TEST(RefExperts, TheBalanceLossOfEvenRoutingIsOneAToken) {
  RefBench b(7);
  RaggedBatch batch;
  batch.add_sequence(4);
  const TensorView logits = b.zeros({4, 4}), experts = b.ints({4, 2}, {0, 1, 2, 3, 0, 1, 2, 3});
  EXPECT_NEAR(balance_loss(batch, logits, experts, b.ints({4}, {1, 1, 1, 1})), 4, 1e-14);
}

// A batch of padding alone: nothing of the two losses arrives, and nothing is NaN.
TEST(RefExperts, TokensWithoutALabelDoNotCountForTheRouterLosses) {
  RefBench b(8);
  RaggedBatch batch;
  batch.add_sequence(3);
  batch.add_sequence(2);
  const TensorView logits = b.random({5, 4}, 2), dweights = b.zeros({5, 2}), dlogits = b.random({5, 4}),
                   experts = b.ints({5, 2}, {0, 1, 2, 3, 0, 1, 2, 3, 0, 3});
  const TensorView none = b.ints({5}, std::vector<double>(5, kIgnoreLabel));
  b.rt.ops.route_backward(b.rt, {batch, logits, experts, true, 1, dweights, none, 1, 1, dlogits});
  for (double g : values(dlogits)) EXPECT_EQ(g, 0);
}

}  // namespace
}  // namespace hysparse::test
