#include "kernels/cuda/sm90/sparse_fwd/instantiate.h"

namespace hysparse::cuda::sparse_fwd {

Launch find_kernel(int head_dim, int v_head_dim, int block) {
  if (head_dim == 192 && v_head_dim == 128) return find_192(block);
  if (head_dim != v_head_dim) return nullptr;
  switch (head_dim) {
    case 64:
      return find_64(block);
    case 96:
      return find_96(block);
    case 128:
      return find_128(block);
    case 256:
      return find_256(block);
    default:
      return nullptr;
  }
}

Gather find_gather(int head_dim, int v_head_dim) {
  if (head_dim == 192 && v_head_dim == 128) return gather_192();
  if (head_dim != v_head_dim) return {};
  switch (head_dim) {
    case 64:
      return gather_64();
    case 96:
      return gather_96();
    case 128:
      return gather_128();
    case 256:
      return gather_256();
    default:
      return {};
  }
}

}  // namespace hysparse::cuda::sparse_fwd
