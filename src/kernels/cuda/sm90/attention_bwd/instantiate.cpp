#include "kernels/cuda/sm90/attention_bwd/instantiate.h"

namespace hysparse::cuda::attention_bwd {

Kernel find_kernel(int head_dim, int v_head_dim) {
  if (head_dim == 192 && v_head_dim == 128) return find_192();
  if (head_dim != v_head_dim) return {};
  switch (head_dim) {
    case 64:
      return find_64();
    case 96:
      return find_96();
    case 128:
      return find_128();
    case 256:
      return find_256();
    default:
      return {};
  }
}

}  // namespace hysparse::cuda::attention_bwd
