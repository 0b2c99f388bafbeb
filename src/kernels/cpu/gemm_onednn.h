// Blocks of a product through oneDNN, on the calling thread alone.
#pragma once

#include "kernels/cpu/gemm_kernels.h"

namespace hysparse::gemm {

// Built with oneDNN, and its threading runtime can be held to one thread.
bool onednn_available();
// This CPU multiplies bf16 with AMX tiles.
bool cpu_has_amx_bf16();

// c [m, n] f32, rows `ldc` apart, (+)= a [m, k] b [k, n]; a and b of one dtype. Primitives are cached by
// shape: callers keep to few shapes.
void onednn_multiply(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool accumulate);

}  // namespace hysparse::gemm
