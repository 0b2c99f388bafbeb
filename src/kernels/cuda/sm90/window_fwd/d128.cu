#include "kernels/cuda/sm90/window_fwd/instantiate.cuh"

namespace hysparse::cuda::window_fwd {

Kernel kernel_128() {
  return make_kernel<128, 128, 128>(find_band<128, 128>);
}

}  // namespace hysparse::cuda::window_fwd
