// Packed-panel matrix kernels for every SIMD level. The AVX512-BF16 ones are in gemm_bf16.cpp.
#include "kernels/cpu/gemm_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/gemm_simd-inl.h"
#include "kernels/weight.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Register tile: kRows x kVectors accumulators. 32 vector registers hold 12 x 2 (+ 2 of b + 1 broadcast),
// 16 hold 6 x 2.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif
constexpr int kVectors = 2;
constexpr int64_t kCols = kVectors * int64_t(kLanes);
static_assert(kBlockRows % kRows == 0 && kBlockCols % kCols == 0);

// ---- packing: panels of `width` rows, dst[panel][k][width] f32, missing rows are 0

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

// ---- the end of a product

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

// ---- 8-bit integers

HWY_INLINE V Widen(const int8_t* p) {
  const D d;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<int8_t, D> di8;
  return hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(di8, p)));
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

HWY_EXPORT(PackBlock);
HWY_EXPORT(MultiplyBlock);
HWY_EXPORT(StoreTileAny);
HWY_EXPORT(DequantiseRow);

void pack_block(const Matrix& b, int64_t n, int64_t k, void* panels) {
  HWY_DYNAMIC_DISPATCH(PackBlock)(b, n, k, panels);
}
void multiply_block(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate, void* a_panels) {
  HWY_DYNAMIC_DISPATCH(MultiplyBlock)(a, b_panels, m, n, k, c, ldc, accumulate, a_panels);
}
void dequantise_row(const int8_t* value, const float* scales, int64_t n, DType dtype, void* dst) {
  HWY_DYNAMIC_DISPATCH(DequantiseRow)(value, scales, n, dtype, dst);
}
void store_tile(const float* tile, int64_t ld, int64_t m, int64_t n, const Output& y) {
  HWY_DYNAMIC_DISPATCH(StoreTileAny)(tile, ld, m, n, y);
}

}  // namespace hysparse::gemm
#endif
