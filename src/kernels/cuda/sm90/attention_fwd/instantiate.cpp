#include "kernels/cuda/sm90/attention_fwd/instantiate.h"

namespace hysparse::cuda::attention_fwd {

Kernel find_kernel(int head_dim, int v_head_dim, int group) {
  if (head_dim == 192 && v_head_dim == 128) return find_192(group);
  if (head_dim != v_head_dim) return {};
  switch (head_dim) {
    case 64:
      return find_64(group);
    case 96:
      return find_96(group);
    case 128:
      return find_128(group);
    case 256:
      return find_256(group);
    default:
      return {};
  }
}

}  // namespace hysparse::cuda::attention_fwd
