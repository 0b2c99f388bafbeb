// Kernels whose start overlaps the end of the one before (programmatic dependent launch; Hopper on, elsewhere
// ordinary launches). In a decode step, whose kernels run for microseconds, the set-up of a launch costs as
// much as the work. A kernel that fills the GPU lets its followers start at its end only: CTAs that wait
// would take the places of those that work, and an even cut of the work would need two rounds.
#pragma once

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/mma.cuh"

namespace hysparse::cuda {

// The first thing in a kernel that launch_overlapped() starts: each thread of every CTA passes it before it
// reads or writes memory that other kernels write, and before it ends.
__device__ inline void join_stream() {
  launch_dependents();
  wait_for_launcher();
}

struct OverlapOptions {
  size_t shared_bytes = 0;
  int cluster = 1;  // CTAs along x
};

// kKernel<<<grid, threads, shared_bytes, stream>>>(args...), overlapped where this device's code of it waits.
template <auto kKernel, class... Args>
cudaError_t launch_overlapped(dim3 grid, unsigned threads, cudaStream_t stream, OverlapOptions options,
                              const Args&... args) {
  static const bool overlaps = [] {
    bool hopper = false;
    return built_for_hopper(kKernel, hopper) == cudaSuccess && hopper;
  }();
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = options.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (overlaps) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (options.cluster > 1) {
    cudaLaunchAttribute& a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {unsigned(options.cluster), 1, 1};
  }
  return cudaLaunchKernelEx(&config, kKernel, args...);
}

}  // namespace hysparse::cuda
