#pragma once

#include "kernels/cuda_ops/cuda_ops.h"

namespace hysparse {

Memory& cuda_memory(CudaMemoryKind kind);

}  // namespace hysparse
