#include "kernels/cuda/sm90/attention_fwd/instantiate.cuh"

namespace hysparse::cuda::attention_fwd {

Kernel find_192(int group) {
  return find_group<192, 128, 128>(group);
}

}  // namespace hysparse::cuda::attention_fwd
