// Row work of attention tiles: conversion, transposition, the online softmax and its gradient.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attn_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <limits>

#include "kernels/cpu/attn_kernels.h"
#include "kernels/cpu/attn_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::attn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D4 = hn::CappedTag<float, 4>;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// ---- rows in and out

template <class T>
HWY_INLINE void LoadRow(const T* HWY_RESTRICT src, int width, float factor, float* HWY_RESTRICT dst,
                        ptrdiff_t ld) {
  const D d;
  const V f = hn::Set(d, factor);
  int j = 0;
  for (; j + kLanes <= width; j += kLanes) hn::StoreU(hn::Mul(LoadF(d, src + j), f), d, dst + j);
  for (; j < width; ++j) dst[j] = ToFloat(src[j]) * factor;
  for (; j < ld; ++j) dst[j] = 0;
}
template <class T>
HWY_INLINE void LoadRowsT(const void* const* rows, int n, int width, float factor, float* dst, ptrdiff_t ld) {
  for (int i = 0; i < n; ++i, dst += ld)
    LoadRow(static_cast<const T*>(rows[i]), width, factor, dst, padded(width));
}
void LoadRows(const void* const* rows, DType type, int n, int width, float factor, float* dst, ptrdiff_t ld) {
  if (type == DType::f32) LoadRowsT<float>(rows, n, width, factor, dst, ld);
  if (type == DType::bf16) LoadRowsT<bf16>(rows, n, width, factor, dst, ld);
  if (type == DType::i8) LoadRowsT<int8_t>(rows, n, width, factor, dst, ld);
  if (type == DType::f8) LoadRowsT<f8>(rows, n, width, factor, dst, ld);
}

// Four rows of four become four columns of four.
template <class T>
HWY_INLINE void Transpose4(const T* r0, const T* r1, const T* r2, const T* r3, int width,
                           float* HWY_RESTRICT dst, ptrdiff_t ld) {
  int j = 0;
#if HWY_TARGET != HWY_SCALAR
  const D4 d;
  const hn::Repartition<double, D4> d2;
  for (; j + 4 <= width; j += 4) {
    const auto a = LoadF(d, r0 + j), b = LoadF(d, r1 + j), c = LoadF(d, r2 + j), e = LoadF(d, r3 + j);
    const auto ab_lo = hn::BitCast(d2, hn::InterleaveLower(d, a, b));
    const auto ab_hi = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
    const auto ce_lo = hn::BitCast(d2, hn::InterleaveLower(d, c, e));
    const auto ce_hi = hn::BitCast(d2, hn::InterleaveUpper(d, c, e));
    float* out = dst + j * ld;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab_lo, ce_lo)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab_lo, ce_lo)), d, out + ld);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab_hi, ce_hi)), d, out + 2 * ld);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab_hi, ce_hi)), d, out + 3 * ld);
  }
#endif
  for (; j < width; ++j) {
    float* out = dst + j * ld;
    out[0] = ToFloat(r0[j]);
    out[1] = ToFloat(r1[j]);
    out[2] = ToFloat(r2[j]);
    out[3] = ToFloat(r3[j]);
  }
}
#if HWY_TARGET != HWY_SCALAR
using D8 = hn::CappedTag<float, 8>;

// Eight rows of eight words become eight columns.
template <class DU>
HWY_INLINE void Transpose8(DU du, hn::Vec<DU> (&x)[8]) {
  const hn::Repartition<uint64_t, DU> d64;
  using V64 = hn::Vec<decltype(d64)>;
  // Within blocks of four lanes: pairs of words, then pairs of those; then the blocks change places.
  V64 a[8], b[8];
  HYSPARSE_UNROLL
  for (int i = 0; i < 8; i += 2) {
    a[i] = hn::BitCast(d64, hn::InterleaveLower(du, x[i], x[i + 1]));
    a[i + 1] = hn::BitCast(d64, hn::InterleaveUpper(du, x[i], x[i + 1]));
  }
  HYSPARSE_UNROLL
  for (int i = 0; i < 8; i += 4) {
    b[i] = hn::InterleaveLower(d64, a[i], a[i + 2]);
    b[i + 1] = hn::InterleaveUpper(d64, a[i], a[i + 2]);
    b[i + 2] = hn::InterleaveLower(d64, a[i + 1], a[i + 3]);
    b[i + 3] = hn::InterleaveUpper(d64, a[i + 1], a[i + 3]);
  }
  HYSPARSE_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = hn::BitCast(du, hn::ConcatLowerLower(d64, b[i + 4], b[i]));
    x[i + 4] = hn::BitCast(du, hn::ConcatUpperUpper(d64, b[i + 4], b[i]));
  }
}

// The first dims of eight rows, as many as make whole squares; returns how many.
HWY_INLINE int TransposeSquares(const void* const* rows, const float*, int width, float* dst, ptrdiff_t ld) {
  const D8 d;
  const hn::RebindToUnsigned<D8> du;
  int j = 0;
  for (; j + 8 <= width; j += 8) {
    hn::Vec<decltype(du)> x[8];
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = hn::BitCast(du, hn::LoadU(d, static_cast<const float*>(rows[i]) + j));
    Transpose8(du, x);
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i) hn::StoreU(hn::BitCast(d, x[i]), d, dst + (j + i) * ld);
  }
  return j;
}
HWY_INLINE int TransposeSquares(const void* const* rows, const bf16*, int width, float* dst, ptrdiff_t ld) {
  const D8 d;
  const hn::RebindToUnsigned<D8> du;
  const hn::Repartition<uint16_t, D8> d16;
  int j = 0;
  for (; j + 16 <= width; j += 16) {
    hn::Vec<decltype(du)> x[8];  // words of two neighbours
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i)
      x[i] = hn::BitCast(du, hn::LoadU(d16, &(static_cast<const bf16*>(rows[i]) + j)->bits));
    Transpose8(du, x);
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float* out = dst + (j + 2 * i) * ld;
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(x[i])), d, out);
      hn::StoreU(hn::BitCast(d, hn::And(x[i], hn::Set(du, 0xffff0000u))), d, out + ld);
    }
  }
  return j;
}
template <class T>
HWY_INLINE int TransposeCodes(const void* const* rows, int width, float* dst, ptrdiff_t ld) {
  const D8 d;
  const hn::RebindToUnsigned<D8> du;
  const hn::Repartition<uint8_t, D8> d8;
  int j = 0;
  for (; j + 32 <= width; j += 32) {
    hn::Vec<decltype(du)> x[8];  // words of four neighbours
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i)
      x[i] = hn::BitCast(du, hn::LoadU(d8, static_cast<const uint8_t*>(rows[i]) + j));
    Transpose8(du, x);
    HYSPARSE_UNROLL
    for (int i = 0; i < 8; ++i) {
      float* out = dst + (j + 4 * i) * ld;
      hn::StoreU(UpperCode(d, hn::ShiftLeft<24>(x[i]), T()), d, out);
      hn::StoreU(UpperCode(d, hn::ShiftLeft<16>(x[i]), T()), d, out + ld);
      hn::StoreU(UpperCode(d, hn::ShiftLeft<8>(x[i]), T()), d, out + 2 * ld);
      hn::StoreU(UpperCode(d, x[i], T()), d, out + 3 * ld);
    }
  }
  return j;
}
HWY_INLINE int TransposeSquares(const void* const* rows, const int8_t*, int width, float* dst, ptrdiff_t ld) {
  return TransposeCodes<int8_t>(rows, width, dst, ld);
}
HWY_INLINE int TransposeSquares(const void* const* rows, const f8*, int width, float* dst, ptrdiff_t ld) {
  return TransposeCodes<f8>(rows, width, dst, ld);
}
#endif

template <class T>
HWY_INLINE void LoadTransposedT(const void* const* rows, int n, int width, float* HWY_RESTRICT dst,
                                ptrdiff_t ld) {
  int i = 0;
  const auto four = [&](int from, int begin) HWY_ATTR {
    const T* r[4];
    for (int x = 0; x < 4; ++x) r[x] = static_cast<const T*>(rows[from + x]) + begin;
    Transpose4(r[0], r[1], r[2], r[3], width - begin, dst + begin * ld + from, ld);
  };
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kLanes >= 8)
    for (; i + 8 <= n; i += 8) {
      const int done = TransposeSquares(rows + i, static_cast<const T*>(nullptr), width, dst + i, ld);
      if (done == width) continue;
      four(i, done);
      four(i + 4, done);
    }
#endif
  for (; i + 4 <= n; i += 4) four(i, 0);
  for (; i < n; ++i) {
    const T* r = static_cast<const T*>(rows[i]);
    for (int j = 0; j < width; ++j) dst[j * ld + i] = ToFloat(r[j]);
  }
  const int end = static_cast<int>(padded(n));
  if (n < end)
    for (int j = 0; j < width; ++j)
      for (int c = n; c < end; ++c) dst[j * ld + c] = 0;
}
void LoadTransposed(const void* const* rows, DType type, int n, int width, float* dst, ptrdiff_t ld) {
  if (type == DType::f32) LoadTransposedT<float>(rows, n, width, dst, ld);
  if (type == DType::bf16) LoadTransposedT<bf16>(rows, n, width, dst, ld);
  if (type == DType::i8) LoadTransposedT<int8_t>(rows, n, width, dst, ld);
  if (type == DType::f8) LoadTransposedT<f8>(rows, n, width, dst, ld);
}

void ScaleColumns(int rows, int n, const float* factor, float* s, ptrdiff_t ld) {
  const D d;
  for (int i = 0; i < rows; ++i, s += ld)
    for (int j = 0; j < n; j += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, s + j), hn::LoadU(d, factor + j)), d, s + j);
}

template <class T>
HWY_INLINE void StoreRow(const float* HWY_RESTRICT src, float factor, int width, T* HWY_RESTRICT dst) {
  const D d;
  const V f = hn::Set(d, factor);
  int j = 0;
  for (; j + kLanes <= width; j += kLanes) StoreF(hn::Mul(hn::LoadU(d, src + j), f), d, dst + j);
  for (; j < width; ++j) dst[j] = FromFloat<T>(src[j] * factor);
}
void StoreRows(const float* src, ptrdiff_t ld, const float* factor, int n, int width, bool is_bf16,
               void* const* rows) {
  for (int i = 0; i < n; ++i, src += ld) {
    if (is_bf16)
      StoreRow(src, factor[i], width, static_cast<bf16*>(rows[i]));
    else
      StoreRow(src, factor[i], width, static_cast<float*>(rows[i]));
  }
}

void AddRows(const float* src, ptrdiff_t ld, float factor, int n, int width, float* const* rows) {
  const D d;
  const V f = hn::Set(d, factor);
  for (int i = 0; i < n; ++i, src += ld) {
    float* HWY_RESTRICT out = rows[i];
    int j = 0;
    for (; j + kLanes <= width; j += kLanes)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, src + j), f, hn::LoadU(d, out + j)), d, out + j);
    for (; j < width; ++j) out[j] += src[j] * factor;
  }
}

template <class T>
HWY_INLINE float DotRow(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int width) {
  const D d;
  V sum = hn::Zero(d);
  int j = 0;
  for (; j + kLanes <= width; j += kLanes) sum = hn::MulAdd(LoadF(d, a + j), LoadF(d, b + j), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; j < width; ++j) total += ToFloat(a[j]) * ToFloat(b[j]);
  return total;
}
void DotRows(const void* const* a, const void* const* b, bool is_bf16, int n, int width, float* out) {
  for (int i = 0; i < n; ++i)
    out[i] = is_bf16 ? DotRow(static_cast<const bf16*>(a[i]), static_cast<const bf16*>(b[i]), width)
                     : DotRow(static_cast<const float*>(a[i]), static_cast<const float*>(b[i]), width);
}

// ---- softmax

// True in the lanes of columns [lo, hi); the first lane is column j.
HWY_INLINE hn::Mask<D> Between(int j, int lo, int hi) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto column = hn::Iota(di, j);
  const auto inside = hn::AndNot(hn::VecFromMask(di, hn::Lt(column, hn::Set(di, lo))),
                                 hn::VecFromMask(di, hn::Lt(column, hn::Set(di, hi))));
  return hn::RebindMask(d, hn::MaskFromVec(inside));
}

// Largest of s[0..n), n > 0, wherever it starts.
HWY_INLINE float MaxOf(const float* s, int n) {
  const D d;
  if (n >= kLanes) {
    V m = hn::LoadU(d, s + n - kLanes);
    for (int j = 0; j + kLanes <= n; j += kLanes) m = hn::Max(m, hn::LoadU(d, s + j));
    return hn::GetLane(hn::MaxOfLanes(d, m));
  }
  const D4 d4;
  const int four = static_cast<int>(hn::MaxLanes(d4));
  if (n >= four) {
    auto m = hn::LoadU(d4, s + n - four);
    for (int j = 0; j + four <= n; j += four) m = hn::Max(m, hn::LoadU(d4, s + j));
    return hn::GetLane(hn::MaxOfLanes(d4, m));
  }
  float m = s[0];
  for (int j = 1; j < n; ++j) m = HWY_MAX(m, s[j]);
  return m;
}

// Maximum of a row of `columns` (padded) scores; keeps the maxima of the pieces.
HWY_INLINE float RowMax(const SoftmaxTile& t, int i, const float* s, int columns) {
  const D d;
  if (t.pieces == 0) {
    V m = hn::LoadU(d, s);
    for (int j = kLanes; j < columns; j += kLanes) m = hn::Max(m, hn::LoadU(d, s + j));
    return hn::GetLane(hn::MaxOfLanes(d, m));
  }
  float* best = t.piece_max.row(i);
  if (t.pieces == t.keys) {  // blocks of one key
    for (int j = 0; j < t.keys; ++j) best[j] = HWY_MAX(best[j], s[j]);
    return MaxOf(s, t.keys);
  }
  float m = kNegInf;
  for (int p = 0; p < t.pieces; ++p) {
    const float pm = MaxOf(s + t.piece[p], t.piece[p + 1] - t.piece[p]);
    best[p] = HWY_MAX(best[p], pm);
    m = HWY_MAX(m, pm);
  }
  return m;
}

void Softmax(const SoftmaxTile& t) {
  const D d;
  const int columns = static_cast<int>(padded(t.keys));
  for (int i = 0; i < t.rows; ++i) {
    float* HWY_RESTRICT s = t.s + i * t.ld;
    const int lo = t.lo ? t.lo[i] : 0, hi = t.hi ? t.hi[i] : t.keys;
    if (hi <= lo) {
      for (int j = 0; j < columns; j += kLanes) hn::StoreU(hn::Zero(d), d, s + j);
      continue;
    }
    if (lo > 0 || hi < columns) {
      const V none = hn::Set(d, kNegInf);
      for (int j = 0; j < columns; j += kLanes)
        hn::StoreU(hn::IfThenElse(Between(j, lo, hi), hn::LoadU(d, s + j), none), d, s + j);
    }
    const int state = t.index ? t.index[i] : i;
    const float before = t.row_max[state];
    const float tile_max = RowMax(t, i, s, columns);
    if (tile_max > before) {
      t.row_max[state] = tile_max;
      if (before > kNegInf) {
        const float shrink = hn::GetLane(Exp2(d, hn::Set(d, before - tile_max)));
        t.row_sum[state] *= shrink;
        const V f = hn::Set(d, shrink);
        float* HWY_RESTRICT o = t.o.row(i);
        for (int j = 0; j < t.o_width; j += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, o + j), f), d, o + j);
      }
    }
    // All scores -inf so far: any finite shift gives the zeros that are due.
    const float now = t.row_max[state];
    const V shift = hn::Set(d, now > kNegInf ? now : 0.0f);
    V sum = hn::Zero(d);
    for (int j = 0; j < columns; j += kLanes) {
      const V p = Exp2(d, hn::Sub(hn::LoadU(d, s + j), shift));
      sum = hn::Add(sum, p);
      hn::StoreU(p, d, s + j);
    }
    t.row_sum[state] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void Merge(int rows, int width, const float* row_max, const float* row_sum, const float* o, float* to_max,
           float* to_sum, float* to_o) {
  const D d;
  for (int i = 0; i < rows; ++i, o += width, to_o += width) {
    if (row_max[i] == kNegInf && row_sum[i] == 0) continue;
    if (to_max[i] == kNegInf && to_sum[i] == 0) {
      to_max[i] = row_max[i];
      to_sum[i] = row_sum[i];
      for (int j = 0; j < width; j += kLanes) hn::StoreU(hn::LoadU(d, o + j), d, to_o + j);
      continue;
    }
    // Both -inf (scores that are): any finite shift gives the zeros that are due.
    const float top = HWY_MAX(row_max[i], to_max[i]), shift = top > kNegInf ? top : 0.0f;
    const V keep = Exp2(d, hn::Set(d, to_max[i] - shift)), add = Exp2(d, hn::Set(d, row_max[i] - shift));
    to_max[i] = top;
    to_sum[i] = hn::GetLane(hn::MulAdd(hn::Set(d, row_sum[i]), add, hn::Mul(hn::Set(d, to_sum[i]), keep)));
    for (int j = 0; j < width; j += kLanes)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, o + j), add, hn::Mul(hn::LoadU(d, to_o + j), keep)), d, to_o + j);
  }
}

void SoftmaxGrad(const SoftmaxGradTile& t) {
  const D d;
  const int columns = static_cast<int>(padded(t.keys));
  for (int i = 0; i < t.rows; ++i) {
    float* HWY_RESTRICT s = t.s + i * t.ld;
    float* HWY_RESTRICT dp = t.dp + i * t.ld;
    const int lo = t.lo ? t.lo[i] : 0, hi = t.hi ? t.hi[i] : t.keys;
    const int state = t.index ? t.index[i] : i;
    const V lse2 = hn::Set(d, t.lse2[state]), delta = hn::Set(d, t.delta[state]);
    if (lo == 0 && hi == columns) {
      for (int j = 0; j < columns; j += kLanes) {
        const V p = Exp2(d, hn::Sub(hn::LoadU(d, s + j), lse2));
        hn::StoreU(p, d, s + j);
        hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, dp + j), delta)), d, dp + j);
      }
      continue;
    }
    for (int j = 0; j < columns; j += kLanes) {
      const auto seen = Between(j, lo, hi);
      const V p = hn::IfThenElseZero(seen, Exp2(d, hn::Sub(hn::LoadU(d, s + j), lse2)));
      hn::StoreU(p, d, s + j);
      hn::StoreU(hn::IfThenElseZero(seen, hn::Mul(p, hn::Sub(hn::LoadU(d, dp + j), delta))), d, dp + j);
    }
  }
}

void GroupScores(const float* raw, ptrdiff_t ld, const float* maximum, const float* log2_sum, int heads,
                 int64_t n, float* out) {
  const D d;
  const V ln2 = hn::Set(d, 0.693147180559945309f);
  for (int64_t j = 0; j < n; j += kLanes) {
    V best = hn::Set(d, kNegInf);
    for (int r = 0; r < heads; ++r) {
      const V x = hn::Sub(hn::LoadU(d, raw + r * ld + j), hn::Set(d, maximum[r]));
      best = hn::Max(best, hn::Sub(x, hn::Set(d, log2_sum[r])));
    }
    hn::StoreU(hn::Mul(best, ln2), d, out + j);
  }
}

void FillRows(Kernels& k) {
  k.load_rows = &LoadRows;
  k.load_transposed = &LoadTransposed;
  k.scale_columns = &ScaleColumns;
  k.store_rows = &StoreRows;
  k.add_rows = &AddRows;
  k.dot_rows = &DotRows;
  k.softmax = &Softmax;
  k.merge = &Merge;
  k.softmax_grad = &SoftmaxGrad;
  k.group_scores = &GroupScores;
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::attn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::attn {

HWY_EXPORT(FillRows);
void fill_rows(Kernels& k) {
  HWY_DYNAMIC_DISPATCH(FillRows)(k);
}

Kernels kernels() {
  Kernels k{};
  fill_direct(k);
  fill_gemm(k);
  fill_rows(k);
  fill_gates(k);
  return k;
}

}  // namespace hysparse::attn
#endif
