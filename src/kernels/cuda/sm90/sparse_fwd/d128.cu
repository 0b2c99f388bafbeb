#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_128(int block) {
  return find_block<128, 128>(block);
}

Gather gather_128() {
  return make_gather<128, 128>();
}

}  // namespace hysparse::cuda::sparse_fwd
