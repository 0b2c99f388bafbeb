#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_256(int block) {
  return find_block<256, 256>(block);
}

Gather gather_256() {
  return make_gather<256, 256>();
}

}  // namespace hysparse::cuda::sparse_fwd
