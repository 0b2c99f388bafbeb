// The matrix product of attention tiles: rows of A broadcast against vectors of B, with the sums in
// registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attn_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attn_kernels.h"
#include "kernels/cpu/attn_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::attn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums held in registers: kRows x kVectors of the 32 (or 16) that there are.
constexpr int kRows = 6;
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif
// Few rows take more vectors at a time, to hide the latency of their sums.
template <int M>
constexpr int kWide = kVectors == 4 ? 4
                      : M == 1      ? 8
                      : M <= 3      ? 4
                                    : 2;

template <int M, int N>
HWY_INLINE void Block(int depth, const float* const* HWY_RESTRICT a, ptrdiff_t a_step,
                      const float* HWY_RESTRICT b, ptrdiff_t ldb, float* const* c, bool accumulate,
                      Fetcher& fetch) {
  const D d;
  V sum[M][N];
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = accumulate ? hn::LoadU(d, c[i] + j * kLanes) : hn::Zero(d);
  }
  Fetcher f = fetch;  // in registers
  ptrdiff_t at = 0;
  for (int k = 0; k < depth; ++k, at += a_step, b += ldb) {
    V bv[N];
    HYSPARSE_UNROLL
    for (int j = 0; j < N; ++j) bv[j] = hn::LoadU(d, b + j * kLanes);
    HYSPARSE_UNROLL
    for (int i = 0; i < M; ++i) {
      const V av = hn::Set(d, a[i][at]);
      HYSPARSE_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] = hn::MulAdd(av, bv[j], sum[i][j]);
    }
    f.Step();
  }
  fetch = f;
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) {
    HYSPARSE_UNROLL
    for (int j = 0; j < N; ++j) hn::StoreU(sum[i][j], d, c[i] + j * kLanes);
  }
}

template <int M>
HWY_INLINE void Group(int n, int depth, const float* const* a, ptrdiff_t a_step, const float* b,
                      ptrdiff_t ldb, float* const* c, bool accumulate, Fetcher& fetch) {
  float* out[M];
  HYSPARSE_UNROLL
  for (int i = 0; i < M; ++i) out[i] = c[i];
  if constexpr (kWide < M >> kVectors) {
    constexpr auto wide = kWide<M> * kLanes;
    for (; n >= wide; n -= wide) {
      Block<M, kWide<M> >(depth, a, a_step, b, ldb, out, accumulate, fetch);
      b += wide;
      HYSPARSE_UNROLL
      for (int i = 0; i < M; ++i) out[i] += wide;
    }
  }
  const auto advance = kVectors * kLanes;
  for (; n >= advance; n -= advance) {
    Block<M, kVectors>(depth, a, a_step, b, ldb, out, accumulate, fetch);
    b += advance;
    HYSPARSE_UNROLL
    for (int i = 0; i < M; ++i) out[i] += advance;
  }
  if (n == 0) return;
  const int rest = n / kLanes;
  if constexpr (kVectors == 4) {
    if (rest == 3) return Block<M, 3>(depth, a, a_step, b, ldb, out, accumulate, fetch);
    if (rest == 2) return Block<M, 2>(depth, a, a_step, b, ldb, out, accumulate, fetch);
  }
  Block<M, 1>(depth, a, a_step, b, ldb, out, accumulate, fetch);
}

void Gemm(int m, int n, int depth, TileRows a, ptrdiff_t a_step, const float* b, ptrdiff_t ldb, TileRows c,
          bool accumulate, Ahead* ahead) {
  Fetcher fetch(ahead, b);
  for (int i = 0; i < m; i += kRows) {
    const int rows = HWY_MIN(kRows, m - i);
    const float* ar[kRows];
    float* cr[kRows];
    for (int r = 0; r < rows; ++r) {
      ar[r] = a.row(i + r);
      cr[r] = c.row(i + r);
    }
    switch (rows) {
      case 1:
        Group<1>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
      case 2:
        Group<2>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
      case 3:
        Group<3>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
      case 4:
        Group<4>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
      case 5:
        Group<5>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
      default:
        Group<kRows>(n, depth, ar, a_step, b, ldb, cr, accumulate, fetch);
        break;
    }
  }
  fetch.Stop();
}

// Ten independent chains hide the latency of the cores in use; they differ, else a compiler keeps one of
// them.
double MultiplyAdds(int64_t rounds, float* sink) {
  const D d;
  const V factor = hn::Set(d, 0.999f), term = hn::Set(d, 1e-3f);
  constexpr int kChains = 10;
  V sum[kChains];
  HYSPARSE_UNROLL
  for (int i = 0; i < kChains; ++i) sum[i] = hn::Set(d, 0.1f + 0.01f * static_cast<float>(i));
  for (int64_t round = 0; round < rounds; ++round) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(sum[i], factor, term);
  }
  HYSPARSE_UNROLL
  for (int i = 1; i < kChains; ++i) sum[0] = hn::Add(sum[0], sum[i]);
  *sink += hn::GetLane(hn::SumOfLanes(d, sum[0]));
  return double(kChains) * double(kLanes) * double(rounds);
}

void FillGemm(Kernels& k) {
  k.gemm = &Gemm;
  k.multiply_adds = &MultiplyAdds;
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::attn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::attn {

HWY_EXPORT(FillGemm);
void fill_gemm(Kernels& k) {
  HWY_DYNAMIC_DISPATCH(FillGemm)(k);
}

}  // namespace hysparse::attn
#endif
