// Products of few rows, straight from rows of T: what decoding runs on, where each key is read once from
// memory and packing it would cost more than using it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attn_direct.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attn_kernels.h"
#include "kernels/cpu/attn_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::attn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Query rows that share a load of the keys.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kRows = 4;
constexpr int kVectors = 4;
#else
constexpr int kRows = 2;
constexpr int kVectors = 2;
#endif
constexpr int kKeys = 4;

// The sums of four vectors.
HWY_INLINE void StoreSums(V a, V b, V c, V e, float* out) {
  const D d;
#if HWY_TARGET == HWY_SCALAR
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(e);
  (void)d;
#else
  // Within each block of four lanes: a0+a2 b0+b2 a1+a3 b1+b3, then a b c e.
  const hn::Repartition<double, D> d2;
  const auto ab = hn::BitCast(d2, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  const auto ce = hn::BitCast(d2, hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
  const V sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(d2, ab, ce)),
                         hn::BitCast(d, hn::InterleaveUpper(d2, ab, ce)));
  if constexpr (kLanes == 4) {
    hn::StoreU(sums, d, out);
  } else {
    const hn::Half<D> d_half;
    const auto half = hn::Add(hn::LowerHalf(d_half, sums), hn::UpperHalf(d_half, sums));
    if constexpr (kLanes == 8) {
      hn::StoreU(half, d_half, out);
    } else {
      const hn::Half<decltype(d_half)> d_quarter;
      hn::StoreU(hn::Add(hn::LowerHalf(d_quarter, half), hn::UpperHalf(d_quarter, half)), d_quarter, out);
    }
  }
#endif
}

template <int M, class T>
HWY_INLINE void Dot(int n, int width, const float* const* a, const void* const* rows, float* const* c,
                    Ahead* ahead) {
  const D d;
  for (int j = 0; j < n; j += kKeys) {
    const T* k[kKeys];
    HYSPARSE_UNROLL
    for (int x = 0; x < kKeys; ++x) k[x] = static_cast<const T*>(rows[HWY_MIN(j + x, n - 1)]);
    if (ahead)
      for (int x = 0; x < 2 * kKeys && ahead->row < ahead->end; ++x, ++ahead->row)
        for (int line = 0; line < ahead->lines; ++line)
          __builtin_prefetch(static_cast<const char*>(*ahead->row) + 64 * line, 0, 2);
    V sum[M][kKeys];
    HYSPARSE_UNROLL
    for (int i = 0; i < M; ++i) {
      HYSPARSE_UNROLL
      for (int x = 0; x < kKeys; ++x) sum[i][x] = hn::Zero(d);
    }
    for (int e = 0; e < width; e += kLanes) {
      V kv[kKeys];
      HYSPARSE_UNROLL
      for (int x = 0; x < kKeys; ++x) kv[x] = LoadF(d, k[x] + e);
      HYSPARSE_UNROLL
      for (int i = 0; i < M; ++i) {
        const V av = hn::LoadU(d, a[i] + e);
        HYSPARSE_UNROLL
        for (int x = 0; x < kKeys; ++x) sum[i][x] = hn::MulAdd(av, kv[x], sum[i][x]);
      }
    }
    HYSPARSE_UNROLL
    for (int i = 0; i < M; ++i) StoreSums(sum[i][0], sum[i][1], sum[i][2], sum[i][3], c[i] + j);
  }
}
template <int M>
void DotRows(int n, int width, const float* const* a, const void* const* rows, bool is_bf16, float* const* c,
             Ahead* ahead) {
  is_bf16 ? Dot<M, bf16>(n, width, a, rows, c, ahead) : Dot<M, float>(n, width, a, rows, c, ahead);
}
void DotDirect(int m, int n, int width, TileRows a, const void* const* rows, bool is_bf16, TileRows c,
               Ahead* ahead) {
  for (int i = 0; i < m; i += kRows) {
    const int count = HWY_MIN(kRows, m - i);
    const float* ar[kRows];
    float* cr[kRows];
    for (int r = 0; r < count; ++r) {
      ar[r] = a.row(i + r);
      cr[r] = c.row(i + r);
    }
    Ahead* once = i == 0 ? ahead : nullptr;
    if constexpr (kRows == 4) {
      if (count == 4) DotRows<4>(n, width, ar, rows, is_bf16, cr, once);
      if (count == 3) DotRows<3>(n, width, ar, rows, is_bf16, cr, once);
    }
    if (count == 2) DotRows<2>(n, width, ar, rows, is_bf16, cr, once);
    if (count == 1) DotRows<1>(n, width, ar, rows, is_bf16, cr, once);
  }
}

template <int M, int N, class T>
HWY_INLINE void AddBlock(int n, int column, const float* const* p, const void* const* rows, float* const* c) {
  const D d;
  V sum[M][N];
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int x = 0; x < N; ++x) sum[i][x] = hn::LoadU(d, c[i] + column + x * kLanes);
  }
  for (int j = 0; j < n; ++j) {
    const T* row = static_cast<const T*>(rows[j]) + column;
    V v[N];
    HYSPARSE_UNROLL
    for (int x = 0; x < N; ++x) v[x] = LoadF(d, row + x * kLanes);
    HYSPARSE_UNROLL
    for (int i = 0; i < M; ++i) {
      const V pv = hn::Set(d, p[i][j]);
      HYSPARSE_UNROLL
      for (int x = 0; x < N; ++x) sum[i][x] = hn::MulAdd(pv, v[x], sum[i][x]);
    }
  }
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int x = 0; x < N; ++x) hn::StoreU(sum[i][x], d, c[i] + column + x * kLanes);
  }
}
template <int M, class T>
HWY_INLINE void Add(int n, int width, const float* const* p, const void* const* rows, float* const* c) {
  int column = 0;
  for (; column + kVectors * kLanes <= width; column += kVectors * kLanes)
    AddBlock<M, kVectors, T>(n, column, p, rows, c);
  for (; column < width; column += kLanes) AddBlock<M, 1, T>(n, column, p, rows, c);
}
template <int M>
void AddRowsTo(int n, int width, const float* const* p, const void* const* rows, bool is_bf16,
               float* const* c) {
  is_bf16 ? Add<M, bf16>(n, width, p, rows, c) : Add<M, float>(n, width, p, rows, c);
}
void AddDirect(int m, int n, int width, TileRows p, const void* const* rows, bool is_bf16, TileRows c) {
  for (int i = 0; i < m; i += kRows) {
    const int count = HWY_MIN(kRows, m - i);
    const float* pr[kRows];
    float* cr[kRows];
    for (int r = 0; r < count; ++r) {
      pr[r] = p.row(i + r);
      cr[r] = c.row(i + r);
    }
    if constexpr (kRows == 4) {
      if (count == 4) AddRowsTo<4>(n, width, pr, rows, is_bf16, cr);
      if (count == 3) AddRowsTo<3>(n, width, pr, rows, is_bf16, cr);
    }
    if (count == 2) AddRowsTo<2>(n, width, pr, rows, is_bf16, cr);
    if (count == 1) AddRowsTo<1>(n, width, pr, rows, is_bf16, cr);
  }
}

void FillDirect(Kernels& k) {
  k.dot_direct = &DotDirect;
  k.add_direct = &AddDirect;
  k.direct_unit = kLanes;
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::attn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::attn {

HWY_EXPORT(FillDirect);
void fill_direct(Kernels& k) {
  HWY_DYNAMIC_DISPATCH(FillDirect)(k);
}

}  // namespace hysparse::attn
#endif
