#include "kernels/cuda/sm90/window_fwd/instantiate.cuh"

namespace hysparse::cuda::window_fwd {

Kernel kernel_64() {
  return make_kernel<64, 64, 128>(find_band<64, 64>);
}

}  // namespace hysparse::cuda::window_fwd
