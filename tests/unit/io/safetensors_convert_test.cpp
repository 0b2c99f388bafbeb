#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "io/safetensors_detail.h"

namespace hysparse {
namespace {

using namespace safetensors_detail;

TEST(SafetensorsConvert, HalfToFloatIsExactForEveryPattern) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const int exponent = static_cast<int>(h >> 10 & 31);
    const int fraction = static_cast<int>(h & 0x3ff);
    const double sign = h & 0x8000 ? -1 : 1;
    const float got = float_from_half(static_cast<uint16_t>(h));
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(got));
      continue;
    }
    double want;
    if (exponent == 31)
      want = sign * HUGE_VAL;
    else if (exponent == 0)
      want = sign * std::ldexp(fraction, -24);
    else
      want = sign * std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(static_cast<double>(got), want) << std::hex << h;
    ASSERT_EQ(std::signbit(got), (h & 0x8000) != 0);
  }
}

// The nearest bf16 by search among the neighbours, ties to even.
uint16_t nearest_bf16(double d) {
  const auto value = [](uint32_t bits) {
    const auto f = std::bit_cast<float>(bits << 16);
    return std::isinf(f) ? 0x1p128 : static_cast<double>(f);
  };
  const double m = std::abs(d);
  uint32_t low = 0;  // largest pattern not above m
  for (uint32_t step = 0x4000; step; step /= 2)
    if (low + step <= 0x7f80 && value(low + step) <= m) low += step;
  uint32_t best = low;
  if (low < 0x7f80) {
    const double a = m - value(low), b = value(low + 1) - m;
    if (b < a || (b == a && low % 2 == 1)) best = low + 1;
  }
  return static_cast<uint16_t>(best | (std::signbit(d) ? 0x8000 : 0));
}

TEST(SafetensorsConvert, DoubleToBf16RoundsOnce) {
  Rng rng(1);
  const auto check = [](double d) {
    ASSERT_EQ(bf16_from_double(d).bits, nearest_bf16(d)) << std::hexfloat << d;
    ASSERT_EQ(bf16_from_double(-d).bits, nearest_bf16(-d)) << std::hexfloat << -d;
  };
  for (int i = 0; i < 200000; ++i)
    check(std::ldexp(1.0 + rng.uniform(), static_cast<int>(rng.below(300)) - 160));
  for (int i = 0; i < 20000; ++i) {  // just beside a tie, where going through float would take it for one
    const uint32_t pattern = static_cast<uint32_t>(rng.below(0x7f7f));
    const double low = std::bit_cast<float>(pattern << 16), high = std::bit_cast<float>((pattern + 1) << 16);
    const double tie = low + (high - low) / 2;
    check(tie);
    check(std::nextafter(tie, 0.0));
    check(std::nextafter(tie, 1e300));
    check(tie * (1 + 1e-9));
    check(tie * (1 - 1e-9));
  }
  for (double d : {0.0, 5e-324, 1e-300, 0x1p-133, 0x1p-134, 0x1.8p-133, 3.39e38, 3.4e38, 1e39, 1e300})
    check(d);
  EXPECT_EQ(bf16_from_double(HUGE_VAL).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16_from_double(std::nan("")))));
}

// Every supported pair, from an address that nothing aligns.
TEST(SafetensorsConvert, ReadsEveryPairUnaligned) {
  constexpr size_t kCount = 37;
  std::vector<double> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = (static_cast<double>(i) - 18) * 0.125;  // exact everywhere
  const auto half_bits = [](double d) {                                                   // exact values only
    if (d == 0) return uint16_t(0);
    int e = 0;
    const double m = std::frexp(std::abs(d), &e);
    return static_cast<uint16_t>((d < 0 ? 0x8000 : 0) | (e + 14) << 10 | (static_cast<int>(m * 2048) - 1024));
  };
  const auto stored = [&](std::string_view dtype) {
    std::vector<std::byte> out(1);  // one byte off
    for (double d : values) {
      std::byte b[8];
      size_t n = 8;
      const auto set = [&](auto v) {
        n = sizeof v;
        std::memcpy(b, &v, n);
      };
      if (dtype == "F64") set(d);
      if (dtype == "F32") set(static_cast<float>(d));
      if (dtype == "BF16") set(bf16(static_cast<float>(d)).bits);
      if (dtype == "F16") set(half_bits(d));
      out.insert(out.end(), b, b + n);
    }
    return out;
  };
  for (std::string_view dtype : {"F64", "F32", "BF16", "F16"}) {
    const auto bytes = stored(dtype);
    std::vector<double> f64(kCount);
    std::vector<float> f32(kCount);
    std::vector<bf16> b16(kCount);
    ASSERT_TRUE(convert_stored(bytes.data() + 1, dtype, f64.data(), DType::f64, kCount));
    ASSERT_TRUE(convert_stored(bytes.data() + 1, dtype, f32.data(), DType::f32, kCount));
    ASSERT_TRUE(convert_stored(bytes.data() + 1, dtype, b16.data(), DType::bf16, kCount));
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQ(f64[i], values[i]) << dtype;
      EXPECT_EQ(f32[i], static_cast<float>(values[i])) << dtype;
      EXPECT_EQ(static_cast<float>(b16[i]), static_cast<float>(values[i])) << dtype;
    }
    int64_t none[kCount];
    EXPECT_FALSE(convert_stored(bytes.data() + 1, dtype, none, DType::i64, kCount));
    EXPECT_FALSE(convert_stored(bytes.data() + 1, dtype, none, DType::u8, kCount));
  }
  float f[1];
  for (std::string_view dtype : {"I64", "I32", "U8", "BOOL", "F8_E4M3", "U16", "C64"})
    EXPECT_FALSE(convert_stored(reinterpret_cast<const std::byte*>(f), dtype, f, DType::f32, 1)) << dtype;
}

TEST(SafetensorsConvert, NaNAndInfinityPass) {
  const double in[] = {HUGE_VAL, -HUGE_VAL, std::nan(""), -0.0};
  float out[4];
  ASSERT_TRUE(convert_stored(reinterpret_cast<const std::byte*>(in), "F64", out, DType::f32, 4));
  EXPECT_EQ(out[0], HUGE_VALF);
  EXPECT_EQ(out[1], -HUGE_VALF);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_TRUE(out[3] == 0 && std::signbit(out[3]));
}

TEST(SafetensorsConvert, NonFiniteValuesAreCountedInEveryRealDType) {
  std::vector<uint16_t> all(0x10000);
  for (uint32_t h = 0; h < 0x10000; ++h) all[h] = static_cast<uint16_t>(h);
  const auto* bytes = reinterpret_cast<const std::byte*>(all.data());
  const NonFinite half = count_nonfinite(bytes, "F16", all.size());
  EXPECT_EQ(half.nan, 2 * 1023);
  EXPECT_EQ(half.infinite, 2);
  const NonFinite brain = count_nonfinite(bytes, "BF16", all.size());
  EXPECT_EQ(brain.nan, 2 * 127);
  EXPECT_EQ(brain.infinite, 2);
  EXPECT_FALSE(count_nonfinite(bytes, "I16", all.size()));

  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> f = {0, -inf, 3e38f, NAN, -NAN, 1e-40f, inf, inf};
  std::vector<double> d(f.begin(), f.end());
  std::vector<std::byte> odd(1 + f.size() * sizeof(float));  // not aligned
  std::memcpy(odd.data() + 1, f.data(), f.size() * sizeof(float));
  for (const NonFinite& n :
       {count_nonfinite(odd.data() + 1, "F32", f.size()),
        count_nonfinite(reinterpret_cast<const std::byte*>(d.data()), "F64", d.size())}) {
    EXPECT_EQ(n.nan, 2);
    EXPECT_EQ(n.infinite, 3);
  }
}

}  // namespace
}  // namespace hysparse
