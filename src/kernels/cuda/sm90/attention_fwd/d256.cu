#include "kernels/cuda/sm90/attention_fwd/instantiate.cuh"

namespace hysparse::cuda::attention_fwd {

Kernel find_256(int group) {
  return find_group<256, 256, 64>(group);
}

}  // namespace hysparse::cuda::attention_fwd
