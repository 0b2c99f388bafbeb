// Test tensors: typed buffers with guarded gaps between their rows, and pairs of them that hold the same
// numbers for the reference (f64) and for the kernel under test.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "tensor/tensor.h"

namespace hysparse::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr int32_t kPoisonIndex = -77777;

// Distance from 1 to the next number.
inline double epsilon(DType t) {
  return t == DType::f64 ? 0x1p-52 : t == DType::f32 ? 0x1p-23 : 0x1p-7;
}

inline double load(const TensorView& v, int64_t offset) {
  switch (v.dtype) {
    case DType::f64:
      return v.as<double>()[offset];
    case DType::f32:
      return v.as<float>()[offset];
    case DType::bf16:
      return static_cast<float>(v.as<bf16>()[offset]);
    default:
      return v.as<int32_t>()[offset];
  }
}
inline void store(const TensorView& v, int64_t offset, double x) {
  switch (v.dtype) {
    case DType::f64:
      v.as<double>()[offset] = x;
      break;
    case DType::f32:
      v.as<float>()[offset] = static_cast<float>(x);
      break;
    case DType::bf16:
      v.as<bf16>()[offset] = bf16(static_cast<float>(x));
      break;
    default:
      v.as<int32_t>()[offset] = static_cast<int32_t>(x);
  }
}
// The nearest number that a dtype holds.
inline double round_to(DType t, double x) {
  if (t == DType::f32) return static_cast<float>(x);
  if (t == DType::bf16) return static_cast<float>(bf16(static_cast<float>(x)));
  return x;
}

// Element offsets of a view in row-major order.
inline std::vector<int64_t> offsets(const TensorView& v) {
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(v.numel()));
  for (int64_t flat = 0; flat < v.numel(); ++flat) {
    int64_t rest = flat, o = 0;
    for (int d = v.rank - 1; d >= 0; --d) {
      o += rest % v.dim(d) * v.stride[size_t(d)];
      rest /= v.dim(d);
    }
    result.push_back(o);
  }
  return result;
}
inline std::vector<double> values(const TensorView& v) {
  std::vector<double> x;
  for (int64_t o : offsets(v)) x.push_back(load(v, o));
  return x;
}
inline void assign(const TensorView& v, const std::vector<double>& x) {
  size_t i = 0;
  for (int64_t o : offsets(v)) store(v, o, x[i++]);
}
inline void fill(const TensorView& v, double x) {
  for (int64_t o : offsets(v)) store(v, o, x);
}
inline std::vector<double> normals(Rng& rng, int64_t n, double sigma, DType t) {
  std::vector<double> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(round_to(t, sigma * rng.normal()));
  return x;
}
inline std::vector<double> absolutes(std::vector<double> x) {
  for (double& e : x) e = std::fabs(e);
  return x;
}

// A view and its memory. With gaps, every dimension but the last has a stride larger than it must be; the
// bytes in between are poison, and untouched() says whether they still are.
class Buffer {
 public:
  Buffer() = default;
  Buffer(DType t, const std::vector<int64_t>& dims, bool gaps = false, Memory& memory = host_memory()) {
    std::vector<int64_t> stride(dims.size(), 1);
    int64_t span = 1;
    for (size_t d = dims.size(); d-- > 0;) {
      stride[d] = span;
      span *= std::max<int64_t>(1, dims[d]);
      if (gaps && d > 0) span += d + 1 == dims.size() ? 5 : stride[d];
    }
    const int64_t guard = gaps ? 16 : 0;  // none without gaps: a sanitizer sees every step past the end
    storage_ = Tensor(t, {span + guard}, memory);
    poison(storage_.view());
    view_ = storage_.view();
    view_.rank = static_cast<int>(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) {
      view_.shape[d] = dims[d];
      view_.stride[d] = stride[d];
    }
    if (gaps && dims.size() > 1) view_.data = static_cast<std::byte*>(view_.data) + 8 * size_of(t);
    const size_t first = static_cast<size_t>(static_cast<std::byte*>(view_.data) -
                                             static_cast<std::byte*>(storage_.view().data)) /
                         size_of(t);
    is_gap_.assign(static_cast<size_t>(span + guard), true);
    for (int64_t o : offsets(view_)) is_gap_[first + static_cast<size_t>(o)] = false;
  }
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  static void poison(const TensorView& v) { fill(v, v.dtype == DType::i32 ? kPoisonIndex : kNaN); }
  bool untouched() const {
    const TensorView& s = storage_;
    for (size_t i = 0; i < is_gap_.size(); ++i) {
      if (!is_gap_[i]) continue;
      const double x = load(s, static_cast<int64_t>(i));
      if (s.dtype == DType::i32 ? x != kPoisonIndex : !std::isnan(x)) return false;
    }
    return true;
  }
  // All bytes, gaps included: equal snapshots mean bit-equal results.
  std::vector<std::byte> snapshot() const {
    const auto* p = static_cast<const std::byte*>(storage_.view().data);
    return {p, p + storage_.view().bytes()};
  }

 private:
  Tensor storage_;
  TensorView view_;
  std::vector<bool> is_gap_;
};

// [0] f64 for the reference, [1] for the kernel under test; both hold the same numbers.
class Pair {
 public:
  Pair() = default;
  Pair(DType t, const std::vector<int64_t>& dims, bool gaps, Memory& memory)
      : side_{Buffer(t == DType::i32 ? t : DType::f64, dims), Buffer(t, dims, gaps, memory)} {}
  const TensorView& operator[](int i) const { return side_[size_t(i)].view(); }
  const Buffer& buffer(int i) const { return side_[size_t(i)]; }
  explicit operator bool() const { return bool(side_[0].view()); }
  void set(const std::vector<double>& x) const {
    for (const Buffer& b : side_) assign(b, x);
  }
  void poison() const {
    for (const Buffer& b : side_) Buffer::poison(b);
  }
  // The values of the reference.
  std::vector<double> ref() const { return values(side_[0]); }
  std::vector<double> got() const { return values(side_[1]); }

 private:
  std::array<Buffer, 2> side_;
};

// |got - ref| <= tolerance[i] + rounding of the stored result, element by element. NaN and infinities must
// agree.
inline ::testing::AssertionResult within(const std::string& name, const TensorView& got,
                                         const TensorView& ref, const std::vector<double>& tolerance) {
  const std::vector<double> g = values(got), r = values(ref);
  if (g.size() != r.size() || r.size() != tolerance.size())
    return ::testing::AssertionFailure()
           << name << ": sizes " << g.size() << ", " << r.size() << ", " << tolerance.size();
  size_t bad = 0, worst = 0, first = 0, last = 0;
  double worst_ratio = 0;
  for (size_t i = 0; i < g.size(); ++i) {
    const double error = g[i] == r[i] ? 0 : std::fabs(g[i] - r[i]);
    const double allowed =
        tolerance[i] + 0.51 * epsilon(got.dtype) * std::fabs(r[i]) + std::numeric_limits<float>::min();
    double ratio = error / allowed;
    if (std::isnan(g[i]) != std::isnan(r[i]) || (std::isnan(ratio) && !std::isnan(r[i]))) ratio = kInf;
    if (!(ratio <= 1) && !(std::isnan(g[i]) && std::isnan(r[i]))) {
      if (bad++ == 0) first = i;
      last = i;
    }
    if (ratio > worst_ratio) worst_ratio = ratio, worst = i;
  }
  if (bad == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << name << ' ' << got.describe() << ": " << bad << " of " << g.size() << " beyond tolerance, from "
         << first << " to " << last << "; worst at " << worst << ": got " << g[worst] << ", expected "
         << r[worst] << ", allowed +-" << tolerance[worst] << " (error / allowed " << worst_ratio << ")";
}

}  // namespace hysparse::test
