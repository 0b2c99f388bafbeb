#pragma once

#include <cuda.h>

#include "hysparse/cuda.h"

namespace hysparse::cuda {

// Describes a bf16 [rows, heads, dim] tensor to the bulk copy engine: boxes of 64 columns x
// `box_heads` heads x `box_rows` rows in the 128-byte swizzle; columns past `dim` and rows past `rows` read
// as zero. Returns HYSPARSE_OK or an error code with its message set.
int make_tensor_map(CUtensorMap* map, const hysparse_cuda_tensor& t, int64_t rows, int heads, int dim,
                    int box_rows, const char* name, int box_heads = 1);

}  // namespace hysparse::cuda
