#include "kernels/cuda/sm90/window_fwd/instantiate.cuh"

namespace hysparse::cuda::window_fwd {

Kernel kernel_256() {
  return make_kernel<256, 256, 64>(no_band);
}

}  // namespace hysparse::cuda::window_fwd
