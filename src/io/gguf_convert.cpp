#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "io/gguf_detail.h"
#include "io/safetensors_detail.h"
#include "tensor/dtype.h"

namespace hysparse::gguf_detail {
namespace {

constexpr size_t kBlock = 32;

float load_half(const std::byte* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return safetensors_detail::float_from_half(bits);
}
void store_half(std::byte* p, float f) {
  const uint16_t bits = half_from_float(f);
  std::memcpy(p, &bits, sizeof bits);
}
int nibble(std::byte b, bool high) {
  return static_cast<int>(high ? b >> 4 : b & std::byte{15});
}

// A block of 4-bit numbers: the low halves of 16 bytes, then the high ones.
template <class Value>
void decode_nibbles(const std::byte* q, float* to, Value value) {
  for (size_t i = 0; i < kBlock / 2; ++i) {
    to[i] = value(nibble(q[i], false));
    to[i + kBlock / 2] = value(nibble(q[i], true));
  }
}

void decode_block(GgufDType t, const std::byte* from, float* to) {
  const float scale = load_half(from);
  switch (t) {
    case GgufDType::q4_0:
      return decode_nibbles(from + 2, to, [&](int q) { return static_cast<float>(q - 8) * scale; });
    case GgufDType::q4_1: {
      const float minimum = load_half(from + 2);
      return decode_nibbles(from + 4, to, [&](int q) { return static_cast<float>(q) * scale + minimum; });
    }
    default:  // q8_0
      for (size_t i = 0; i < kBlock; ++i) {
        int8_t q;
        std::memcpy(&q, from + 2 + i, 1);
        to[i] = static_cast<float>(q) * scale;
      }
  }
}

// Symmetric, the largest magnitude at 127.
bool encode_q8_0(const float* from, std::byte* to) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(from[i]));
  const float scale = largest / 127;
  const float inverse = scale > 0 ? 1 / scale : 0;
  store_half(to, scale);
  for (size_t i = 0; i < kBlock; ++i) {
    const auto q = static_cast<int8_t>(std::clamp(std::round(from[i] * inverse), -127.0f, 127.0f));
    std::memcpy(to + 2 + i, &q, 1);
  }
  return std::isfinite(load_half(to));
}

}  // namespace

int64_t block_size(GgufDType t) {
  return t == GgufDType::q4_0 || t == GgufDType::q4_1 || t == GgufDType::q8_0 ? int64_t(kBlock) : 1;
}

size_t block_bytes(GgufDType t) {
  switch (t) {
    case GgufDType::f32:
      return 4;
    case GgufDType::f16:
    case GgufDType::bf16:
      return 2;
    case GgufDType::q4_0:
      return 2 + kBlock / 2;
    case GgufDType::q4_1:
      return 4 + kBlock / 2;
    case GgufDType::q8_0:
      return 2 + kBlock;
  }
  return 0;
}

uint16_t half_from_float(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(units)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void decode(GgufDType t, const std::byte* from, float* to, size_t count) {
  switch (t) {
    case GgufDType::f32:
      std::memcpy(to, from, count * 4);
      return;
    case GgufDType::f16:
    case GgufDType::bf16:
      safetensors_detail::convert_stored(from, t == GgufDType::f16 ? "F16" : "BF16", to, DType::f32, count);
      return;
    default:
      for (size_t i = 0; i < count; i += kBlock) decode_block(t, from + i / kBlock * block_bytes(t), to + i);
  }
}

size_t encode(GgufDType t, const float* from, std::byte* to, size_t count) {
  switch (t) {
    case GgufDType::f32:
      std::memcpy(to, from, count * 4);
      return count;
    case GgufDType::bf16:
      safetensors_detail::convert_to_stored(reinterpret_cast<const std::byte*>(from), DType::f32, to,
                                            DType::bf16, count);
      return count;
    case GgufDType::f16:
      for (size_t i = 0; i < count; ++i) {
        store_half(to + 2 * i, from[i]);
        if (!std::isfinite(load_half(to + 2 * i)) && std::isfinite(from[i])) return i;
      }
      return count;
    default:
      HYSPARSE_CHECK(t == GgufDType::q8_0, "quantising to {}", name_of(t));
      for (size_t i = 0; i < count; i += kBlock)
        if (!encode_q8_0(from + i, to + i / kBlock * block_bytes(t))) return i;
      return count;
  }
}

}  // namespace hysparse::gguf_detail
