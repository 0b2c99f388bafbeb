// Products of few rows without packing, for every SIMD level: each row of w is read once from memory, in
// order, and meets all rows of x. The AVX512-BF16 form is in gemm_bf16.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_dot.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_simd-inl.h"
#include "kernels/weight.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums of a product: vector i of k goes to chain i % kChains, whatever m and n are. kDotColumns rows of w
// meet up to kDotRows rows of x in one kernel, so that their sums fill the registers.
constexpr int kChains = 2, kDotRows = 3;
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kDotColumns = 4;
#else
constexpr int kDotColumns = 2;
#endif

template <class T>
constexpr int64_t kStep = int64_t(kLanes) * (sizeof(T) == 2 ? 2 : 1);

// One vector of T as one or two vectors of f32. bf16: even elements, then odd ones.
template <class T>
struct Wide;
template <>
struct Wide<float> {
  V v;
  HWY_INLINE explicit Wide(const float* p) : v(hn::LoadU(D(), p)) {}
};
template <>
struct Wide<bf16> {
  V even, odd;
  HWY_INLINE explicit Wide(const bf16* p) {
    const D d;
#if HWY_TARGET == HWY_SCALAR
    even = hn::Set(d, ToFloat(p[0]));
    odd = hn::Set(d, ToFloat(p[1]));
#else
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> du16;
    const auto bits = hn::BitCast(du, hn::LoadU(du16, &p->bits));
    even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    odd = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u)));
#endif
  }
};
// What several rows of x meet is loaded once: left to itself, the compiler loads it again in every
// multiply-add, and loads are what these kernels have fewest of.
HWY_INLINE void LoadedOnce(Wide<float>& w) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128  // which have no vector registers
  asm("" : "+v"(w.v.raw));
#else
  (void)w;
#endif
}
HWY_INLINE void LoadedOnce(Wide<bf16>&) {}  // widened, so in registers anyway

HWY_INLINE V Accumulate(const Wide<float>& w, const Wide<float>& x, V acc) {
  return hn::MulAdd(w.v, x.v, acc);
}
HWY_INLINE V Accumulate(const Wide<bf16>& w, const Wide<bf16>& x, V acc) {
  return hn::MulAdd(w.odd, x.odd, hn::MulAdd(w.even, x.even, acc));
}

// Sums of the lanes of four vectors.
HWY_INLINE void Sum4(V a, V b, V c, V e, float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a), out[1] = hn::GetLane(b), out[2] = hn::GetLane(c), out[3] = hn::GetLane(e);
#else
  const D d;
  const hn::Repartition<double, D> dd;
  const auto ab = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(dd, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  // Every 128-bit block: sums of a, b, c, e.
  const V s = hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, ab, ce)),
                      hn::BitCast(d, hn::InterleaveUpper(dd, ab, ce)));
  if constexpr (kLanes == 16) {
    const hn::Half<D> dh;
    const hn::Half<hn::Half<D> > dq;
    const auto h = hn::Add(hn::LowerHalf(dh, s), hn::UpperHalf(dh, s));
    hn::StoreU(hn::Add(hn::LowerHalf(dq, h), hn::UpperHalf(dq, h)), dq, out);
  } else if constexpr (kLanes == 8) {
    const hn::Half<D> dh;
    hn::StoreU(hn::Add(hn::LowerHalf(dh, s), hn::UpperHalf(dh, s)), dh, out);
  } else {
    hn::StoreU(s, d, out);
  }
#endif
}

// The whole vectors of w_i . x_j, for kN rows of w and kM rows of x; returns how far of k they go.
template <int kN, int kM, class T>
HWY_INLINE int64_t DotVectors(const T* HWY_RESTRICT w, int64_t w_stride, const T* HWY_RESTRICT x,
                              int64_t x_stride, int64_t k, V (&total)[kM][kN]) {
  const D d;
  V acc[kM][kN][kChains];
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) {
      HYSPARSE_UNROLL
      for (int u = 0; u < kChains; ++u) acc[j][i][u] = hn::Zero(d);
    }
  }
  const auto step = [&](int64_t p, int u) HWY_ATTR {
    const Wide<T> x0(x + p), x1(x + (kM > 1 ? x_stride : 0) + p), x2(x + (kM > 2 ? 2 * x_stride : 0) + p);
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) {
      Wide<T> wv(w + i * w_stride + p);
      if constexpr (kM > 1) LoadedOnce(wv);
      acc[0][i][u] = Accumulate(wv, x0, acc[0][i][u]);
      if constexpr (kM > 1) acc[1][i][u] = Accumulate(wv, x1, acc[1][i][u]);
      if constexpr (kM > 2) acc[2][i][u] = Accumulate(wv, x2, acc[2][i][u]);
    }
  };
  int64_t p = 0;
  for (; p + kChains * kStep<T> <= k; p += kChains * kStep<T>) {
    HYSPARSE_UNROLL
    for (int u = 0; u < kChains; ++u) {
      if constexpr (kN == 1 && kM == 1)
        hwy::Prefetch(reinterpret_cast<const char*>(w + p + u * kStep<T>) + kDotAhead);
      step(p + u * kStep<T>, u);
    }
  }
  if (p + kStep<T> <= k) {
    step(p, 0);
    p += kStep<T>;
  }
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) total[j][i] = hn::Add(acc[j][i][0], acc[j][i][1]);
  }
  return p;
}

// The rest of k.
template <class T>
HWY_INLINE float DotRest(const T* w, const T* x, int64_t begin, int64_t k) {
  float sum = 0;
  for (int64_t p = begin; p < k; ++p) sum += ToFloat(w[p]) * ToFloat(x[p]);
  return sum;
}

// One row of x and `count` <= 4 rows of w, one after the other; their sums are taken together. The loop over
// the rows stays one: prefetchers know a stream by the instruction that reads it.
template <class T>
HWY_INLINE void DotOneRow(const T* w, int64_t w_stride, const T* x, int64_t k, int count, const Output& y,
                          int64_t r, int64_t c) {
  const D d;
  HWY_ALIGN float lanes[4 * kLanes] = {};
  int64_t end = 0;
  HYSPARSE_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    V total[1][1];
    end = DotVectors<1, 1>(w + i * w_stride, w_stride, x, 0, k, total);
    hn::Store(total[0][0], d, lanes + size_t(i) * kLanes);
  }
  HWY_ALIGN float sums[4];
  Sum4(hn::Load(d, lanes), hn::Load(d, lanes + kLanes), hn::Load(d, lanes + 2 * kLanes),
       hn::Load(d, lanes + 3 * kLanes), sums);
  if (end < k)
    for (int i = 0; i < count; ++i) sums[i] += DotRest(w + i * w_stride, x, end, k);
  StoreSums(sums, count, y, r, c);
}

template <int kN, int kM, class T>
HWY_INLINE void DotBlock(const T* w, int64_t w_stride, const T* x, int64_t x_stride, int64_t k,
                         const Output& y, int64_t r, int64_t c) {
  const V zero = hn::Zero(D());
  V total[kM][kN];
  const int64_t end = DotVectors<kN, kM>(w, w_stride, x, x_stride, k, total);
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HWY_ALIGN float sums[4];
    if constexpr (kN == 4)
      Sum4(total[j][0], total[j][1], total[j][2], total[j][3], sums);
    else
      Sum4(total[j][0], kN > 1 ? total[j][kN - 1] : zero, zero, zero, sums);
    if (end < k)
      for (int i = 0; i < kN; ++i) sums[i] += DotRest(w + i * w_stride, x + j * x_stride, end, k);
    StoreSums(sums, kN, y, r + j, c);
  }
}

// kN rows of w against all m rows of x, in groups of nearly equal size.
template <int kN, class T>
void DotColumns(const T* w, int64_t w_stride, const T* x, int64_t x_stride, int64_t m, int64_t k,
                const Output& y, int64_t c) {
  for (int64_t r = 0; r < m;) {
    const int64_t groups = (m - r + kDotRows - 1) / kDotRows;
    const int64_t rows = (m - r + groups - 1) / groups;
    const T* xr = x + r * x_stride;
    if (rows == 1) DotBlock<kN, 1>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 2) DotBlock<kN, 2>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 3) DotBlock<kN, 3>(w, w_stride, xr, x_stride, k, y, r, c);
    r += rows;
  }
}

template <class T>
void MultiplyDot(const T* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t m, int64_t n, int64_t k,
                 const Output& y) {
  int64_t c = 0;
  if (m == 1) {
    for (; c < n; c += 4)
      DotOneRow(w + c * w_stride, w_stride, x, k, static_cast<int>(std::min<int64_t>(4, n - c)), y, 0, c);
    return;
  }
  for (; c + kDotColumns <= n; c += kDotColumns)
    DotColumns<kDotColumns>(w + c * w_stride, w_stride, x, x_stride, m, k, y, c);
  for (; c < n; ++c) DotColumns<1>(w + c * w_stride, w_stride, x, x_stride, m, k, y, c);
}
void MultiplyDotAny(const Matrix& x, const Matrix& w, int64_t m, int64_t n, int64_t k, const Output& y) {
  if (x.dtype == DType::f32)
    MultiplyDot(static_cast<const float*>(x.data), x.row, static_cast<const float*>(w.data), w.row, m, n, k,
                y);
  else
    MultiplyDot(static_cast<const bf16*>(x.data), x.row, static_cast<const bf16*>(w.data), w.row, m, n, k, y);
}

// ---- w of 8-bit integers

HWY_INLINE V Widen(const int8_t* p) {
  const D d;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<int8_t, D> di8;
  return hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(di8, p)));
}

// One row of w and kM rows of x. Within a group vector i goes to sum i % 2. Returns how far of k the vectors
// go: to the last whole one.
template <int kM>
HWY_INLINE int64_t DotGroups(const int8_t* HWY_RESTRICT w, const float* HWY_RESTRICT scales,
                             const float* HWY_RESTRICT x, int64_t x_stride, int64_t k, V (&total)[kM]) {
  constexpr int64_t kStride = int64_t(kLanes);
  const D d;
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) total[j] = hn::Zero(d);
  int64_t p = 0;
  const auto group = [&](int64_t end) HWY_ATTR {
    V sum[kM][2];
    HYSPARSE_UNROLL
    for (int j = 0; j < kM; ++j) sum[j][0] = sum[j][1] = hn::Zero(d);
    const V scale = hn::Set(d, scales[p / kQuantGroup]);
    if constexpr (kM == 1) hwy::Prefetch(reinterpret_cast<const char*>(w + p) + kDotAhead);
    for (; p + 2 * kStride <= end; p += 2 * kStride) {
      HYSPARSE_UNROLL
      for (int u = 0; u < 2; ++u) {
        const V wv = Widen(w + p + u * kStride);
        HYSPARSE_UNROLL
        for (int j = 0; j < kM; ++j)
          sum[j][u] = hn::MulAdd(wv, hn::LoadU(d, x + j * x_stride + p + u * kStride), sum[j][u]);
      }
    }
    if (p + kStride <= end) {
      const V wv = Widen(w + p);
      HYSPARSE_UNROLL
      for (int j = 0; j < kM; ++j) sum[j][0] = hn::MulAdd(wv, hn::LoadU(d, x + j * x_stride + p), sum[j][0]);
      p += kStride;
    }
    HYSPARSE_UNROLL
    for (int j = 0; j < kM; ++j) total[j] = hn::MulAdd(hn::Add(sum[j][0], sum[j][1]), scale, total[j]);
  };
  while (p + kQuantGroup <= k) group(p + kQuantGroup);
  if (p + kStride <= k) group(k);
  return p;
}
HWY_INLINE float DotGroupsRest(const int8_t* w, const float* scales, const float* x, int64_t begin,
                               int64_t k) {
  float sum = 0;
  for (int64_t p = begin; p < k; ++p) sum += static_cast<float>(w[p]) * x[p];
  return begin < k ? sum * scales[begin / kQuantGroup] : 0.0f;
}

template <int kM>
HWY_INLINE void DotGroupsRows(const int8_t* w, const float* scales, const float* x, int64_t x_stride,
                              int64_t k, const Output& y, int64_t r, int64_t c) {
  const V zero = hn::Zero(D());
  V total[kM];
  const int64_t end = DotGroups<kM>(w, scales, x, x_stride, k, total);
  HWY_ALIGN float sums[4];
  Sum4(total[0], kM > 1 ? total[kM > 1 ? 1 : 0] : zero, kM > 2 ? total[kM > 2 ? 2 : 0] : zero, zero, sums);
  for (int j = 0; j < kM; ++j)
    StoreOne(sums[j] + DotGroupsRest(w, scales, x + j * x_stride, end, k), y, r + j, c);
}

void MultiplyDotI8(const Matrix& x, const int8_t* w, const float* scales, int64_t m, int64_t n, int64_t k,
                   const Output& y) {
  const auto* rows = static_cast<const float*>(x.data);
  const int64_t groups = (k + kQuantGroup - 1) / kQuantGroup;
  HYSPARSE_NO_UNROLL
  for (int64_t c = 0; c < n; ++c, w += k, scales += groups)
    for (int64_t r = 0; r < m; r += kDotRows) {
      const float* xr = rows + r * x.row;
      if (m - r == 1) DotGroupsRows<1>(w, scales, xr, x.row, k, y, r, c);
      if (m - r == 2) DotGroupsRows<2>(w, scales, xr, x.row, k, y, r, c);
      if (m - r >= 3) DotGroupsRows<3>(w, scales, xr, x.row, k, y, r, c);
    }
}

template <class T>
HWY_INLINE void DequantiseTo(const int8_t* value, const float* scales, int64_t n, T* dst) {
  for (int64_t begin = 0; begin < n; begin += kQuantGroup) {
    const int64_t end = HWY_MIN(n, begin + kQuantGroup);
    const float one = scales[begin / kQuantGroup];
    const V scale = hn::Set(D(), one);
    int64_t i = begin;
    for (; i + int64_t(kLanes) <= end; i += int64_t(kLanes))
      StoreNarrow(hn::Mul(Widen(value + i), scale), dst + i);
    for (; i < end; ++i) dst[i] = T(static_cast<float>(value[i]) * one);
  }
}
void DequantiseRow(const int8_t* value, const float* scales, int64_t n, DType dtype, void* dst) {
  if (dtype == DType::f32)
    DequantiseTo(value, scales, n, static_cast<float*>(dst));
  else
    DequantiseTo(value, scales, n, static_cast<bf16*>(dst));
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::gemm {

HWY_EXPORT(MultiplyDotAny);
HWY_EXPORT(MultiplyDotI8);
HWY_EXPORT(DequantiseRow);

void multiply_dot(const Matrix& x, const Matrix& w, int64_t m, int64_t n, int64_t k, const Output& y) {
  HWY_DYNAMIC_DISPATCH(MultiplyDotAny)(x, w, m, n, k, y);
}
void multiply_dot_i8(const Matrix& x, const int8_t* w, const float* scales, int64_t m, int64_t n, int64_t k,
                     const Output& y) {
  HWY_DYNAMIC_DISPATCH(MultiplyDotI8)(x, w, scales, m, n, k, y);
}
void dequantise_row(const int8_t* value, const float* scales, int64_t n, DType dtype, void* dst) {
  HWY_DYNAMIC_DISPATCH(DequantiseRow)(value, scales, n, dtype, dst);
}

}  // namespace hysparse::gemm
#endif
