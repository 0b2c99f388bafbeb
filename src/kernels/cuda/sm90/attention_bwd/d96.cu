#include "kernels/cuda/sm90/attention_bwd/instantiate.cuh"

namespace hysparse::cuda::attention_bwd {

Kernel find_96() {
  return make_kernel<Config<96, 96, 64>>();
}

}  // namespace hysparse::cuda::attention_bwd
