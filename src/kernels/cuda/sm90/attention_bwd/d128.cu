#include "kernels/cuda/sm90/attention_bwd/instantiate.cuh"

namespace hysparse::cuda::attention_bwd {

Kernel find_128() {
  return make_kernel<Config<128, 128, 64>>();
}

}  // namespace hysparse::cuda::attention_bwd
