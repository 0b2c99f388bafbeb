// The bf16 kernels for CPUs with AVX512-BF16 (vdpbf16ps: products of pairs, summed in f32). Highway 1.0 has
// no level for it, so the intrinsics stand here, each function under its own target attribute: nothing else
// of the binary may use them.
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/unroll.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's own AVX-512 headers, once inlined
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define HYSPARSE_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define HYSPARSE_BF16_INLINE HYSPARSE_BF16_TARGET __attribute__((always_inline)) inline

namespace hysparse::gemm {
namespace {

constexpr int kRows = 12;  // register tile: 12 x 2 vectors
constexpr int kCols = 32;
static_assert(kBlockRows % kRows == 0 && kBlockCols % kCols == 0);

HYSPARSE_BF16_INLINE __m512bh as_pairs(__m512i v) {
  return reinterpret_cast<__m512bh>(v);
}
HYSPARSE_BF16_INLINE __m512 multiply_add(__m512 acc, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(acc, as_pairs(a), as_pairs(b));
}

// ---- packing: panels of `width` rows of pairs, dst[panel][k / 2][width]; what is missing is 0

// Pair i of a k-contiguous row that ends at element k.
HYSPARSE_BF16_INLINE uint32_t pair_of(const uint16_t* row, int64_t i, int64_t k) {
  const uint32_t high = 2 * i + 1 < k ? row[2 * i + 1] : 0;
  return high << 16 | row[2 * i];
}

// Rows are k-contiguous: 4 x 4 transposes of pairs, a cache line of k at a time.
HYSPARSE_BF16_TARGET void pack_transposed(const uint16_t* src, int64_t stride, int64_t rows, int64_t k,
                                          int64_t width, uint32_t* dst) {
  constexpr int64_t kLine = 16;
  const int64_t pairs = (k + 1) / 2, whole = k / 2, step = width / 4;
  for (int64_t i0 = 0; i0 < pairs; i0 += kLine) {
    const int64_t i1 = std::min(pairs, i0 + kLine);
    for (int64_t r = 0; r < width; r += 4) {
      const int64_t have = std::clamp<int64_t>(rows - r, 0, 4);
      const uint16_t* s = src + r * stride;
      int64_t i = i0;
      if (have == 4) {
        for (; i + 4 <= std::min(i1, whole); i += 4) {
          const __m128i r0 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 2 * i));
          const __m128i r1 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + stride + 2 * i));
          const __m128i r2 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 2 * stride + 2 * i));
          const __m128i r3 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 3 * stride + 2 * i));
          const __m128i a = _mm_unpacklo_epi32(r0, r1), b = _mm_unpacklo_epi32(r2, r3);
          const __m128i c = _mm_unpackhi_epi32(r0, r1), d = _mm_unpackhi_epi32(r2, r3);
          __m128i* out = reinterpret_cast<__m128i*>(dst + i * width + r);
          _mm_storeu_si128(out, _mm_unpacklo_epi64(a, b));
          _mm_storeu_si128(out + step, _mm_unpackhi_epi64(a, b));
          _mm_storeu_si128(out + 2 * step, _mm_unpacklo_epi64(c, d));
          _mm_storeu_si128(out + 3 * step, _mm_unpackhi_epi64(c, d));
        }
      }
      for (; i < i1; ++i)
        for (int64_t j = 0; j < 4; ++j) dst[i * width + r + j] = j < have ? pair_of(s + j * stride, i, k) : 0;
    }
  }
}

// Pair of neighbouring k for `have` rows into one panel row.
HYSPARSE_BF16_INLINE void interleave(const uint16_t* even, const uint16_t* odd, int64_t have, int64_t width,
                                     uint32_t* out) {
  int64_t r = 0;
  for (; r + 16 <= have; r += 16) {
    const __m256i e = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + r));
    const __m256i o = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + r));
    _mm512_storeu_si512(
        out + r, _mm512_or_si512(_mm512_cvtepu16_epi32(e), _mm512_slli_epi32(_mm512_cvtepu16_epi32(o), 16)));
  }
  for (; r + 4 <= have; r += 4) {
    const __m128i e = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(even + r));
    const __m128i o = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(odd + r));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + r), _mm_unpacklo_epi16(e, o));
  }
  for (; r < have; ++r) out[r] = uint32_t(odd[r]) << 16 | even[r];
  for (; r < width; ++r) out[r] = 0;
}

// Row index is contiguous: neighbouring k are interleaved. A few k at a time, so that both sides stay local:
// the panels lie a multiple of 4 KiB apart, and touching all of them at every k would fall on the same cache
// sets.
HYSPARSE_BF16_TARGET void pack_interleaved(const uint16_t* src, int64_t stride, int64_t rows, int64_t k,
                                           int64_t width, uint32_t* dst) {
  constexpr int64_t kRun = 16;
  const int64_t pairs = (k + 1) / 2, whole = k / 2;
  for (int64_t i0 = 0; i0 < pairs; i0 += kRun) {
    const int64_t i1 = std::min(pairs, i0 + kRun);
    for (int64_t r0 = 0; r0 < rows; r0 += width) {
      const int64_t have = std::min(width, rows - r0);
      uint32_t* panel = dst + r0 * pairs;
      for (int64_t i = i0; i < std::min(i1, whole); ++i) {
        const uint16_t *even = src + 2 * i * stride + r0, *odd = even + stride;
        if (i + kRun < whole) {
          _mm_prefetch(even + 2 * kRun * stride, _MM_HINT_T0);
          _mm_prefetch(odd + 2 * kRun * stride, _MM_HINT_T0);
        }
        interleave(even, odd, have, width, panel + i * width);
      }
      for (int64_t i = std::max(i0, whole); i < i1; ++i)  // an odd k ends on half a pair
        for (int64_t r = 0; r < width; ++r)
          panel[i * width + r] = r < have ? src[2 * i * stride + r0 + r] : 0;
    }
  }
}

// Element (r, i) of the packed side lies at data[r * along + i * depth].
void pack(const void* data, int64_t along, int64_t depth, int64_t rows, int64_t k, int64_t width,
          uint32_t* dst) {
  const uint16_t* src = static_cast<const uint16_t*>(data);
  if (depth != 1) return pack_interleaved(src, depth, rows, k, width, dst);
  for (int64_t r = 0; r < rows; r += width, dst += width * ((k + 1) / 2))
    pack_transposed(src + r * along, along, std::min(width, rows - r), k, width, dst);
}

// Part `part` of `parts` of the lines of a [rows, columns].
void prefetch(const Matrix& a, int64_t rows, int64_t columns, int64_t part, int64_t parts) {
  const int64_t bytes = columns * 2;
  const int64_t begin = bytes * part / parts / 64 * 64, end = bytes * (part + 1) / parts / 64 * 64;
  for (int64_t r = 0; r < rows; ++r) {
    const char* p = static_cast<const char*>(a.block(r, 0).data);
    for (int64_t i = begin; i < end; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
  }
}

HYSPARSE_BF16_TARGET void register_tile(const uint32_t* a, const uint32_t* b, int64_t pairs, int64_t rows,
                                        int64_t cols, float* c, int64_t ldc, bool accumulate) {
  __m512 acc[kRows][2];
  HYSPARSE_UNROLL
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < pairs; ++i, a += kRows, b += kCols) {
    const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 16);
    HYSPARSE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m512i ar = _mm512_set1_epi32(static_cast<int>(a[r]));
      acc[r][0] = multiply_add(acc[r][0], ar, b0);
      acc[r][1] = multiply_add(acc[r][1], ar, b1);
    }
  }
  const auto mask_of = [](int64_t n) {
    return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1);
  };
  const __mmask16 m0 = mask_of(cols), m1 = mask_of(cols - 16);
  HYSPARSE_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float* row = c + r * ldc;
    if (accumulate) {
      acc[r][0] = _mm512_add_ps(acc[r][0], _mm512_maskz_loadu_ps(m0, row));
      acc[r][1] = _mm512_add_ps(acc[r][1], _mm512_maskz_loadu_ps(m1, row + 16));
    }
    _mm512_mask_storeu_ps(row, m0, acc[r][0]);
    _mm512_mask_storeu_ps(row + 16, m1, acc[r][1]);
  }
}

// ---- panels of weights (gemm_panels.h)

// M rows of x, pairs of bf16, against a block.
template <int M, bool kFetch>
HYSPARSE_BF16_TARGET void panel_rows(const uint16_t* x, const PanelBlock& p, float* total) {
  static_assert(kPanelCols == 32);
  const auto* b = static_cast<const uint32_t*>(p.b);
  __m512 sum[M][2];
  HYSPARSE_UNROLL
  for (int r = 0; r < M; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < p.depth; i += 2, b += kPanelCols) {
    if constexpr (kFetch) {
      _mm_prefetch(reinterpret_cast<const char*>(b) + p.ahead, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b) + p.ahead + 64, _MM_HINT_T0);
    }
    const __m512i b0 = _mm512_loadu_si512(b), b1 = _mm512_loadu_si512(b + 16);
    HYSPARSE_UNROLL
    for (int r = 0; r < M; ++r) {
      int pair;
      std::memcpy(&pair, x + r * kPanelDepth + i, sizeof pair);
      const __m512i xr = _mm512_set1_epi32(pair);
      sum[r][0] = multiply_add(sum[r][0], xr, b0);
      sum[r][1] = multiply_add(sum[r][1], xr, b1);
    }
  }
  HYSPARSE_UNROLL
  for (int r = 0; r < M; ++r) {
    float* t = total + r * kPanelCols;
    if (p.add) {
      sum[r][0] = _mm512_add_ps(_mm512_loadu_ps(t), sum[r][0]);
      sum[r][1] = _mm512_add_ps(_mm512_loadu_ps(t + 16), sum[r][1]);
    }
    _mm512_storeu_ps(t, sum[r][0]);
    _mm512_storeu_ps(t + 16, sum[r][1]);
  }
}

template <bool kFetch>
void panel_rows_of(int64_t count, const uint16_t* x, const PanelBlock& p, float* total) {
  using Function = void (*)(const uint16_t*, const PanelBlock&, float*);
  static constexpr Function kOf[] = {panel_rows<1, kFetch>,  panel_rows<2, kFetch>,  panel_rows<3, kFetch>,
                                     panel_rows<4, kFetch>,  panel_rows<5, kFetch>,  panel_rows<6, kFetch>,
                                     panel_rows<7, kFetch>,  panel_rows<8, kFetch>,  panel_rows<9, kFetch>,
                                     panel_rows<10, kFetch>, panel_rows<11, kFetch>, panel_rows<12, kFetch>};
  kOf[count - 1](x, p, total);
}

}  // namespace

bool use_native_bf16() {
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return has && !cpu_dispatch_forced();
}

void pack_block_bf16(const Matrix& b, int64_t n, int64_t k, void* panels) {
  pack(b.data, b.col, b.row, n, k, kCols, static_cast<uint32_t*>(panels));
}

void multiply_block_bf16(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                         int64_t ldc, bool accumulate, void* workspace) {
  const uint32_t* bs = static_cast<const uint32_t*>(b_panels);
  uint32_t* as = static_cast<uint32_t*>(workspace);
  const int64_t pairs = (k + 1) / 2;
  // Rows that are k-contiguous are packed a panel at a time, and the next panel's lines fetched meanwhile.
  const bool by_panel = a.col == 1;
  if (!by_panel) pack(a.data, a.row, a.col, m, k, kRows, as);
  for (int64_t i = 0; i < m; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, m - i);
    if (by_panel) pack(a.block(i, 0).data, a.row, 1, rows, k, kRows, as);
    const uint32_t* panel = by_panel ? as : as + i * pairs;
    const int64_t next = by_panel ? std::clamp<int64_t>(m - i - kRows, 0, kRows) : 0;
    for (int64_t j = 0; j < n; j += kCols) {
      prefetch(a.block(i + kRows, 0), next, k, j / kCols, (n + kCols - 1) / kCols);
      register_tile(panel, bs + j * pairs, pairs, rows, std::min<int64_t>(kCols, n - j), c + i * ldc + j, ldc,
                    accumulate);
    }
  }
}

void multiply_panel_bf16(const PanelBlock& all) {
  for (int64_t k = 0; k < all.depth; k += kPanelDepth) {
    const PanelBlock p = all.block(k, sizeof(uint16_t));
    const auto* x = static_cast<const uint16_t*>(p.x);
    for (int64_t r = 0; r < p.rows;) {  // groups of nearly equal size
      const int64_t groups = (p.rows - r + kRows - 1) / kRows;
      const int64_t count = (p.rows - r + groups - 1) / groups;
      if (p.ahead != 0 && r == 0)
        panel_rows_of<true>(count, x, p, p.total);
      else
        panel_rows_of<false>(count, x + r * kPanelDepth, p, p.total + r * kPanelCols);
      r += count;
    }
  }
}

}  // namespace hysparse::gemm

#else

namespace hysparse::gemm {

bool use_native_bf16() {
  return false;
}
void pack_block_bf16(const Matrix& b, int64_t n, int64_t k, void* panels) {
  pack_block(b, n, k, panels);
}
void multiply_block_bf16(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                         int64_t ldc, bool accumulate, void* a_panels) {
  multiply_block(a, b_panels, m, n, k, c, ldc, accumulate, a_panels);
}
void multiply_panel_bf16(const PanelBlock& p) {
  multiply_panel(p);
}

}  // namespace hysparse::gemm

#endif
