// Products over groups of rows, kernels for every GPU; sm90/experts has those for Hopper.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/view.cuh"

namespace hysparse::cuda::experts {

// What a call asks for. `in` and `out` are those of the weights [E, out, in].
enum class Kind {
  forward,  // c[r, out] = W_e a[r, in]
  dx,       // c[r, in] (+)= a[r, out] W_e
};
struct Product {
  View a, c;              // [R, *] T
  const int32_t* offset;  // [E + 1]
  View w;                 // [E, out, in] T
  bool accumulate;
};
struct WeightGradient {
  View dy, x;             // [R, out], [R, in] T
  const int32_t* offset;  // [E + 1]
  View grad;              // [E, out, in] f32 or T
};

// False: not a dtype of activations.
bool plain_product(Kind kind, const Product& p, cudaStream_t stream);
bool plain_gradient(const WeightGradient& p, cudaStream_t stream);

// Few rows (decoding): bound by reading the weights of the experts that have rows once.
bool few_rows_take(const Product& p);
void few_rows(const Product& p, cudaStream_t stream);

}  // namespace hysparse::cuda::experts
