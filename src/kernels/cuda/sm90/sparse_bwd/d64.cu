#include "kernels/cuda/sm90/sparse_bwd/instantiate.cuh"

namespace hysparse::cuda::sparse_bwd {

Kernels kernels_64() {
  return make_kernels<64, 64>();
}

}  // namespace hysparse::cuda::sparse_bwd
