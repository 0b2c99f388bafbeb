#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_192(int block) {
  return find_block<192, 128>(block);
}

Gather gather_192() {
  return make_gather<192, 128>();
}

}  // namespace hysparse::cuda::sparse_fwd
