#include <cstring>

#include "io/safetensors_detail.h"

namespace hysparse::safetensors_detail {
namespace {

template <class T>
T load(const std::byte* p) {  // files align nothing
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct half {  // IEEE binary16 as stored
  uint16_t bits;
};

template <class From, class To>
To cast(From v) {
  if constexpr (std::is_same_v<From, To>) {
    return v;
  } else if constexpr (std::is_same_v<From, half>) {
    return cast<float, To>(float_from_half(v.bits));
  } else if constexpr (std::is_same_v<From, bf16>) {
    return static_cast<To>(static_cast<float>(v));
  } else if constexpr (std::is_same_v<From, double> && std::is_same_v<To, bf16>) {
    return bf16_from_double(v);
  } else {
    return static_cast<To>(v);
  }
}

template <class From, class To>
void convert(const std::byte* from, std::byte* to, size_t n) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, n * sizeof(From));
  } else {
    for (size_t i = 0; i < n; ++i) {
      const To v = cast<From, To>(load<From>(from + i * sizeof(From)));
      std::memcpy(to + i * sizeof(To), &v, sizeof v);
    }
  }
}

template <class From>
bool convert_real(const std::byte* from, std::byte* to, DType dtype, size_t n) {
  switch (dtype) {
    case DType::f64:
      convert<From, double>(from, to, n);
      return true;
    case DType::f32:
      convert<From, float>(from, to, n);
      return true;
    case DType::bf16:
      convert<From, bf16>(from, to, n);
      return true;
    default:
      return false;
  }
}

// Bits of an IEEE number whose exponent is all ones: infinite where the fraction is 0, else NaN.
template <class Bits>
NonFinite count_special(const std::byte* from, Bits exponent, Bits fraction, size_t n) {
  NonFinite found;
  for (size_t i = 0; i < n; ++i) {
    const Bits x = load<Bits>(from + i * sizeof(Bits));
    const bool special = (x & exponent) == exponent, nan = (x & fraction) != 0;
    found.nan += special && nan;
    found.infinite += special && !nan;
  }
  return found;
}

}  // namespace

NonFinite count_nonfinite(const std::byte* from, std::string_view dtype, size_t n) {
  if (dtype == "F64") return count_special<uint64_t>(from, 0x7ff0000000000000ull, 0x000fffffffffffffull, n);
  if (dtype == "F32") return count_special<uint32_t>(from, 0x7f800000u, 0x007fffffu, n);
  if (dtype == "BF16") return count_special<uint16_t>(from, 0x7f80, 0x007f, n);
  if (dtype == "F16") return count_special<uint16_t>(from, 0x7c00, 0x03ff, n);
  return {};
}

float float_from_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

bf16 bf16_from_double(double d) {
  const auto f = static_cast<float>(d);
  if (static_cast<double>(f) == d || d != d) return bf16(f);
  // Round to odd in between: the low bit of the float says "not exact", so that the second rounding cannot
  // take the first one's result for a tie.
  uint32_t bits = std::bit_cast<uint32_t>(f);
  const double magnitude = d < 0 ? -d : d;
  if (static_cast<double>(std::bit_cast<float>(bits & 0x7fffffffu)) > magnitude) --bits;  // towards zero
  return bf16(std::bit_cast<float>(bits | 1u));
}

std::string_view stored_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::i64:
      return "I64";
    case DType::i32:
      return "I32";
    case DType::i16:
      return "I16";
    case DType::i8:
      return "I8";
    case DType::u8:
      return "U8";
    case DType::f8:
      return "F8_E4M3";
  }
  return "?";
}

bool convert_stored(const std::byte* from, std::string_view dtype, void* to, DType to_dtype, size_t n) {
  auto* out = static_cast<std::byte*>(to);
  if (dtype == stored_name(to_dtype) || (dtype == "BOOL" && to_dtype == DType::u8)) {
    if (n > 0) std::memcpy(out, from, n * size_of(to_dtype));
    return true;
  }
  if (dtype == "F64") return convert_real<double>(from, out, to_dtype, n);
  if (dtype == "F32") return convert_real<float>(from, out, to_dtype, n);
  if (dtype == "BF16") return convert_real<bf16>(from, out, to_dtype, n);
  if (dtype == "F16") return convert_real<half>(from, out, to_dtype, n);
  return false;
}

bool convert_to_stored(const std::byte* from, DType from_dtype, std::byte* to, DType as, size_t n) {
  return convert_stored(from, stored_name(from_dtype), to, as, n);
}

}  // namespace hysparse::safetensors_detail
