#pragma once

#include <cstdint>

namespace hysparse::cuda::experts {

// The expert of `row`: the last whose rows begin at or before it. By a whole warp, 32 places together.
__device__ inline int expert_of(const int32_t* offset, int experts, int row) {
  const int lane = threadIdx.x % 32;
  int low = 0, count = experts;
  while (count > 1) {
    const int step = (count + 31) / 32, at = low + lane * step;
    const unsigned past = __ballot_sync(0xffffffffu, at < low + count && offset[at] <= row);
    const int last = 31 - __clz(past | 1);
    count = min(step, count - last * step);
    low += last * step;
  }
  return low;
}

}  // namespace hysparse::cuda::experts
