#include "kernels/cuda/sm90/sparse_bwd/instantiate.cuh"

namespace hysparse::cuda::sparse_bwd {

Kernels kernels_192() {
  return make_kernels<192, 128>();
}

}  // namespace hysparse::cuda::sparse_bwd
