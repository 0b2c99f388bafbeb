#include "kernels/cuda/sm90/window_fwd/instantiate.cuh"

namespace hysparse::cuda::window_fwd {

Kernel kernel_96() {
  return make_kernel<96, 96, 128>(find_band<96, 96>);
}

}  // namespace hysparse::cuda::window_fwd
