// Internal to the engine: maxima and exponentials of a row of logits, in loops that a compiler turns into
// vectors. The order of every sum is fixed, so results do not depend on the machine.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/error.h"

namespace hysparse::softmax_detail {

inline constexpr size_t kLanes = 16;
inline constexpr size_t kBlock = 256;  // values whose exponentials are summed together

// exp(x) for x <= 0, relative error below 2e-7; 0 from -87 down.
inline float exp_negative(float x) {
  const float clamped = x > -87.0f ? x : -87.0f;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const auto power = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) << 23);
  const float y = std::bit_cast<float>(std::bit_cast<int32_t>(p) + power);
  return x > -87.0f ? y : 0.0f;
}

template <class T>
struct Peak {
  T value;       // the largest
  T lowest;      // the least above -inf
  size_t index;  // the first that has it
};

// Throws Error(failure) naming `what` for NaN, +inf, or nothing above -inf.
template <class T>
Peak<T> find_peak(const T* x, size_t n, const char* what) {
  constexpr T kInf = std::numeric_limits<T>::infinity();
  T high[kLanes], low[kLanes];
  int broken[kLanes] = {};
  std::fill(high, high + kLanes, -kInf);
  std::fill(low, low + kLanes, kInf);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      const T v = x[i + j];
      const T finite = v > -kInf ? v : kInf;
      high[j] = v > high[j] ? v : high[j];
      low[j] = finite < low[j] ? finite : low[j];
      broken[j] |= !(v < kInf);
    }
  }
  Peak<T> out{-kInf, kInf, 0};
  bool any_broken = false;
  for (size_t j = 0; j < kLanes; ++j) {
    out.value = std::max(out.value, high[j]);
    out.lowest = std::min(out.lowest, low[j]);
    any_broken |= broken[j] != 0;
  }
  for (; i < n; ++i) {
    if (!(x[i] < kInf)) any_broken = true;
    if (x[i] > out.value) out.value = x[i];
    if (x[i] > -kInf && x[i] < out.lowest) out.lowest = x[i];
  }
  if (any_broken) {
    for (size_t k = 0; k < n; ++k)
      if (!(x[k] < kInf))
        throw failure(what, fmt::format("the logit of token {} is {}", k, x[k]),
                      "the weights or the computation are broken");
  }
  if (out.value == -kInf) throw failure(what, "no token has a finite logit");
  out.index = static_cast<size_t>(std::find(x, x + n, out.value) - x);
  return out;
}

// sum of exp(x[i] - peak), accumulated in double.
template <class T>
double sum_exp(const T* x, size_t n, T peak) {
  double total = 0;
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t end = std::min(n, begin + kBlock);
    float lanes[kLanes] = {};
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += exp_negative(static_cast<float>(x[i + j] - peak));
    double sum = 0;
    for (const float v : lanes) sum += static_cast<double>(v);
    for (; i < end; ++i) sum += static_cast<double>(exp_negative(static_cast<float>(x[i] - peak)));
    total += sum;
  }
  return total;
}

}  // namespace hysparse::softmax_detail
