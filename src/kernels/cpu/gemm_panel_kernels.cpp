// The kernels of gemm_panels.h for every SIMD level.
#include "kernels/cpu/gemm_panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_panel_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/cpu/gemm_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kCols = static_cast<int>(kPanelCols), kWidth = static_cast<int>(kLanes);

// Rows of x that meet a block at a time, and the vectors of columns that they meet it in: sums that fill the
// registers, and enough of them for one row to hide the latency of a sum.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
constexpr int kMostRows = 12;
#else
constexpr int kMostRows = 6;
#endif
template <int M>
constexpr int kVectors = HWY_MIN(kCols / kWidth, M == 1   ? 8
                                                 : M <= 3 ? 4
                                                          : 2);

template <class W>
constexpr int64_t kStepBytes = kPanelCols*(sizeof(W) == 1 ? 1 : 4);  // of a step along k

// Lines of what comes next that a pass over a block fetches: every pass its share.
template <int N, class W>
HWY_INLINE void FetchAhead(const char* at, int pass, int64_t step) {
  constexpr int kPasses = kCols / (N * kWidth);
  if constexpr (sizeof(W) == 1) {
    if (pass == 0 && step % 2 == 0) hwy::Prefetch(at);
  } else {
    if (pass < 2) hwy::Prefetch(at + 64 * pass);
    if constexpr (kPasses == 1) hwy::Prefetch(at + 64);
  }
}

template <int M, int N>
using Sums = V[M][N];

template <int M, int N>
HWY_INLINE void Clear(Sums<M, N>& sum) {
  HYSPARSE_UNROLL
  for (int r = 0; r < M; ++r) {
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v) sum[r][v] = hn::Zero(D());
  }
}
// sum[r] += x[r] * b for one k of all rows.
template <int M, int N>
HWY_INLINE void Step(const float* HWY_RESTRICT x, const V (&b)[N], Sums<M, N>& sum) {
  HYSPARSE_UNROLL
  for (int r = 0; r < M; ++r) {
    const V xr = hn::Set(D(), x[r * kPanelDepth]);
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v) sum[r][v] = hn::MulAdd(xr, b[v], sum[r][v]);
  }
}

// ---- along k: b is at the first column of the pass

template <int M, int N, bool kFetch>
HWY_INLINE void Along(const float* HWY_RESTRICT x, const float* HWY_RESTRICT b, int64_t depth, int pass,
                      const char* next, Sums<M, N>& sum) {
  const D d;
  for (int64_t i = 0; i < depth; ++i, ++x, b += kCols) {
    if constexpr (kFetch) FetchAhead<N, float>(next + i * kStepBytes<float>, pass, i);
    V bv[N];
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v) bv[v] = hn::LoadU(d, b + v * kWidth);
    Step<M, N>(x, bv, sum);
  }
}

template <int M, int N, bool kFetch>
HWY_INLINE void Along(const float* HWY_RESTRICT x, const bf16* HWY_RESTRICT pairs, int64_t depth, int pass,
                      const char* next, Sums<M, N>& sum) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto* b = reinterpret_cast<const uint32_t*>(pairs);
  for (int64_t i = 0; i < depth; i += 2, x += 2, b += kCols) {
    if constexpr (kFetch) FetchAhead<N, bf16>(next + i / 2 * kStepBytes<bf16>, pass, i);
    V bv[N];
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v) bv[v] = hn::BitCast(d, hn::ShiftLeft<16>(hn::LoadU(du, b + v * kWidth)));
    Step<M, N>(x, bv, sum);
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v)
      bv[v] = hn::BitCast(d, hn::And(hn::LoadU(du, b + v * kWidth), hn::Set(du, 0xffff0000u)));
    Step<M, N>(x + 1, bv, sum);
  }
}

template <int N>
HWY_INLINE void Widen(const int8_t* HWY_RESTRICT b, V (&bv)[N]) {
  const D d;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<int8_t, D> di8;
  HYSPARSE_UNROLL
  for (int v = 0; v < N; ++v) bv[v] = hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(di8, b + v * kWidth)));
}
template <int M, int N, bool kFetch>
HWY_INLINE void Along(const float* HWY_RESTRICT x, const int8_t* HWY_RESTRICT b, int64_t depth, int pass,
                      const char* next, Sums<M, N>& sum) {
  for (int64_t i = 0; i < depth; ++i, ++x, b += kCols) {
    if constexpr (kFetch) FetchAhead<N, int8_t>(next + i * kStepBytes<int8_t>, pass, i);
    V bv[N];
    Widen<N>(b, bv);
    Step<M, N>(x, bv, sum);
  }
}

// ---- the end of a block

template <int M, int N>
HWY_INLINE void Finish(const Sums<M, N>& sum, float* HWY_RESTRICT total, bool add) {
  const D d;
  HYSPARSE_UNROLL
  for (int r = 0; r < M; ++r) {
    HYSPARSE_UNROLL
    for (int v = 0; v < N; ++v) {
      float* t = total + r * kCols + v * kWidth;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, t), sum[r][v]) : sum[r][v], d, t);
    }
  }
}
template <int M, int N>
HWY_INLINE void FinishScaled(const Sums<M, N>& sum, const float* HWY_RESTRICT scales,
                             float* HWY_RESTRICT total, bool add) {
  const D d;
  HYSPARSE_UNROLL
  for (int v = 0; v < N; ++v) {
    const V scale = hn::LoadU(d, scales + v * kWidth);
    HYSPARSE_UNROLL
    for (int r = 0; r < M; ++r) {
      float* t = total + r * kCols + v * kWidth;
      hn::StoreU(hn::MulAdd(sum[r][v], scale, add ? hn::LoadU(d, t) : hn::Zero(d)), d, t);
    }
  }
}

// M rows against a block.
template <class W, int M, bool kFetch>
void Rows(const float* x, const PanelBlock& p, float* total) {
  constexpr int N = kVectors<M>;
  constexpr int64_t kStep = sizeof(W) == 1 ? 1 : 4 / int64_t(sizeof(W));  // elements of a column in a step
  const char* next = static_cast<const char*>(p.b) + p.ahead;
  for (int pass = 0; pass * N * kWidth < kCols; ++pass) {
    const int c = pass * N * kWidth;
    const W* b = static_cast<const W*>(p.b) + c * kStep;
    Sums<M, N> sum;
    if constexpr (sizeof(W) == 1) {
      bool add = p.add;
      int64_t k = 0;
      if constexpr (M == 1) {
        // Two groups at a time: the sums of one are too few to hide their latency.
        for (; k + 2 * kQuantGroup <= p.depth; k += 2 * kQuantGroup, add = true) {
          Sums<M, N> other;
          Clear<M, N>(sum);
          Clear<M, N>(other);
          for (int64_t i = k; i < k + kQuantGroup; ++i) {
            if (kFetch && pass == 0) hwy::Prefetch(next + (2 * i - k) * kCols);
            V bv[N];
            Widen<N>(b + i * kCols, bv);
            Step<M, N>(x + i, bv, sum);
            Widen<N>(b + (i + kQuantGroup) * kCols, bv);
            Step<M, N>(x + i + kQuantGroup, bv, other);
          }
          const float* scales = p.scales + k / kQuantGroup * kCols + c;
          FinishScaled<M, N>(sum, scales, total + c, add);
          FinishScaled<M, N>(other, scales + kCols, total + c, true);
        }
      }
      for (; k < p.depth; k += kQuantGroup, add = true) {
        Clear<M, N>(sum);
        Along<M, N, kFetch>(x + k, b + k * kCols, std::min(kQuantGroup, p.depth - k), pass, next + k * kCols,
                            sum);
        FinishScaled<M, N>(sum, p.scales + k / kQuantGroup * kCols + c, total + c, add);
      }
    } else {
      Clear<M, N>(sum);
      Along<M, N, kFetch>(x, b, p.depth, pass, next, sum);
      Finish<M, N>(sum, total + c, p.add);
    }
  }
}

template <class W, bool kFetch>
void RowsOf(int64_t count, const float* x, const PanelBlock& p, float* total) {
  switch (count) {
#define HYSPARSE_ROWS(M)                                                  \
  case M:                                                                 \
    if constexpr (M <= kMostRows) return Rows<W, M, kFetch>(x, p, total); \
    break
    HYSPARSE_ROWS(1);
    HYSPARSE_ROWS(2);
    HYSPARSE_ROWS(3);
    HYSPARSE_ROWS(4);
    HYSPARSE_ROWS(5);
    HYSPARSE_ROWS(6);
    HYSPARSE_ROWS(7);
    HYSPARSE_ROWS(8);
    HYSPARSE_ROWS(9);
    HYSPARSE_ROWS(10);
    HYSPARSE_ROWS(11);
    HYSPARSE_ROWS(12);
#undef HYSPARSE_ROWS
    default:
      break;
  }
}

template <class W>
void MultiplyPanelT(const PanelBlock& all) {
  for (int64_t k = 0; k < all.depth; k += kPanelDepth) {
    const PanelBlock p = all.block(k, sizeof(float));
    const float* x = static_cast<const float*>(p.x);
    for (int64_t r = 0; r < p.rows;) {  // groups of nearly equal size
      const int64_t groups = (p.rows - r + kMostRows - 1) / kMostRows;
      const int64_t count = (p.rows - r + groups - 1) / groups;
      if (p.ahead != 0 && r == 0)
        RowsOf<W, true>(count, x, p, p.total);
      else
        RowsOf<W, false>(count, x + r * kPanelDepth, p, p.total + r * kCols);
      r += count;
    }
  }
}
void MultiplyPanel(const PanelBlock& p) {
  if (p.dtype == DType::f32) return MultiplyPanelT<float>(p);
  if (p.dtype == DType::bf16) return MultiplyPanelT<bf16>(p);
  MultiplyPanelT<int8_t>(p);
}

// ---- packing

// Words of 32 bits: word i of row r to dst[i][r]. Rows may begin anywhere.
HWY_INLINE void PackWords(const char* src, int64_t row_bytes, int64_t rows, int64_t words, uint32_t* dst) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  const D4 d;
  const hn::Repartition<double, D4> dd;
  const hn::Repartition<uint8_t, D4> d8;
  const auto load = [&](const char* p) HWY_ATTR {
    return hn::BitCast(d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
  };
  const auto store = [&](hn::Vec<decltype(dd)> v, uint32_t* p)
                         HWY_ATTR { hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<float*>(p)); };
  for (; r + 4 <= rows; r += 4) {
    const char* s = src + r * row_bytes;
    int64_t i = 0;
    for (; i + 4 <= words; i += 4) {
      const auto r0 = load(s + 4 * i), r1 = load(s + row_bytes + 4 * i);
      const auto r2 = load(s + 2 * row_bytes + 4 * i), r3 = load(s + 3 * row_bytes + 4 * i);
      const auto a = hn::BitCast(dd, hn::InterleaveLower(d, r0, r1));
      const auto b = hn::BitCast(dd, hn::InterleaveLower(d, r2, r3));
      const auto e = hn::BitCast(dd, hn::InterleaveUpper(d, r0, r1));
      const auto f = hn::BitCast(dd, hn::InterleaveUpper(d, r2, r3));
      uint32_t* out = dst + i * kCols + r;
      store(hn::InterleaveLower(dd, a, b), out);
      store(hn::InterleaveUpper(dd, a, b), out + kCols);
      store(hn::InterleaveLower(dd, e, f), out + 2 * kCols);
      store(hn::InterleaveUpper(dd, e, f), out + 3 * kCols);
    }
    for (; i < words; ++i)
      for (int64_t j = 0; j < 4; ++j) std::memcpy(dst + i * kCols + r + j, s + j * row_bytes + 4 * i, 4);
  }
#endif
  for (; r < rows; ++r)
    for (int64_t i = 0; i < words; ++i) std::memcpy(dst + i * kCols + r, src + r * row_bytes + 4 * i, 4);
  for (; r < kCols; ++r)
    for (int64_t i = 0; i < words; ++i) dst[i * kCols + r] = 0;
}

void PackPanel(const void* w, DType dtype, int64_t row_bytes, int64_t rows, int64_t depth, void* block) {
  const char* src = static_cast<const char*>(w);
  if (dtype == DType::f32) return PackWords(src, row_bytes, rows, depth, static_cast<uint32_t*>(block));
  if (dtype == DType::bf16) {
    uint32_t* dst = static_cast<uint32_t*>(block);
    PackWords(src, row_bytes, rows, depth / 2, dst);
    if (depth % 2 == 0) return;
    dst += depth / 2 * kCols;
    for (int64_t r = 0; r < kCols; ++r) {
      uint16_t last = 0;
      if (r < rows) std::memcpy(&last, src + r * row_bytes + 2 * (depth - 1), 2);
      dst[r] = last;
    }
    return;
  }
  char* dst = static_cast<char*>(block);
  for (int64_t r = 0; r < kCols; ++r)
    for (int64_t i = 0; i < depth; ++i) dst[i * kCols + r] = r < rows ? src[r * row_bytes + i] : '\0';
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::gemm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::gemm {

HWY_EXPORT(MultiplyPanel);
HWY_EXPORT(PackPanel);

void multiply_panel(const PanelBlock& p) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanel)(p);
}
void pack_panel(const void* w, DType dtype, int64_t row_bytes, int64_t rows, int64_t depth, void* block) {
  HWY_DYNAMIC_DISPATCH(PackPanel)(w, dtype, row_bytes, rows, depth, block);
}

}  // namespace hysparse::gemm
#endif
