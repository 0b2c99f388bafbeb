#include "kernels/cuda/sm90/sparse_bwd/instantiate.cuh"

namespace hysparse::cuda::sparse_bwd {

Kernels kernels_128() {
  return make_kernels<128, 128>();
}

}  // namespace hysparse::cuda::sparse_bwd
