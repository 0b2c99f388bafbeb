// Weights as 8-bit integers: groups of kQuantGroup neighbours of a row share a scale, symmetric about 0. An
// element is value * scale.
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

// Row `row` of a weight [out, in] in f64, whatever it is kept in (f64, f32, bf16 or i8).
void widen_row(const Weight& weight, int64_t row, double* dst);

}  // namespace hysparse
