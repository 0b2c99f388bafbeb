#include "kernels/cuda/sm90/attention_bwd/instantiate.cuh"

namespace hysparse::cuda::attention_bwd {

Kernel find_192() {
  return make_kernel<Config<192, 128, 64>>();
}

}  // namespace hysparse::cuda::attention_bwd
