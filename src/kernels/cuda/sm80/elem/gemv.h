#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/view.cuh"

namespace hysparse::cuda {

inline constexpr int kMostGemvRows = 4;  // beyond, cuBLASLt is as fast

// Whether gemv() does the product c = a b: bf16, few rows, b_transposed.
bool gemv_takes(const View& a, bool a_transposed, const View& b, bool b_transposed, const View& c);
void gemv(const View& a, const View& w, const View& c, bool accumulate, cudaStream_t stream);

}  // namespace hysparse::cuda
