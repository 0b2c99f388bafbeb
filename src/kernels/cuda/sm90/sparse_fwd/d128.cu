#include "kernels/cuda/sm90/sparse_fwd/instantiate.cuh"

namespace hysparse::cuda::sparse_fwd {

Launch find_128(int block) {
  return find_block<128, 128>(block);
}

}  // namespace hysparse::cuda::sparse_fwd
