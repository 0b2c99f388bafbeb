// The inner loops of the attention operations, compiled once a SIMD level (attn_gemm.cpp, attn_rows.cpp,
// attn_gates.cpp). Everything around them (which keys, which rows, in which order) is ordinary code compiled
// once.
//
// Tiles live in scratch as f32 whatever T is. Their rows are padded with zeros to a multiple of kPad floats,
// so that no kernel needs a tail.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace hysparse::attn {

inline constexpr int kPad = 16;      // floats; every vector length in use divides it
inline constexpr int kKeyTile = 64;  // keys of a usual tile

constexpr int64_t padded(int64_t n) {
  return (n + kPad - 1) / kPad * kPad;
}

// Rows of a tile, all of them or those named by `index`.
struct TileRows {
  float* base = nullptr;
  ptrdiff_t ld = 0;  // floats between rows
  const int32_t* index = nullptr;

  float* row(int i) const { return base + (index ? ptrdiff_t(index[i]) : ptrdiff_t(i)) * ld; }
};

// One step of the online softmax over a tile of scores, in the log2 domain. Row i of `s` belongs to the
// running state of row(i) = index ? index[i] : i.
struct SoftmaxTile {
  int rows = 0, keys = 0;
  float* s = nullptr;  // [rows, ld] scores in, exp2(score - running maximum) out, 0 where masked
  ptrdiff_t ld = kKeyTile;
  const int32_t* lo = nullptr;  // [rows] keys lo <= key < hi are visible; null: all
  const int32_t* hi = nullptr;
  const int32_t* index = nullptr;
  float* row_max = nullptr;  // running maximum, -inf at first
  float* row_sum = nullptr;  // running sum of exp2(score - maximum), 0 at first
  TileRows o;                // running output, rescaled when the maximum moves (addressed by i)
  int o_width = 0;           // floats, padded
  // Raw maxima of pieces of the tile, for block scores: piece p covers keys [piece[p], piece[p + 1]);
  // piece_max row r gets max(old, new). No pieces: null.
  int pieces = 0;
  const int32_t* piece = nullptr;
  TileRows piece_max;
};

// Probabilities and score gradients of a tile: p = exp2(s - lse2), ds = p (dp - delta), both 0 where masked.
struct SoftmaxGradTile {
  int rows = 0, keys = 0;
  float* s = nullptr;   // [rows, ld] scores in, p out
  float* dp = nullptr;  // [rows, ld] d_o . v in, ds out
  ptrdiff_t ld = kKeyTile;
  const int32_t* lo = nullptr;
  const int32_t* hi = nullptr;
  const int32_t* index = nullptr;
  const float* lse2 = nullptr;   // log2 domain; +inf makes the whole row 0
  const float* delta = nullptr;  // o . d_o
};

// Rows that will be read next, fetched towards the L2 cache a line at a time while products are computed.
// Each product goes on where the one before stopped.
struct Ahead {
  const char* line = nullptr;        // next line of the current row
  int left = 0;                      // lines of it that are left
  int lines = 0;                     // lines of a row
  const void* const* row = nullptr;  // rows to come
  const void* const* end = nullptr;
};

struct Kernels {
  // c row i, columns [0, n) (+)= sum over k < depth of a.row(i)[k * a_step] * b[k * ldb + column].
  // n is a multiple of kPad. The sum over k is sequential, so a row does not depend on the others.
  void (*gemm)(int m, int n, int depth, TileRows a, ptrdiff_t a_step, const float* b, ptrdiff_t ldb,
               TileRows c, bool accumulate, Ahead* ahead);

  // For few rows, straight from rows of f32, bf16 or codes: c row i += sum over j < n of p.row(i)[j] *
  // rows[j], in the order of gemm. The width is a multiple of direct_unit.
  void (*add_direct)(int m, int n, int width, TileRows p, const void* const* rows, DType type, TileRows c,
                     Ahead* ahead);
  int direct_unit;

  // Rows of f32, bf16 or codes (i8, f8: without their scales).
  // dst [n, ld] f32 = factor * rows; columns from width to ld are zeroed.
  void (*load_rows)(const void* const* rows, DType type, int n, int width, float factor, float* dst,
                    ptrdiff_t ld);
  // dst [width, ld] f32: column j is row j; columns from n to padded(n) are zeroed.
  void (*load_transposed)(const void* const* rows, DType type, int n, int width, float* dst, ptrdiff_t ld);
  // s row i, columns [0, padded(n)) *= factor[column]: the scales of codes, at scores or probabilities.
  void (*scale_columns)(int rows, int n, const float* factor, float* s, ptrdiff_t ld);
  // rows[i][0..width) = factor[i] * src row i, rounded to T.
  void (*store_rows)(const float* src, ptrdiff_t ld, const float* factor, int n, int width, bool bf16,
                     void* const* rows);
  // rows[i][0..width) += factor * src row i.
  void (*add_rows)(const float* src, ptrdiff_t ld, float factor, int n, int width, float* const* rows);
  // out[i] = a[i] . b[i]
  void (*dot_rows)(const void* const* a, const void* const* b, bool bf16, int n, int width, float* out);

  void (*softmax)(const SoftmaxTile&);
  // Adds the softmax state of later keys to that of earlier ones: sums and outputs [rows, width] of
  // exp2(score
  // - maximum). A maximum of -inf is a row that saw nothing.
  void (*merge)(int rows, int width, const float* row_max, const float* row_sum, const float* o,
                float* to_max, float* to_sum, float* to_o);
  void (*softmax_grad)(const SoftmaxGradTile&);
  // out[j] = ln 2 * max over r < heads of ((raw[r * ld + j] - maximum[r]) - log2_sum[r]); n padded.
  void (*group_scores)(const float* raw, ptrdiff_t ld, const float* maximum, const float* log2_sum, int heads,
                       int64_t n, float* out);

  // One head of a gated sum, out = sig(ga) a (+ sig(gb) b); b may be null. A gate is one number, or with
  // `channel` one a column.
  void (*gated)(const void* a, const float* ga, const void* b, const float* gb, bool a_channel,
                bool b_channel, bool bf16, int width, void* out);
  // Gradient of one branch x of it: dx = d sig(g), dg = d x sig'(g), summed over the columns unless
  // `channel`. dx may be d.
  void (*gated_grad)(const void* x, const float* g, bool channel, bool bf16, int width, const void* d,
                     void* dx, float* dg);

  // Multiply-adds in registers only, for measuring the ceiling; returns how many were done.
  double (*multiply_adds)(int64_t rounds, float* sink);
};

// The kernels of the dispatch level in use.
Kernels kernels();

void fill_direct(Kernels&);  // attn_direct.cpp
void fill_gemm(Kernels&);    // attn_gemm.cpp
void fill_rows(Kernels&);    // attn_rows.cpp
void fill_gates(Kernels&);   // attn_gates.cpp

}  // namespace hysparse::attn
