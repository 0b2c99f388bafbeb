#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_64(int block) {
  return find_block<64, 64>(block);
}

Gather gather_64() {
  return make_gather<64, 64>();
}

}  // namespace hysparse::cuda::sparse_fwd
