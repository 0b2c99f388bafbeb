#pragma once

#include "kernels/cuda/sm80/experts/grouped.h"

namespace hysparse::cuda::experts {

// Whether the kernels for Hopper take a product: bf16, rows of 16-byte units, a GPU that runs them. Where
// they do, the call is issued and `code` says how that went. second: another product of the same a (forward),
// or one whose result is added (dx); null: none.
bool fast_product(Kind kind, const Product& p, const Product* second, cudaStream_t stream, int& code);
bool fast_gradient(const WeightGradient& p, cudaStream_t stream, int& code);

}  // namespace hysparse::cuda::experts
