#include "kernels/quantise.h"

#include <algorithm>
#include <cmath>

namespace hysparse {

bool quantise_rows(const float* src, int64_t rows, int64_t in, int8_t* value, float* scales) {
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t begin = 0; begin < in; begin += kQuantGroup) {
      const int64_t at = r * in + begin, n = std::min(kQuantGroup, in - begin);
      float largest = 0;
      for (int64_t i = 0; i < n; ++i) {
        finite = finite && std::isfinite(src[at + i]);
        largest = std::max(largest, std::fabs(src[at + i]));
      }
      const float scale = largest / 127;
      *scales++ = scale;
      // Where the scale is 0 (or nearly: its inverse would overflow) so are the values.
      const float inverse = scale >= 0x1p-126f ? 1 / scale : 0;
      for (int64_t i = 0; i < n; ++i) {
        const float x = std::nearbyint(src[at + i] * inverse);
        value[at + i] = static_cast<int8_t>(std::clamp(finite ? x : 0.0f, -127.0f, 127.0f));
      }
    }
  return finite;
}

void widen_row(const Weight& weight, int64_t row, double* dst) {
  const TensorView& v = weight.value;
  const int64_t at = row * v.stride[0], n = v.dim(1);
  switch (v.dtype) {
    case DType::f64:
      std::copy_n(static_cast<const double*>(v.data) + at, n, dst);
      return;
    case DType::f32:
      std::copy_n(static_cast<const float*>(v.data) + at, n, dst);
      return;
    case DType::bf16:
      for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<float>(static_cast<const bf16*>(v.data)[at + i]);
      return;
    default:
      break;
  }
  HYSPARSE_CHECK(v.dtype == DType::i8 && weight.scales, "a row of {}", v.describe());
  const auto* scales = static_cast<const float*>(weight.scales.data) + row * weight.scales.stride[0];
  for (int64_t i = 0; i < n; ++i)
    dst[i] = static_cast<double>(static_cast<const int8_t*>(v.data)[at + i]) * scales[i / kQuantGroup];
}

}  // namespace hysparse
