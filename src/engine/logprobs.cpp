#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/softmax.h"

namespace hysparse {
namespace {

template <class T>
double log_sum_exp(const T* x, size_t n) {
  const auto peak = softmax_detail::find_peak(x, n, "logprobs");
  return static_cast<double>(peak.value) + std::log(softmax_detail::sum_exp(x, n, peak.value));
}

// Blocks whose maximum is not above the k-th best so far are passed over.
template <class T>
std::vector<size_t> best(const T* x, size_t n, size_t k) {
  std::vector<size_t> out;
  const auto better = [x](size_t a, size_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  for (size_t begin = 0; begin < n; begin += softmax_detail::kBlock) {
    const size_t end = std::min(n, begin + softmax_detail::kBlock);
    if (out.size() == k) {
      const T bar = x[out.back()];
      unsigned any = 0;
      for (size_t i = begin; i < end; ++i) any |= static_cast<unsigned>(x[i] > bar);
      if (any == 0) continue;
    }
    for (size_t i = begin; i < end; ++i) {
      if (out.size() == k && !(x[i] > x[out.back()])) continue;
      if (out.size() == k) out.pop_back();
      out.insert(std::upper_bound(out.begin(), out.end(), i, better), i);
    }
  }
  return out;
}

}  // namespace

LogSoftmax::LogSoftmax(const TensorView& logits) : logits_(logits) {
  HYSPARSE_CHECK(logits.rank == 1 && (logits.dtype == DType::f32 || logits.dtype == DType::f64),
                 "log-probabilities need logits [vocab] in f32 or f64, got {}", logits.describe());
  const auto n = static_cast<size_t>(logits.dim(0));
  normaliser_ =
      logits.dtype == DType::f64 ? log_sum_exp(logits.as<double>(), n) : log_sum_exp(logits.as<float>(), n);
}

float LogSoftmax::value(size_t i) const {
  const double x =
      logits_.dtype == DType::f64 ? logits_.as<double>()[i] : static_cast<double>(logits_.as<float>()[i]);
  return static_cast<float>(std::min(x - normaliser_, 0.0));
}

float LogSoftmax::of(int32_t token) const {
  HYSPARSE_CHECK(token >= 0 && token < logits_.dim(0), "token {} of {}", token, logits_.dim(0));
  return value(static_cast<size_t>(token));
}

std::vector<TokenLogprob> LogSoftmax::top(int64_t k) const {
  const auto n = static_cast<size_t>(logits_.dim(0));
  const size_t count = std::min(n, static_cast<size_t>(std::max<int64_t>(k, 0)));
  if (count == 0) return {};
  const std::vector<size_t> ids = logits_.dtype == DType::f64 ? best(logits_.as<double>(), n, count)
                                                              : best(logits_.as<float>(), n, count);
  std::vector<TokenLogprob> out;
  for (const size_t i : ids) out.push_back({static_cast<int32_t>(i), value(i)});
  return out;
}

}  // namespace hysparse
