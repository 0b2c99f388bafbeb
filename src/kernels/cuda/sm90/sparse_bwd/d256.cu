#include "kernels/cuda/sm90/sparse_bwd/instantiate.cuh"

namespace hysparse::cuda::sparse_bwd {

Kernels kernels_256() {
  return make_kernels<256, 256>();
}

}  // namespace hysparse::cuda::sparse_bwd
