#include "kernels/cuda/sm90/attention_bwd/instantiate.cuh"

namespace hysparse::cuda::attention_bwd {

Kernel find_256() {
  return make_kernel<Config<256, 256, 64>>();
}

}  // namespace hysparse::cuda::attention_bwd
