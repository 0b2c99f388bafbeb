#pragma once

#include <cuda_runtime.h>

namespace hysparse::cuda {

// Compute capability of the current device as major * 10 + minor; 0 without one.
inline int compute_capability() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return major * 10 + minor;
}

// Whether the code of `kernel` that this device runs has what needs compute capability 9.0: newer devices may
// run code compiled at load time from that of 8.0.
template <class Kernel>
cudaError_t built_for_hopper(Kernel kernel, bool& answer) {
  cudaFuncAttributes a{};
  const cudaError_t e = cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(kernel));
  answer = a.ptxVersion >= 90;
  return e;
}

}  // namespace hysparse::cuda
