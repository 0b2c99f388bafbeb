#include "kernels/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace hysparse {
namespace {

// Nearest, ties to even; |x| at most 448.
f8 f8_of(float x) {
  f8 out;
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  const float magnitude = std::fabs(x);
  if (magnitude < 0x1p-6f) {  // subnormal: multiples of 2^-9; 8 of them are the smallest normal number
    out.bits = static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)));
    return out;
  }
  const uint32_t u = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = u + 0x7ffffu + (u >> 20 & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  out.bits = static_cast<uint8_t>(sign | std::min(code, 0x7eu));
  return out;
}

}  // namespace

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

bool quantise_rows_f8(const float* src, int64_t rows, int64_t in, f8* value, float* scales) {
  bool finite = true;
  for (int64_t r = 0; r < rows; ++r, src += in, value += in) {
    float largest = 0;
    for (int64_t i = 0; i < in; ++i) {
      finite = finite && std::isfinite(src[i]);
      largest = std::max(largest, std::fabs(src[i]));
    }
    const float scale = largest / 448, inverse = scale >= 0x1p-126f ? 1 / scale : 0;
    *scales++ = scale;
    for (int64_t i = 0; i < in; ++i)
      value[i] = f8_of(finite ? std::clamp(src[i] * inverse, -448.0f, 448.0f) : 0.0f);
  }
  return finite;
}

void quantise_kv_row(const float* x, int64_t n, DType code, void* codes, bf16* scale) {
  uint32_t top = 0;  // bits of magnitudes order as the magnitudes do, NaN above all
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const bool finite = top < 0x7f800000u;
  // 127 = 1.984375 * 2^6, 448 = 1.75 * 2^8
  const uint32_t highest = code == DType::i8 ? 0x7e0000u : 0x600000u;
  const int exponent =
      static_cast<int>(top >> 23) - (code == DType::i8 ? 6 : 8) + ((top & 0x7fffffu) > highest);
  if (!finite || exponent < 1) {
    *scale = finite ? bf16() : bf16(std::numeric_limits<float>::quiet_NaN());
    std::memset(codes, 0, static_cast<size_t>(n));
    return;
  }
  scale->bits = static_cast<uint16_t>(exponent << 7);
  const float inverse = std::bit_cast<float>(static_cast<uint32_t>(254 - exponent) << 23);
  if (code == DType::i8)
    for (int64_t i = 0; i < n; ++i)
      static_cast<int8_t*>(codes)[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  else
    for (int64_t i = 0; i < n; ++i) static_cast<f8*>(codes)[i] = f8_of(x[i] * inverse);
}

void widen_f8(const Weight& weight, int64_t row, float* dst) {
  const float scale = weight.scales.as<float>()[row * weight.scales.stride[0]];
  const f8* value = weight.value.as<f8>() + row * weight.value.stride[0];
  for (int64_t i = 0; i < weight.value.dim(1); ++i) dst[i] = scale * static_cast<float>(value[i]);
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
  HYSPARSE_CHECK((v.dtype == DType::i8 || v.dtype == DType::f8) && weight.scales, "a row of {}",
                 v.describe());
  if (v.dtype == DType::f8) {
    const double scale = static_cast<const float*>(weight.scales.data)[row * weight.scales.stride[0]];
    for (int64_t i = 0; i < n; ++i)
      dst[i] = scale * static_cast<float>(static_cast<const f8*>(v.data)[at + i]);
    return;
  }
  const auto* scales = static_cast<const float*>(weight.scales.data) + row * weight.scales.stride[0];
  for (int64_t i = 0; i < n; ++i)
    dst[i] = static_cast<double>(static_cast<const int8_t*>(v.data)[at + i]) * scales[i / kQuantGroup];
}

}  // namespace hysparse
