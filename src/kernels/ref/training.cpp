// Cross entropy, AdamW and the sum of squares.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {

// loss = logsumexp(z) - z[label];  dz = grad_scale (softmax(z) - onehot(label))
void RefOps::cross_entropy(Runtime& rt, const CrossEntropy& a) const {
  require_f64(check_args(a), "cross_entropy");
  const int64_t vocab = a.logits.dim(1);
  rt.pool.parallel_for(a.logits.dim(0), [&](int64_t t, int) {
    const int32_t label = a.labels.as<int32_t>()[t];
    double& loss = a.loss.as<double>()[t];
    double* dz = a.dlogits ? at(a.dlogits, t) : nullptr;
    if (label == kIgnoreLabel) {
      loss = 0;
      if (dz) std::fill_n(dz, vocab, 0.0);
      return;
    }
    HYSPARSE_CHECK(label >= 0 && label < vocab,
                   "cross_entropy: label {} of row {} is outside the vocabulary of {}", label, t, vocab);
    const double* z = at(a.logits, t);
    const double largest = *std::max_element(z, z + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(z[i] - largest);
    loss = std::log(sum) + largest - z[label];
    if (!dz) return;
    for (int64_t i = 0; i < vocab; ++i)
      dz[i] = a.grad_scale * (std::exp(z[i] - largest) / sum - (i == label));
  });
}

void RefOps::adamw(Runtime&, const AdamW& a) const {
  require_f64(check_args(a), "adamw");
  require_f64(a.weight.value.dtype, "adamw");
  double* master = a.weight.master.as<double>();
  double* value = a.weight.value.as<double>();
  double* m = a.m.as<double>();
  double* v = a.v.as<double>();
  const double* grad = a.weight.grad.as<double>();
  const double bias1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double bias2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  for (int64_t i = 0; i < a.weight.master.numel(); ++i) {
    const double g = grad[i] * a.grad_scale;
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * g;
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * g * g;
    master[i] -= a.lr * ((m[i] / bias1) / (std::sqrt(v[i] / bias2) + a.eps) + a.weight_decay * master[i]);
    value[i] = master[i];
  }
  ++a.weight.version;
}

void RefOps::sum_squares(Runtime&, const SumSquares& a) const {
  check_args(a);
  const int64_t n = a.x.numel();
  double sum = 0;
  const auto add = [&](const auto* x) {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[i]);
      sum += value * value;
    }
  };
  if (a.x.dtype == DType::f64) add(a.x.as<double>());
  if (a.x.dtype == DType::f32) add(a.x.as<float>());
  if (a.x.dtype == DType::bf16)
    for (int64_t i = 0; i < n; ++i) {
      const double value = static_cast<float>(a.x.as<bf16>()[i]);
      sum += value * value;
    }
  *a.out.as<double>() += sum;
}

}  // namespace hysparse::ref
