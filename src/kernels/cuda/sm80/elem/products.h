#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/view.cuh"

namespace hysparse::cuda {

inline constexpr int kMostFewRows = 4;  // beyond, cuBLASLt is as fast

// Whether few_row_products() does y = x w^T: bf16, few rows, 16-byte groups.
bool few_rows_suit(const View& x, const void* w, int64_t w_stride);
cudaError_t few_row_products(const View& x, const hysparse_cuda_product* products, int count, bool constant,
                             cudaStream_t stream);

}  // namespace hysparse::cuda
