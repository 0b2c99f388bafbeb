// Loss and optimiser.
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace {

void check_labels(const TensorView& labels, int64_t vocab) {
  const int32_t* label = labels.as<int32_t>();
  for (int64_t i = 0; i < labels.dim(0); ++i)
    if (label[i] != kIgnoreLabel && (label[i] < 0 || label[i] >= vocab))
      throw input_error(fmt::format("cross_entropy: label {} of the batch", i),
                        fmt::format("{} is neither {} (ignored) nor in the vocabulary of {}", label[i],
                                    kIgnoreLabel, vocab));
}

}  // namespace

void cpu_cross_entropy(Runtime& rt, const CrossEntropy& p) {
  const DType acc = check_args(p);
  HYSPARSE_CHECK(acc == DType::f32, "cross_entropy: this backend takes f32 logits, not {}", name_of(acc));
  const int64_t n = p.logits.dim(0), vocab = p.logits.dim(1);
  check_labels(p.labels, vocab);
  const int32_t* label = p.labels.as<int32_t>();
  float* loss = p.loss.as<float>();
  const auto row = [](const TensorView& v, int64_t i) {
    return static_cast<char*>(v.data) + i * v.stride[0] * static_cast<int64_t>(size_of(v.dtype));
  };
  elem::for_rows(rt, n, vocab, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* dlogits = p.dlogits ? row(p.dlogits, i) : nullptr;
      if (label[i] == kIgnoreLabel) {
        loss[i * p.loss.stride[0]] = 0.0f;
        if (dlogits)
          std::fill(dlogits, dlogits + vocab * static_cast<int64_t>(size_of(p.dlogits.dtype)), char(0));
      } else {
        loss[i * p.loss.stride[0]] =
            elem::cross_entropy(reinterpret_cast<const float*>(row(p.logits, i)), vocab, label[i],
                                static_cast<float>(p.grad_scale), dlogits, p.dlogits.dtype);
      }
    }
  });
}

void cpu_adamw(Runtime& rt, const AdamW& p) {
  const DType acc = check_args(p);
  HYSPARSE_CHECK(acc == DType::f32, "adamw: this backend keeps masters in f32, not {}", name_of(acc));
  Weight& w = p.weight;
  const double step = static_cast<double>(p.step);
  const elem::AdamWStep s{.grad_scale = static_cast<float>(p.grad_scale),
                          .beta1 = static_cast<float>(p.beta1),
                          .beta2 = static_cast<float>(p.beta2),
                          .inv_bias1 = static_cast<float>(1.0 / (1.0 - std::pow(p.beta1, step))),
                          .inv_bias2 = static_cast<float>(1.0 / (1.0 - std::pow(p.beta2, step))),
                          .eps = static_cast<float>(p.eps),
                          .lr = static_cast<float>(p.lr),
                          .weight_decay = static_cast<float>(p.weight_decay)};
  const bool copy = w.value.data != w.master.data;
  elem::for_rows(rt, w.master.numel(), 1, [&](int64_t begin, int64_t end) {
    char* value = static_cast<char*>(w.value.data) + begin * static_cast<int64_t>(size_of(w.value.dtype));
    elem::adamw(s, w.master.as<float>() + begin, p.m.as<float>() + begin, p.v.as<float>() + begin,
                w.grad.as<float>() + begin, copy ? value : nullptr, w.value.dtype, end - begin);
  });
  ++w.version;
}

void cpu_sum_squares(Runtime& rt, const SumSquares& p) {
  check_args(p);
  const int64_t n = p.x.numel(), runs = (n + elem::kTaskElements - 1) / elem::kTaskElements;
  if (n == 0) return;
  ArenaScope scope(rt.scratch);
  double* partial = rt.scratch.alloc(DType::f64, {runs}).as<double>();
  elem::for_rows(rt, n, 1, [&](int64_t begin, int64_t end) {
    double sum = 0;
    if (p.x.dtype == DType::f64) {
      for (int64_t i = begin; i < end; ++i) sum += p.x.as<double>()[i] * p.x.as<double>()[i];
    } else {
      sum = elem::sum_squares(
          static_cast<const char*>(p.x.data) + begin * static_cast<int64_t>(size_of(p.x.dtype)), p.x.dtype,
          end - begin);
    }
    partial[begin / elem::kTaskElements] = sum;
  });
  double total = 0;
  for (int64_t i = 0; i < runs; ++i) total += partial[i];
  p.out.as<double>()[0] += total;
}

}  // namespace hysparse
