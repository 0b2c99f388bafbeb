#include "kernels/cuda/sm90/sparse_bwd/instantiate.cuh"

namespace hysparse::cuda::sparse_bwd {

Kernels kernels_96() {
  return make_kernels<96, 96>();
}

}  // namespace hysparse::cuda::sparse_bwd
