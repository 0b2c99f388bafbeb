#include "kernels/cuda/sm90/window_fwd/instantiate.cuh"

namespace hysparse::cuda::window_fwd {

Kernel kernel_192() {
  return make_kernel<192, 128, 128>(no_band);
}

}  // namespace hysparse::cuda::window_fwd
