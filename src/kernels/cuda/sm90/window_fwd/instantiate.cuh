// The dense forward's kernel over a band of key tiles; one translation unit a head dim.
#pragma once

#include "kernels/cuda/sm90/attention_fwd/instantiate.cuh"
#include "kernels/cuda/sm90/window_fwd/launch.h"

namespace hysparse::cuda::window_fwd {

template <int kD, int kDV, int kN>
Kernel make_kernel() {
  return {attention_fwd::launch<attention_fwd::Config<kD, kDV, kN, 0, true>>, kN};
}

}  // namespace hysparse::cuda::window_fwd
