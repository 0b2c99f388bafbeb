// The operations on an NVIDIA GPU, f32 and bf16, through libhysparse_cuda.so. Tensors lie in memory() of the
// operations, the runtime's scratch too; host arrays of a call (positions, lengths, page tables) are brought
// to the GPU by the operations, once while their contents stay the same. Calls are queued:
// memory().synchronize(), and every copy to the host, waits for them.
#pragma once

#include "kernels/ops.h"

namespace hysparse {

enum class CudaMemoryKind : uint8_t {
  device,
  managed
};  // managed: the host may read and write it between calls (tests)

// deterministic: equal inputs give equal bits (the contract of ops.h); without it the backward of full
// attention sums dQ, dK and dV in no fixed order, which is faster (docs/performance.md). Throws Error where
// there is no library or GPU (kernels/cuda_ops/library.h).
const Ops& cuda_ops(CudaMemoryKind kind = CudaMemoryKind::device, bool deterministic = true);

}  // namespace hysparse
