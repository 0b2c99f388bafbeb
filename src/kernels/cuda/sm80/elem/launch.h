// What the files here share: the checks of their arguments and launches over rows.
#pragma once

#include <string>

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/common/view.cuh"

namespace hysparse::cuda {

inline int refuse(const char* op, const char* why) {
  return fail(HYSPARSE_BAD_ARGUMENT, std::string(op) + ": " + why);
}
inline int unsupported_dtype(const char* op) {
  return fail(HYSPARSE_UNSUPPORTED, std::string(op) + ": f32 and bf16 run on the GPU, other dtypes do not");
}
inline int launched(const char* op) {
  return check_cuda(cudaGetLastError(), op);
}
inline bool same_shape(const View& a, const View& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.shape[i] != b.shape[i]) return false;
  return true;
}
inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// CTAs for `items` of work of `each` a CTA, the rest in a grid-stride loop.
inline unsigned grid_for(int64_t items, int64_t each) {
  return static_cast<unsigned>(std::max<int64_t>(1, std::min<int64_t>(ceil_div(items, each), 1 << 20)));
}

}  // namespace hysparse::cuda
