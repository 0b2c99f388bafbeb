#include "kernels/cuda/sm90/attention_bwd/instantiate.cuh"

namespace hysparse::cuda::attention_bwd {

Kernel find_64() {
  return make_kernel<Config<64, 64, 128>>();
}

}  // namespace hysparse::cuda::attention_bwd
