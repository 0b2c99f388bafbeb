// Products of few rows with values, straight from rows of T: what decoding runs on, where each value is read
// once from memory and packing it would cost more than using it.
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

// Query rows that share a load of the values, and the vectors of columns that they meet at a time.
constexpr int kRows = 6;
template <int M>
constexpr int kVectors = kLanes == 16 || M <= 3 ? 4 : 2;

template <int M, int N, class T>
HWY_INLINE void AddBlock(int n, int column, const float* const* p, const void* const* rows, float* const* c,
                         Fetcher& fetch) {
  const D d;
  V sum[M][N];
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int x = 0; x < N; ++x) sum[i][x] = hn::LoadU(d, c[i] + column + x * kLanes);
  }
  Fetcher f = fetch;  // in registers
  for (int j = 0; j < n; ++j) {
    f.Step();
    if constexpr (M == 1) f.Step();  // there are fewer steps
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
  fetch = f;
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int x = 0; x < N; ++x) hn::StoreU(sum[i][x], d, c[i] + column + x * kLanes);
  }
}
template <int M, class T>
HWY_INLINE void Add(int n, int width, const float* const* p, const void* const* rows, float* const* c,
                    Fetcher& fetch) {
  int column = 0;
  for (; column + kVectors<M> * kLanes <= width; column += kVectors<M> * kLanes)
    AddBlock<M, kVectors<M>, T>(n, column, p, rows, c, fetch);
  for (; column < width; column += kLanes) AddBlock<M, 1, T>(n, column, p, rows, c, fetch);
}
template <int M>
void AddRowsTo(int n, int width, const float* const* p, const void* const* rows, DType type, float* const* c,
               Fetcher& fetch) {
  if (type == DType::f32) Add<M, float>(n, width, p, rows, c, fetch);
  if (type == DType::bf16) Add<M, bf16>(n, width, p, rows, c, fetch);
  if (type == DType::i8) Add<M, int8_t>(n, width, p, rows, c, fetch);
  if (type == DType::f8) Add<M, f8>(n, width, p, rows, c, fetch);
}
void AddDirect(int m, int n, int width, TileRows p, const void* const* rows, DType type, TileRows c,
               Ahead* ahead) {
  Fetcher fetch(ahead, p.row(0));
  for (int i = 0; i < m;) {  // groups of nearly equal size
    const int groups = (m - i + kRows - 1) / kRows, count = (m - i + groups - 1) / groups;
    const float* pr[kRows];
    float* cr[kRows];
    for (int r = 0; r < count; ++r) {
      pr[r] = p.row(i + r);
      cr[r] = c.row(i + r);
    }
    if (count == 1) AddRowsTo<1>(n, width, pr, rows, type, cr, fetch);
    if (count == 2) AddRowsTo<2>(n, width, pr, rows, type, cr, fetch);
    if (count == 3) AddRowsTo<3>(n, width, pr, rows, type, cr, fetch);
    if (count == 4) AddRowsTo<4>(n, width, pr, rows, type, cr, fetch);
    if (count == 5) AddRowsTo<5>(n, width, pr, rows, type, cr, fetch);
    if (count == 6) AddRowsTo<6>(n, width, pr, rows, type, cr, fetch);
    i += count;
  }
  fetch.Stop();
}

void FillDirect(Kernels& k) {
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
