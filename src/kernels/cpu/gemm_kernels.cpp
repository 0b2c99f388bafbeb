// Packed-panel and dot-product matrix kernels for every SIMD level. The AVX512-BF16 ones are in
// gemm_bf16.cpp.
#include "kernels/cpu/gemm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#ifndef HYSPARSE_UNROLL
#ifdef __clang__
#define HYSPARSE_UNROLL _Pragma("unroll")
#else
#define HYSPARSE_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace hysparse::gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using D4 = hn::CappedTag<float, 4>;
constexpr size_t kLanes = hn::MaxLanes(D());

// Register tile: kRows x kVectors accumulators. 32 vector registers hold 12 x 2 (+ 2 of b + 1 broadcast),
// 16 hold 6 x 2.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kRows = 12;
constexpr int kDotColumns = 8;
#else
constexpr int kRows = 6;
constexpr int kDotColumns = 4;
#endif
// Dot products: kDotColumns rows of w, each a stream from memory, against up to kDotRows rows of x.
constexpr int kDotRows = 3;
constexpr int kVectors = 2;
constexpr int64_t kCols = kVectors * int64_t(kLanes);
static_assert(kBlockRows % kRows == 0 && kBlockCols % kCols == 0);

HWY_INLINE float ToFloat(float v) {
  return v;
}
HWY_INLINE float ToFloat(bf16 v) {
  return static_cast<float>(v);
}

// ---- packing: panels of `width` rows, dst[panel][k][width] f32, missing rows are 0

// As many neighbours as `d` has lanes, widened.
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const float* p) {
  return hn::LoadU(d, p);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const bf16* p) {
  const hn::Rebind<uint32_t, DF> du32;
  const hn::Rebind<uint16_t, DF> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, &p->bits))));
}
template <class T>
HWY_INLINE void CopyWide(const T* HWY_RESTRICT src, int64_t count, float* HWY_RESTRICT dst) {
  const D d;
  const D4 d4;
  int64_t i = 0;
  for (; i + int64_t(kLanes) <= count; i += int64_t(kLanes)) hn::StoreU(LoadWide(d, src + i), d, dst + i);
  if constexpr (kLanes > 4)
    for (; i + 4 <= count; i += 4) hn::StoreU(LoadWide(d4, src + i), d4, dst + i);
  if constexpr (kLanes > 1)
    for (; i < count; ++i) dst[i] = ToFloat(src[i]);
}

// Rows are k-contiguous: 4 x 4 transposes, a cache line of k at a time. `rows` <= width of them exist.
template <class T>
void PackTransposed(const T* src, int64_t stride, int64_t rows, int64_t k, int64_t width,
                    float* HWY_RESTRICT dst) {
  constexpr int64_t kLine = 16;
  for (int64_t k0 = 0; k0 < k; k0 += kLine) {
    const int64_t k1 = std::min(k, k0 + kLine);
    for (int64_t r = 0; r < width; r += 4) {
      const int64_t have = std::clamp<int64_t>(rows - r, 0, 4);
      const int64_t room = std::min<int64_t>(width - r, 4);
      const T* s = src + r * stride;
      int64_t i = k0;
#if HWY_TARGET != HWY_SCALAR
      if (have == 4) {
        const D4 d;
        const hn::Repartition<double, D4> dd;
        for (; i + 4 <= k1; i += 4) {
          const auto r0 = LoadWide(d, s + i), r1 = LoadWide(d, s + stride + i);
          const auto r2 = LoadWide(d, s + 2 * stride + i), r3 = LoadWide(d, s + 3 * stride + i);
          const auto a = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
          const auto b = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
          const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
          const auto f = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
          float* out = dst + i * width + r;
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, a, b)), d, out);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, a, b)), d, out + width);
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dd, e, f)), d, out + 2 * width);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dd, e, f)), d, out + 3 * width);
        }
      }
#endif
      for (; i < k1; ++i)
        for (int64_t j = 0; j < room; ++j)
          dst[i * width + r + j] = j < have ? ToFloat(s[j * stride + i]) : 0.0f;
    }
  }
}

// Row index is contiguous: copies. A few k at a time, so that both sides stay local: the panels lie a
// multiple of 4 KiB apart, and touching all of them at every k would fall on the same cache sets.
template <class T>
void PackCopied(const T* src, int64_t stride, int64_t rows, int64_t k, int64_t width,
                float* HWY_RESTRICT dst) {
  constexpr int64_t kRun = 16;
  const D d;
  for (int64_t i0 = 0; i0 < k; i0 += kRun) {
    const int64_t i1 = std::min(k, i0 + kRun);
    for (int64_t r = 0; r < rows; r += width) {
      const int64_t have = std::min(width, rows - r);
      float* panel = dst + r * k;
      // A panel narrower than a vector is copied in whole vectors: what hangs over is overwritten by the next
      // k, and there is none after the last.
      int64_t whole = i0;
      if (width < int64_t(kLanes) && rows - r >= int64_t(kLanes)) whole = std::min(i1, k - 1);
      for (int64_t i = i0; i < i1; ++i) {
        const T* row = src + i * stride + r;
        if (i + kRun < k)
          for (int64_t j = 0; j < have; j += 64 / int64_t(sizeof(T))) hwy::Prefetch(row + kRun * stride + j);
        if (i < whole) {
          hn::StoreU(LoadWide(d, row), d, panel + i * width);
          continue;
        }
        CopyWide(row, have, panel + i * width);
        if (have < width) std::fill(panel + i * width + have, panel + (i + 1) * width, 0.0f);
      }
    }
  }
}

// Element (r, i) of the packed side lies at data[r * along + i * depth].
template <class T>
void PackPanels(const T* data, int64_t along, int64_t depth, int64_t rows, int64_t k, int64_t width,
                float* dst) {
  if (depth != 1) return PackCopied(data, depth, rows, k, width, dst);
  for (int64_t r = 0; r < rows; r += width, dst += width * k)
    PackTransposed(data + r * along, along, std::min(width, rows - r), k, width, dst);
}
void PackPanels(const void* data, DType dtype, int64_t along, int64_t depth, int64_t rows, int64_t k,
                int64_t width, float* dst) {
  if (dtype == DType::f32)
    PackPanels(static_cast<const float*>(data), along, depth, rows, k, width, dst);
  else
    PackPanels(static_cast<const bf16*>(data), along, depth, rows, k, width, dst);
}

// ---- the register tile: c [rows <= kRows, cols <= kCols] (+)= panel a [k][kRows] . panel b [k][kCols]
HWY_INLINE void RegisterTile(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t k,
                             int64_t rows, int64_t cols, float* HWY_RESTRICT c, int64_t ldc,
                             bool accumulate) {
  const D d;
  V acc[kRows][kVectors];
  HYSPARSE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = hn::Zero(d);
    acc[r][1] = hn::Zero(d);
  }
  for (int64_t i = 0; i < k; ++i, a += kRows, b += kCols) {
    const V b0 = hn::Load(d, b), b1 = hn::Load(d, b + kLanes);
    HYSPARSE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const V ar = hn::Set(d, a[r]);
      acc[r][0] = hn::MulAdd(ar, b0, acc[r][0]);
      acc[r][1] = hn::MulAdd(ar, b1, acc[r][1]);
    }
  }
  if (rows == kRows && cols == kCols) {
    HYSPARSE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float* row = c + r * ldc;
      if (accumulate) {
        acc[r][0] = hn::Add(acc[r][0], hn::LoadU(d, row));
        acc[r][1] = hn::Add(acc[r][1], hn::LoadU(d, row + kLanes));
      }
      hn::StoreU(acc[r][0], d, row);
      hn::StoreU(acc[r][1], d, row + kLanes);
    }
    return;
  }
  HWY_ALIGN float edge[kRows * kCols];
  HYSPARSE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    hn::Store(acc[r][0], d, edge + r * kCols);
    hn::Store(acc[r][1], d, edge + r * kCols + int64_t(kLanes));
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols; ++j) {
      const float v = edge[r * kCols + j];
      c[r * ldc + j] = accumulate ? c[r * ldc + j] + v : v;
    }
}

// Part `part` of `parts` of the lines of a [rows, columns].
HWY_INLINE void Prefetch(const Matrix& a, int64_t rows, int64_t columns, int64_t part, int64_t parts) {
  const int64_t bytes = columns * int64_t(size_of(a.dtype));
  const int64_t begin = bytes * part / parts / 64 * 64, end = bytes * (part + 1) / parts / 64 * 64;
  for (int64_t r = 0; r < rows; ++r) {
    const char* p = static_cast<const char*>(a.block(r, 0).data);
    for (int64_t i = begin; i < end; i += 64) hwy::Prefetch(p + i);
  }
}

void PackBlock(const Matrix& b, int64_t n, int64_t k, void* panels) {
  PackPanels(b.data, b.dtype, b.col, b.row, n, k, kCols, static_cast<float*>(panels));
}

void MultiplyBlock(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                   int64_t ldc, bool accumulate, void* workspace) {
  const float* bs = static_cast<const float*>(b_panels);
  float* as = static_cast<float*>(workspace);
  // Rows that are k-contiguous are packed a panel at a time, and the next panel's lines fetched meanwhile.
  const bool by_panel = a.col == 1;
  if (!by_panel) PackPanels(a.data, a.dtype, a.row, a.col, m, k, kRows, as);
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, m - i);
    if (by_panel) PackPanels(a.block(i, 0).data, a.dtype, a.row, 1, rows, k, kRows, as);
    const float* panel = by_panel ? as : as + i * k;
    const int64_t next = by_panel ? std::clamp<int64_t>(m - i - kRows, 0, kRows) : 0;
    for (int64_t j = 0; j < n; j += kCols) {
      Prefetch(a.block(i + kRows, 0), next, k, j / kCols, (n + kCols - 1) / kCols);
      RegisterTile(panel, bs + j * k, k, rows, std::min(kCols, n - j), c + i * ldc + j, ldc, accumulate);
    }
  }
}

// ---- dot products

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

// out[j][i] = w_i . x_j for kN (a multiple of 4, or 1) rows of w and kM rows of x.
template <int kN, int kM, class T>
HWY_INLINE void DotBlock(const T* HWY_RESTRICT w, int64_t w_stride, const T* HWY_RESTRICT x, int64_t x_stride,
                         int64_t k, float (*HWY_RESTRICT out)[8]) {
  const D d;
  V acc[kM][kN];
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) acc[j][i] = hn::Zero(d);
  }
  int64_t p = 0;
  for (; p + kStep<T> <= k; p += kStep<T>) {
    const Wide<T> x0(x + p), x1(x + (kM > 1 ? x_stride : 0) + p), x2(x + (kM > 2 ? 2 * x_stride : 0) + p);
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) {
      const Wide<T> wv(w + i * w_stride + p);
      acc[0][i] = Accumulate(wv, x0, acc[0][i]);
      if constexpr (kM > 1) acc[1][i] = Accumulate(wv, x1, acc[1][i]);
      if constexpr (kM > 2) acc[2][i] = Accumulate(wv, x2, acc[2][i]);
    }
  }
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    if constexpr (kN == 1) {
      float sums[4];
      Sum4(acc[j][0], hn::Zero(d), hn::Zero(d), hn::Zero(d), sums);
      out[j][0] = sums[0];
    } else {
      HYSPARSE_UNROLL
      for (int i = 0; i < kN; i += 4)
        Sum4(acc[j][i], acc[j][i + 1], acc[j][i + 2], acc[j][i + 3], out[j] + i);
    }
  }
  for (; p < k; ++p)
    for (int j = 0; j < kM; ++j)
      for (int i = 0; i < kN; ++i) out[j][i] += ToFloat(w[i * w_stride + p]) * ToFloat(x[j * x_stride + p]);
}

HWY_INLINE void StoreOne(float v, const Output& y, int64_t r, int64_t c) {
  if (y.bias)
    v += y.bias_dtype == DType::f32 ? static_cast<const float*>(y.bias)[c]
                                    : ToFloat(static_cast<const bf16*>(y.bias)[c]);
  if (y.dtype == DType::f32) {
    float* p = static_cast<float*>(y.data) + r * y.row + c;
    *p = y.accumulate ? *p + v : v;
  } else {
    bf16* p = static_cast<bf16*>(y.data) + r * y.row + c;
    *p = bf16(y.accumulate ? ToFloat(*p) + v : v);
  }
}

template <int kN, int kM, class T>
void DotStore(const T* w, int64_t w_stride, const T* x, int64_t x_stride, int64_t k, const Output& y,
              int64_t r, int64_t c) {
  HWY_ALIGN float out[kM][8];
  DotBlock<kN, kM>(w, w_stride, x, x_stride, k, out);
  for (int j = 0; j < kM; ++j)
    for (int i = 0; i < kN; ++i) StoreOne(out[j][i], y, r + j, c + i);
}

// kN rows of w against all m rows of x, in groups of nearly equal size.
template <int kN, class T>
void DotColumns(const T* w, int64_t w_stride, const T* x, int64_t x_stride, int64_t m, int64_t k,
                const Output& y, int64_t c) {
  for (int64_t r = 0; r < m;) {
    const int64_t groups = (m - r + kDotRows - 1) / kDotRows;
    const int64_t rows = (m - r + groups - 1) / groups;
    const T* xr = x + r * x_stride;
    if (rows == 1) DotStore<kN, 1>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 2) DotStore<kN, 2>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 3) DotStore<kN, 3>(w, w_stride, xr, x_stride, k, y, r, c);
    r += rows;
  }
}

template <class T>
void MultiplyDot(const T* x, int64_t x_stride, const T* w, int64_t w_stride, int64_t m, int64_t n, int64_t k,
                 const Output& y) {
  int64_t c = 0;
  if (m == 1)  // one row of x leaves registers for more
    for (; c + 8 <= n; c += 8) DotStore<8, 1>(w + c * w_stride, w_stride, x, x_stride, k, y, 0, c);
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

// ---- the end of a product

HWY_INLINE void StoreNarrow(V v, float* p) {
  hn::StoreU(v, D(), p);
}
HWY_INLINE void StoreNarrow(V v, bf16* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(du16, hn::IfThenElse(is_nan, nan, rounded)), du16, &p->bits);
}
template <class T, class B>
void StoreTile(const float* tile, int64_t ld, int64_t m, int64_t n, const Output& y) {
  const B* bias = static_cast<const B*>(y.bias);
  for (int64_t r = 0; r < m; ++r) {
    const float* t = tile + r * ld;
    T* out = static_cast<T*>(y.data) + r * y.row;
    int64_t c = 0;
    for (; c + int64_t(kLanes) <= n; c += int64_t(kLanes)) {
      V v = LoadWide(D(), t + c);
      if (bias) v = hn::Add(v, LoadWide(D(), bias + c));
      if (y.accumulate) v = hn::Add(LoadWide(D(), out + c), v);
      StoreNarrow(v, out + c);
    }
    for (; c < n; ++c) StoreOne(t[c], y, r, c);
  }
}
void StoreTileAny(const float* tile, int64_t ld, int64_t m, int64_t n, const Output& y) {
  const bool wide_bias = !y.bias || y.bias_dtype == DType::f32;
  if (y.dtype == DType::f32)
    wide_bias ? StoreTile<float, float>(tile, ld, m, n, y) : StoreTile<float, bf16>(tile, ld, m, n, y);
  else
    wide_bias ? StoreTile<bf16, float>(tile, ld, m, n, y) : StoreTile<bf16, bf16>(tile, ld, m, n, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::gemm {

HWY_EXPORT(PackBlock);
HWY_EXPORT(MultiplyBlock);
HWY_EXPORT(MultiplyDotAny);
HWY_EXPORT(StoreTileAny);

void pack_block(const Matrix& b, int64_t n, int64_t k, void* panels) {
  HWY_DYNAMIC_DISPATCH(PackBlock)(b, n, k, panels);
}
void multiply_block(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate, void* a_panels) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlock)(a, b_panels, m, n, k, c, ldc, accumulate, a_panels);
}
void multiply_dot(const Matrix& x, const Matrix& w, int64_t m, int64_t n, int64_t k, const Output& y) {
  HWY_DYNAMIC_DISPATCH(MultiplyDotAny)(x, w, m, n, k, y);
}
void store_tile(const float* tile, int64_t ld, int64_t m, int64_t n, const Output& y) {
  HWY_DYNAMIC_DISPATCH(StoreTileAny)(tile, ld, m, n, y);
}

}  // namespace hysparse::gemm
#endif
