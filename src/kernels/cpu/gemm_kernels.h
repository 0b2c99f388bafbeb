// Single-threaded matrix kernels that the products are built of, one copy a SIMD level. Shapes are small
// enough for one core's caches; gemm.h cuts the work.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace hysparse::gemm {

// A matrix read through strides: element (r, c) lies at data[r * row + c * col]. One of the strides is 1.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32 or bf16
  int64_t row = 0, col = 0;

  Matrix block(int64_t r, int64_t c) const {
    Matrix m = *this;
    m.data = static_cast<const char*>(data) + (r * row + c * col) * static_cast<int64_t>(size_of(dtype));
    return m;
  }
};

// Where a product goes: y [m, n] (+)= product (+ bias).
struct Output {
  void* data = nullptr;
  DType dtype = DType::f32;  // f32 or bf16
  int64_t row = 0;           // elements between rows
  bool accumulate = false;
  const void* bias = nullptr;  // [n] or null
  DType bias_dtype = DType::f32;

  Output block(int64_t r, int64_t c) const {
    Output o = *this;
    o.data = static_cast<char*>(data) + (r * row + c) * static_cast<int64_t>(size_of(dtype));
    if (bias) o.bias = static_cast<const char*>(bias) + c * static_cast<int64_t>(size_of(bias_dtype));
    return o;
  }
};

// The largest block that one core works on: an a of kRows x kDepth words, a b of kDepth words x kCols. A word
// is an f32, or a pair of bf16 that are neighbours in k (multiply_block_bf16).
inline constexpr int64_t kBlockRows = 384, kBlockCols = 256, kBlockDepth = 256;
inline constexpr int64_t kPanelsA = kBlockRows * kBlockDepth * 4,
                         kPanelsB = kBlockCols * kBlockDepth * 4;  // bytes

// Packs b [k, n] into panels, 64-byte aligned, kPanelsB bytes; bf16 is widened.
void pack_block(const Matrix& b, int64_t n, int64_t k, void* panels);
// c [m, n] f32, rows `ldc` apart, (+)= a [m, k] b, b packed; accumulated in f32. An element of c is summed in
// the same order whatever m and n are. a_panels: kPanelsA bytes of workspace.
void multiply_block(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                    int64_t ldc, bool accumulate, void* a_panels);

// dst [n] f32 or bf16 = value * scale of its group.
void dequantise_row(const int8_t* value, const float* scales, int64_t n, DType dtype, void* dst);

// How far ahead of its use a stream of weights is fetched: bytes. (Beyond the end of a weight lies what is
// read next, if weights lie in the order of their use.)
inline constexpr int64_t kFetchAhead = 8192;

// y [m, n] = tile (+ bias) (+ y): the end of a product whose tile was not written in place.
void store_tile(const float* tile, int64_t ld, int64_t m, int64_t n, const Output& y);

// The same for two bf16 operands on CPUs with AVX512-BF16: twice the depth in one block. use_native_bf16()
// says whether they may run now.
bool use_native_bf16();
void pack_block_bf16(const Matrix& b, int64_t n, int64_t k, void* panels);
void multiply_block_bf16(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                         int64_t ldc, bool accumulate, void* a_panels);

}  // namespace hysparse::gemm
