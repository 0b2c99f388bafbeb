// Numbers in 8 bits: weights, and the rows of a KV cache. Of weights an element is value * scale. As integers
// (i8), groups of kQuantGroup neighbours of a row share a scale, symmetric about 0. As f8, which has
// exponents of its own, a row has one scale: a product can be made of the values alone and scaled in the end.
#pragma once

#include <cstdint>

#include "kernels/weight.h"

namespace hysparse {

// Scales of a row of `in` elements.
constexpr int64_t quant_groups(int64_t in) {
  return (in + kQuantGroup - 1) / kQuantGroup;
}

// rows [rows, in] to value [rows, in] and scales [rows, quant_groups(in)]: scale = largest magnitude of the
// group / 127, value = nearest integer of element / scale, so that an element is off by at most scale / 2.
// False where an element is not finite: what is written is meaningless then.
bool quantise_rows(const float* src, int64_t rows, int64_t in, int8_t* value, float* scales);

// The same for f8: scales [rows], scale = largest magnitude of the row / 448, so that an element is off by at
// most 1 / 16 of itself, or scale / 1024 where that is more.
bool quantise_rows_f8(const float* src, int64_t rows, int64_t in, f8* value, float* scales);

// What QuantiseKv (kernels/ops.h) makes of one row of n elements: n codes of `code` (i8 or f8) and the scale.
void quantise_kv_row(const float* x, int64_t n, DType code, void* codes, bf16* scale);

// Row `row` of a weight in f8 in f32.
void widen_f8(const Weight& weight, int64_t row, float* dst);

// Row `row` of a weight [out, in] in f64, whatever it is kept in (f64, f32, bf16, i8 or f8).
void widen_row(const Weight& weight, int64_t row, double* dst);

}  // namespace hysparse
