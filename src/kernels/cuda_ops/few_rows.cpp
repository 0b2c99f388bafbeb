#include "kernels/cuda_ops/few_rows.h"

#include <vector>

#include "kernels/checks.h"
#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/library.h"

namespace hysparse::cuda_calls {

bool few_row_products(std::span<const LinearForward> group) {
  constexpr int64_t kRows = 16;  // the library knows better; this saves asking
  const TensorView& x = group[0].x;
  if (x.dtype != DType::bf16 || x.dim(0) > kRows || group.size() > HYSPARSE_CUDA_PRODUCTS) return false;
  std::vector<hysparse_cuda_product> products;
  bool constant = true;
  for (const LinearForward& a : group) {
    check_args(a);
    const TensorView& w = a.weight.value;
    if (a.x.data != x.data || a.x.stride[0] != x.stride[0] || w.dtype != DType::bf16 ||
        w.dim(0) > INT32_MAX / 4)
      return false;
    constant = constant && !a.weight.grad;
    products.push_back({w.data, a.bias ? a.bias->value.data : nullptr, a.y.data, w.stride[0], a.y.stride[0],
                        static_cast<int32_t>(w.dim(0)),
                        a.y.dtype == DType::f32 ? HYSPARSE_DTYPE_F32 : HYSPARSE_DTYPE_BF16, a.accumulate});
  }
  return taken(cuda_library().linear_group(View(x), products.data(), static_cast<int32_t>(products.size()),
                                           constant, cuda_stream()),
               "linear_group");
}

}  // namespace hysparse::cuda_calls
