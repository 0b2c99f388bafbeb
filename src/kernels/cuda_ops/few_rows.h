// Products of few rows in one launch.
#pragma once

#include <span>

#include "kernels/ops.h"

namespace hysparse::cuda_calls {

// Does a linear_group() of a decode step; false where the library's kernel does not take it.
bool few_row_products(std::span<const LinearForward> group);

}  // namespace hysparse::cuda_calls
