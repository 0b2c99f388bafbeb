#include "kernels/cuda/common/tensor_map.h"

#include <cuda_runtime.h>

#include <string>

#include "kernels/cuda/common/batch.h"

namespace hysparse::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Looked up at run time, so that the library does not link the driver and loads on machines without one.
Encode encode_function() {
  static const Encode fn = [] {
    void* p = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(p) : nullptr;
  }();
  return fn;
}

}  // namespace

int make_tensor_map(CUtensorMap* map, const hysparse_cuda_tensor& t, int64_t rows, int heads, int dim,
                    int box_rows, const char* name, int box_heads) {
  const Encode encode = encode_function();
  if (!encode) return fail(HYSPARSE_UNSUPPORTED, "this driver has no bulk tensor copies");
  const std::string where(name);
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0 || t.stride_row % 8 != 0 || t.stride_head % 8 != 0)
    return fail(HYSPARSE_BAD_ARGUMENT, where + ": address and strides must be multiples of 16 bytes");
  const cuuint64_t dims[3] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(rows)};
  const cuuint64_t strides[2] = {cuuint64_t(t.stride_head) * 2, cuuint64_t(t.stride_row) * 2};
  const cuuint32_t box[3] = {64, cuuint32_t(box_heads), cuuint32_t(box_rows)};
  const cuuint32_t step[3] = {1, 1, 1};
  const CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t.data, dims, strides, box, step,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS)
    return fail(HYSPARSE_BAD_ARGUMENT, where + ": tensor map refused (code " + std::to_string(int(r)) + ")");
  return HYSPARSE_OK;
}

}  // namespace hysparse::cuda
