// The bf16 kernels for CPUs with AVX512-BF16 (vdpbf16ps: products of pairs, summed in f32). Highway 1.0 has
// no level for it, so the intrinsics stand here, each function under its own target attribute: nothing else
// of the binary may use them.
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_kernels.h"
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
constexpr int kDotRows = 3, kDotColumns = 4;  // of x and of w that meet in one dot product kernel
constexpr int kChains =
    2;  // sums of a product: vector i of k goes to chain i % kChains, whatever m and n are
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

// ---- dot products

// Sums of the lanes of four vectors.
HYSPARSE_BF16_INLINE __m128 sum4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  const __m512 s =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

// The first four or fewer of four neighbours as f32.
HYSPARSE_BF16_INLINE __m128 load_wide(const void* p, DType dtype, int64_t at, __mmask8 mask) {
  if (dtype == DType::f32) return _mm_maskz_loadu_ps(mask, static_cast<const float*>(p) + at);
  const __m128i bits = _mm_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(p) + at);
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bits), 16));
}
// v as elements [c, c + count) of row r, count <= 4.
HYSPARSE_BF16_INLINE void store_sums(__m128 v, int count, const Output& y, int64_t r, int64_t c) {
  const int64_t at = r * y.row + c;
  if (count == 4 && y.dtype == DType::f32 && !y.bias && !y.accumulate)
    return _mm_storeu_ps(static_cast<float*>(y.data) + at, v);
  const auto mask = static_cast<__mmask8>((1u << count) - 1);
  if (y.bias) v = _mm_add_ps(v, load_wide(y.bias, y.bias_dtype, c, mask));
  if (y.accumulate) v = _mm_add_ps(load_wide(y.data, y.dtype, at, mask), v);
  if (y.dtype == DType::f32) return _mm_mask_storeu_ps(static_cast<float*>(y.data) + at, mask, v);
  // To nearest, ties to even; NaN stays NaN; denormals stay (vcvtneps2bf16 would drop them).
  const __m128i bits = _mm_castps_si128(v), high = _mm_srli_epi32(bits, 16);
  const __m128i odd = _mm_and_si128(high, _mm_set1_epi32(1));
  const __m128i rounded = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), odd), 16);
  const __m128i nan = _mm_or_si128(high, _mm_set1_epi32(0x40));
  const __m128i narrow = _mm_mask_mov_epi32(rounded, _mm_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
  uint16_t* p = static_cast<uint16_t*>(y.data) + at;
  const __m128i packed = _mm_cvtepi32_epi16(narrow);
  if (count == 4)
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), packed);
  else
    _mm_mask_storeu_epi16(p, mask, packed);
}

HYSPARSE_BF16_INLINE __m512i load32(const uint16_t* p) {
  return _mm512_loadu_si512(p);
}
HYSPARSE_BF16_INLINE __m512i load32(const uint16_t* p, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, p);
}

// Chain `chain` takes the 32 elements of k at hand of kN rows of w and kM rows of x. `mask` (none: all) are
// the lanes that exist.
template <int kN, int kM, class... Mask>
HYSPARSE_BF16_INLINE void dot_step(const uint16_t* w, int64_t w_stride, const uint16_t* x, int64_t x_stride,
                                   __m512 (&acc)[kM][kN][kChains], int chain, Mask... mask) {
  __m512i xs[kM];
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) xs[j] = load32(x + j * x_stride, mask...);
  HYSPARSE_UNROLL
  for (int i = 0; i < kN; ++i) {
    const __m512i wv = load32(w + i * w_stride, mask...);
    HYSPARSE_UNROLL
    for (int j = 0; j < kM; ++j) acc[j][i][chain] = multiply_add(acc[j][i][chain], wv, xs[j]);
  }
}
// The sums over k of kN rows of w, read from their beginning to their end as memory delivers best, and kM
// rows of x.
template <int kN, int kM>
HYSPARSE_BF16_INLINE void dot_sums(const uint16_t* w, int64_t w_stride, const uint16_t* x, int64_t x_stride,
                                   int64_t k, __m512 (&total)[kM][kN]) {
  constexpr int64_t kStep = 32 * kChains;
  __m512 acc[kM][kN][kChains];
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) {
      HYSPARSE_UNROLL
      for (int u = 0; u < kChains; ++u) acc[j][i][u] = _mm512_setzero_ps();
    }
  }
  int64_t p = 0;
  for (; p + kStep <= k; p += kStep) {
    HYSPARSE_UNROLL
    for (int u = 0; u < kChains; ++u) {
      if constexpr (kN == 1 && kM == 1) _mm_prefetch(w + p + 32 * u + kDotAhead / 2, _MM_HINT_T0);
      dot_step<kN, kM>(w + p + 32 * u, w_stride, x + p + 32 * u, x_stride, acc, u);
    }
  }
  HYSPARSE_UNROLL
  for (int u = 0; u < kChains; ++u) {
    const int64_t left = k - p - 32 * u;
    if (left <= 0) break;
    const auto mask = static_cast<__mmask32>(left >= 32 ? ~0u : (1u << left) - 1);
    dot_step<kN, kM>(w + p + 32 * u, w_stride, x + p + 32 * u, x_stride, acc, u, mask);
  }
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j) {
    HYSPARSE_UNROLL
    for (int i = 0; i < kN; ++i) total[j][i] = _mm512_add_ps(acc[j][i][0], acc[j][i][1]);
  }
}

// One row of x and `count` <= 4 rows of w, one after the other; their sums are taken together. The loop over
// the rows stays one: prefetchers know a stream by the instruction that reads it, and copies of the loop
// would each read pieces of it (1.4 times as slow).
HYSPARSE_BF16_TARGET void dot_one_row(const uint16_t* w, int64_t w_stride, const uint16_t* x, int64_t k,
                                      int count, const Output& y, int64_t c) {
  alignas(64) float lanes[4][16] = {};
  HYSPARSE_NO_UNROLL
  for (int i = 0; i < count; ++i) {
    __m512 total[1][1];
    dot_sums<1, 1>(w + i * w_stride, w_stride, x, 0, k, total);
    _mm512_store_ps(lanes[i], total[0][0]);
  }
  store_sums(sum4(_mm512_load_ps(lanes[0]), _mm512_load_ps(lanes[1]), _mm512_load_ps(lanes[2]),
                  _mm512_load_ps(lanes[3])),
             count, y, 0, c);
}

template <int kN, int kM>
HYSPARSE_BF16_TARGET void dot_store(const uint16_t* w, int64_t w_stride, const uint16_t* x, int64_t x_stride,
                                    int64_t k, const Output& y, int64_t r, int64_t c) {
  __m512 total[kM][kN];
  dot_sums<kN, kM>(w, w_stride, x, x_stride, k, total);
  const __m512 zero = _mm512_setzero_ps();
  HYSPARSE_UNROLL
  for (int j = 0; j < kM; ++j)
    store_sums(sum4(total[j][0], kN > 1 ? total[j][kN / 4] : zero, kN > 1 ? total[j][kN / 2] : zero,
                    kN > 1 ? total[j][kN - 1] : zero),
               kN, y, r + j, c);
}

template <int kN>
void dot_columns(const uint16_t* w, int64_t w_stride, const uint16_t* x, int64_t x_stride, int64_t m,
                 int64_t k, const Output& y, int64_t c) {
  for (int64_t r = 0; r < m;) {
    const int64_t groups = (m - r + kDotRows - 1) / kDotRows;
    const int64_t rows = (m - r + groups - 1) / groups;
    const uint16_t* xr = x + r * x_stride;
    if (rows == 1) dot_store<kN, 1>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 2) dot_store<kN, 2>(w, w_stride, xr, x_stride, k, y, r, c);
    if (rows == 3) dot_store<kN, 3>(w, w_stride, xr, x_stride, k, y, r, c);
    r += rows;
  }
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

void multiply_dot_bf16(const Matrix& x, const Matrix& w, int64_t m, int64_t n, int64_t k, const Output& y) {
  const uint16_t* xs = static_cast<const uint16_t*>(x.data);
  const uint16_t* ws = static_cast<const uint16_t*>(w.data);
  static_assert(kDotColumns == 4);
  int64_t c = 0;
  if (m == 1) {
    for (; c < n; c += 4)
      dot_one_row(ws + c * w.row, w.row, xs, k, static_cast<int>(std::min<int64_t>(4, n - c)), y, c);
    return;
  }
  for (; c + 4 <= n; c += 4) dot_columns<4>(ws + c * w.row, w.row, xs, x.row, m, k, y, c);
  for (; c < n; ++c) dot_columns<1>(ws + c * w.row, w.row, xs, x.row, m, k, y, c);
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
void multiply_dot_bf16(const Matrix& x, const Matrix& w, int64_t m, int64_t n, int64_t k, const Output& y) {
  multiply_dot(x, w, m, n, k, y);
}

}  // namespace hysparse::gemm

#endif
