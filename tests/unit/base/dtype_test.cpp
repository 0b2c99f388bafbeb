#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace hysparse {
namespace {

// The value of a bf16 bit pattern with the infinity's place on the number line (2^128) in its stead.
double on_the_line(uint32_t bits16) {
  const auto f = std::bit_cast<float>(bits16 << 16);
  return std::isinf(f) ? std::copysign(0x1p128, f) : static_cast<double>(f);
}

// Nearest of the two neighbours, the even one of two equally near.
uint16_t nearest_even(float f) {
  const uint32_t low = std::bit_cast<uint32_t>(f) >> 16;  // towards zero
  const double below = std::abs(static_cast<double>(f) - on_the_line(low));
  const double above = std::abs(on_the_line(low + 1) - static_cast<double>(f));
  return static_cast<uint16_t>(below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

TEST(BFloat16, RoundsToNearestEvenEverywhere) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    if ((high & 0x7fff) >= 0x7f80) continue;  // infinities and NaNs below
    for (uint32_t low : {0x0000u, 0x0001u, 0x1234u, 0x7fffu, 0x8000u, 0x8001u, 0xc000u, 0xffffu}) {
      const auto f = std::bit_cast<float>(high << 16 | low);
      const uint16_t want = low == 0 ? static_cast<uint16_t>(high) : nearest_even(f);
      ASSERT_EQ(bf16(f).bits, want) << std::hexfloat << f;
    }
  }
}

TEST(BFloat16, ExactValuesSurvive) {
  for (uint32_t b = 0; b < 0x10000; ++b) {
    bf16 v;
    v.bits = static_cast<uint16_t>(b);
    const auto f = static_cast<float>(v);
    ASSERT_EQ(std::bit_cast<uint32_t>(f), b << 16);
    ASSERT_TRUE(std::isnan(f) || bf16(f).bits == b) << std::hex << b;
  }
}

TEST(BFloat16, NaNStaysNaNAndOverflowIsInfinite) {
  for (uint32_t u : {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const bf16 v(std::bit_cast<float>(u));
    EXPECT_TRUE(std::isnan(static_cast<float>(v))) << std::hex << u;
    EXPECT_EQ(v.bits >> 15, u >> 31) << "sign of " << std::hex << u;
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(bf16(inf)), inf);
  EXPECT_EQ(static_cast<float>(bf16(-inf)), -inf);
  EXPECT_EQ(static_cast<float>(bf16(std::numeric_limits<float>::max())), inf);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::i64), sizeof(int64_t));
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::i32), sizeof(int32_t));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bf16));
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::i16), 2u);
  EXPECT_EQ(size_of(DType::i8), 1u);
  EXPECT_EQ(size_of(DType::u8), 1u);
  EXPECT_EQ(name_of(DType::bf16), "bf16");
  EXPECT_EQ(name_of(DType::i64), "i64");
}

}  // namespace
}  // namespace hysparse
