// The C ABI of the grouped products: checks, and which kernel takes a shape.
#include "hysparse/cuda_experts.h"
#include "kernels/cuda/sm80/elem/launch.h"
#include "kernels/cuda/sm80/experts/grouped.h"
#include "kernels/cuda/sm90/experts/launch.h"

using namespace hysparse::cuda;
using namespace hysparse::cuda::experts;

namespace {

bool fits(const View& rows_out, const View& rows_in, const View& offset, const View& matrices) {
  return rows_out.rank == 2 && rows_in.rank == 2 && matrices.rank == 3 &&
         offset.dtype == HYSPARSE_DTYPE_I32 && offset.shape[0] == matrices.shape[0] + 1 &&
         rows_out.shape[0] == rows_in.shape[0] && rows_out.shape[1] == matrices.shape[1] &&
         rows_in.shape[1] == matrices.shape[2] && rows_in.shape[0] <= INT32_MAX;
}

int product(const char* op, Kind kind, const Product& p, cudaStream_t stream) {
  if (p.a.dtype != p.c.dtype || p.a.dtype != p.w.dtype) return refuse(op, "dtypes differ");
  if (p.c.shape[0] == 0 || p.c.shape[1] == 0) return HYSPARSE_OK;
  if (kind == Kind::forward && few_rows_take(p)) {
    few_rows(p, stream);
    return launched(op);
  }
  int code = HYSPARSE_OK;
  if (fast_product(kind, p, nullptr, stream, code)) return code;
  return plain_product(kind, p, stream) ? launched(op) : unsupported_dtype(op);
}

}  // namespace

extern "C" {

int hysparse_cuda_grouped_linear(hysparse_view x, hysparse_view offset, hysparse_view weights,
                                 hysparse_view y, hysparse_stream stream) {
  constexpr const char* op = "grouped_linear";
  if (!fits(*y, *x, *offset, *weights)) return refuse(op, "shapes do not fit");
  return product(op, Kind::forward, {*x, *y, static_cast<const int32_t*>(offset->data), *weights, false},
                 stream);
}

int hysparse_cuda_grouped_linear_dx(hysparse_view dy, hysparse_view offset, hysparse_view weights,
                                    hysparse_view dx, int32_t accumulate, hysparse_stream stream) {
  constexpr const char* op = "grouped_linear_dx";
  if (!fits(*dy, *dx, *offset, *weights)) return refuse(op, "shapes do not fit");
  return product(op, Kind::dx,
                 {*dy, *dx, static_cast<const int32_t*>(offset->data), *weights, accumulate != 0}, stream);
}

int hysparse_cuda_grouped_linear_pair(hysparse_view x, hysparse_view offset, hysparse_view first,
                                      hysparse_view second, hysparse_view y_first, hysparse_view y_second,
                                      hysparse_stream stream) {
  constexpr const char* op = "grouped_linear_pair";
  if (!fits(*y_first, *x, *offset, *first) || !fits(*y_second, *x, *offset, *second) ||
      !same_shape(*first, *second))
    return refuse(op, "shapes do not fit");
  const auto* begins = static_cast<const int32_t*>(offset->data);
  const Product one{*x, *y_first, begins, *first, false}, other{*x, *y_second, begins, *second, false};
  int code = HYSPARSE_OK;
  if (x->shape[0] > 0 && !few_rows_take(one) && x->dtype == other.c.dtype && x->dtype == other.w.dtype &&
      fast_product(Kind::forward, one, &other, stream, code))
    return code;
  code = product(op, Kind::forward, one, stream);
  return code == HYSPARSE_OK ? product(op, Kind::forward, other, stream) : code;
}

int hysparse_cuda_grouped_linear_pair_dx(hysparse_view dy_first, hysparse_view dy_second,
                                         hysparse_view offset, hysparse_view first, hysparse_view second,
                                         hysparse_view dx, hysparse_stream stream) {
  constexpr const char* op = "grouped_linear_pair_dx";
  if (!fits(*dy_first, *dx, *offset, *first) || !fits(*dy_second, *dx, *offset, *second) ||
      !same_shape(*first, *second))
    return refuse(op, "shapes do not fit");
  const auto* begins = static_cast<const int32_t*>(offset->data);
  const Product one{*dy_first, *dx, begins, *first, false}, other{*dy_second, *dx, begins, *second, true};
  int code = HYSPARSE_OK;
  if (dx->shape[0] > 0 && dx->dtype == other.a.dtype && dx->dtype == other.w.dtype &&
      fast_product(Kind::dx, one, &other, stream, code))
    return code;
  code = product(op, Kind::dx, one, stream);
  return code == HYSPARSE_OK ? product(op, Kind::dx, other, stream) : code;
}

int hysparse_cuda_grouped_linear_dw(hysparse_view dy, hysparse_view x, hysparse_view offset,
                                    hysparse_view grad, hysparse_stream stream) {
  constexpr const char* op = "grouped_linear_dw";
  if (!fits(*dy, *x, *offset, *grad)) return refuse(op, "shapes do not fit");
  if (dy->dtype != x->dtype) return refuse(op, "dtypes differ");
  const WeightGradient p{*dy, *x, static_cast<const int32_t*>(offset->data), *grad};
  if (x->shape[0] == 0 || x->shape[1] == 0 || dy->shape[1] == 0) return HYSPARSE_OK;
  int code = HYSPARSE_OK;
  if (fast_gradient(p, stream, code)) return code;
  return plain_gradient(p, stream) ? launched(op) : unsupported_dtype(op);
}

}  // extern "C"
