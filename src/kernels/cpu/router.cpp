// The router of a mixture of experts: the choice, its weights, and their backward pass.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/checks.h"
#include "kernels/cpu/elem_kernels.h"
#include "kernels/cpu/elem_rows.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

DType wide_type(const char* op, DType acc) {
  HYSPARSE_CHECK(acc == DType::f32, "{}: this backend routes in f32, not {}", op, name_of(acc));
  return acc;
}

// The k experts of largest s + bias, ascending; equal: the lower one.
void choose(const float* s, const float* bias, int64_t experts, int64_t k, int32_t* chosen) {
  struct Ranked {
    float rank;
    int32_t expert;
  };
  constexpr int64_t kFew = 64;
  Ranked few[kFew];
  std::vector<Ranked> many;
  if (k > kFew) many.resize(static_cast<size_t>(k));
  Ranked* best = k > kFew ? many.data() : few;  // falling; among equals the earlier stands first
  int64_t count = 0;
  for (int32_t e = 0; e < experts; ++e) {
    float rank = s[e] + bias[e];
    if (std::isnan(rank)) rank = -kInf;
    if (count == k && !(rank > best[k - 1].rank)) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && rank > best[at - 1].rank; --at) best[at] = best[at - 1];
    best[at] = {rank, e};
  }
  for (int64_t j = 0; j < k; ++j) chosen[j] = best[j].expert;
  std::sort(chosen, chosen + k);
}

float denominator(const float* s, const int32_t* chosen, int64_t k) {
  float sum = 1e-20f;
  for (int64_t j = 0; j < k; ++j) sum += s[chosen[j]];
  return sum;
}

float* row(const TensorView& v, int64_t i) {
  return static_cast<float*>(v.data) + i * v.stride[0];
}

// E / (k m) times how many of the m tokens of a sequence that count chose each expert: [sequences, E].
TensorView balance_of(Runtime& rt, const RouteBackward& p) {
  const int64_t experts = p.logits.dim(1), k = p.experts.dim(1);
  const TensorView b = rt.scratch.alloc_zero(DType::f32, {p.batch.sequences(), experts});
  const int32_t *labels = p.labels.as<int32_t>(), *chosen = p.experts.as<int32_t>();
  rt.pool.parallel_for(p.batch.sequences(), [&](int64_t q, int) {
    int64_t m = 0;
    for (int64_t t = p.batch.cu_q[size_t(q)]; t < p.batch.cu_q[size_t(q) + 1]; ++t) {
      if (labels[t] == kIgnoreLabel) continue;
      ++m;
      for (int64_t j = 0; j < k; ++j) row(b, q)[chosen[t * k + j]] += 1;
    }
    if (m == 0) return;
    const auto by = static_cast<float>(static_cast<double>(experts) / static_cast<double>(k * m));
    for (int64_t e = 0; e < experts; ++e) row(b, q)[e] *= by;
  });
  return b;
}

}  // namespace

void cpu_route(Runtime& rt, const RouteForward& p) {
  wide_type("route", check_args(p));
  const int64_t experts = p.logits.dim(1), k = p.experts.dim(1);
  const auto scale = static_cast<float>(p.scale);
  elem::for_rows(rt, p.logits.dim(0), 4 * experts, [&](int64_t begin, int64_t end) {
    std::vector<float> s(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      elem::sigmoid(row(p.logits, t), s.data(), experts);
      int32_t* chosen = p.experts.as<int32_t>() + t * k;
      if (!p.pinned) choose(s.data(), p.bias.as<float>(), experts, k, chosen);
      const float by = p.normalise ? denominator(s.data(), chosen, k) : 1;
      for (int64_t j = 0; j < k; ++j) row(p.weights, t)[j] = scale * (s[size_t(chosen[j])] / by);
    }
  });
}

void cpu_route_backward(Runtime& rt, const RouteBackward& p) {
  wide_type("route_backward", check_args(p));
  const int64_t experts = p.logits.dim(1), k = p.experts.dim(1);
  const auto scale = static_cast<float>(p.scale), balance = static_cast<float>(p.balance),
             z = static_cast<float>(p.z);
  ArenaScope scope(rt.scratch);
  TensorView even;
  std::vector<int64_t> sequence;
  if (balance != 0) {
    even = balance_of(rt, p);
    for (int64_t q = 0; q < p.batch.sequences(); ++q)
      sequence.insert(sequence.end(), static_cast<size_t>(p.batch.q_len(q)), q);
  }
  const int32_t* labels = p.labels ? p.labels.as<int32_t>() : nullptr;
  elem::for_rows(rt, p.logits.dim(0), 8 * experts, [&](int64_t begin, int64_t end) {
    std::vector<float> s(static_cast<size_t>(experts));
    for (int64_t t = begin; t < end; ++t) {
      elem::sigmoid(row(p.logits, t), s.data(), experts);
      const int32_t* chosen = p.experts.as<int32_t>() + t * k;
      const float* dw = row(p.dweights, t);
      float* dlogits = row(p.dlogits, t);
      const bool counts = labels && labels[t] != kIgnoreLabel;
      std::fill_n(dlogits, experts, 0.0f);  // first the gradient at s
      const float by = p.normalise ? denominator(s.data(), chosen, k) : 1;
      float mean = 0;
      if (p.normalise)
        for (int64_t j = 0; j < k; ++j) mean += dw[j] * s[size_t(chosen[j])] / by;
      for (int64_t j = 0; j < k; ++j) dlogits[chosen[j]] = scale * (dw[j] - mean) / by;
      if (counts && balance != 0) {
        const float* b = row(even, sequence[size_t(t)]);
        float sum = 0, expected = 0;
        for (int64_t e = 0; e < experts; ++e) sum += s[size_t(e)], expected += b[e] * s[size_t(e)];
        if (sum > 0)
          for (int64_t e = 0; e < experts; ++e) dlogits[e] += balance * (b[e] - expected / sum) / sum;
      }
      for (int64_t e = 0; e < experts; ++e) dlogits[e] *= s[size_t(e)] * (1 - s[size_t(e)]);
      if (counts && z != 0) {
        const float* x = row(p.logits, t);
        const float highest = *std::max_element(x, x + experts);
        float sum = 0;
        for (int64_t e = 0; e < experts; ++e) sum += s[size_t(e)] = std::exp(x[e] - highest);
        const float factor = z * 2 * (highest + std::log(sum)) / sum;
        for (int64_t e = 0; e < experts; ++e) dlogits[e] += factor * s[size_t(e)];
      }
    }
  });
}

}  // namespace hysparse
