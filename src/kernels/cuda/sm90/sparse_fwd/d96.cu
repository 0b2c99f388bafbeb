#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_96(int block) {
  return find_block<96, 96>(block);
}

Gather gather_96() {
  return make_gather<96, 96>();
}

}  // namespace hysparse::cuda::sparse_fwd
