#include "kernels/cuda/sm90/attention_fwd/instantiate.cuh"

namespace hysparse::cuda::attention_fwd {

Kernel find_64(int group) {
  return find_group<64, 64, 128>(group);
}

}  // namespace hysparse::cuda::attention_fwd
