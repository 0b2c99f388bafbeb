// The operations on an NVIDIA GPU, f32 and bf16, through libhysparse_cuda.so. Tensors lie in memory() of the
// operations; host arrays of a call (positions, lengths, page tables) are copied to the step's scratch, which
// must be of that memory too.
#pragma once

#include "kernels/ops.h"

namespace hysparse {

enum class CudaMemoryKind : uint8_t {
  device,
  managed
};  // managed: the host may read and write it between calls (tests)

// Throws Error where there is no library or GPU (kernels/cuda_ops/library.h).
const Ops& cuda_ops(CudaMemoryKind kind = CudaMemoryKind::device);

}  // namespace hysparse
