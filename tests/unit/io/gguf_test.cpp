// GGUF: numbers of every stored kind, a round trip, and files that lie.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "io/gguf_detail.h"
#include "io/safetensors_detail.h"
#include "unit/io/gguf_bytes.h"

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text)

namespace hysparse {
namespace {

namespace fs = std::filesystem;
using namespace gguf_detail;
using namespace gguf_bytes;

std::vector<float> decoded(GgufDType t, const std::string& bytes, size_t count) {
  std::vector<float> out(count);
  decode(t, reinterpret_cast<const std::byte*>(bytes.data()), out.data(), count);
  return out;
}

TEST(GgufNumbers, BlocksOfFourBits) {
  std::string quants;
  for (int i = 0; i < 16; ++i) quants += static_cast<char>(i | (15 - i) << 4);
  const std::string half = le(uint16_t(0x3800)), minus_three = le(uint16_t(0xc200));  // 0.5 and -3
  const auto symmetric = decoded(GgufDType::q4_0, half + quants, 32);
  const auto with_minimum = decoded(GgufDType::q4_1, half + minus_three + quants, 32);
  for (int i = 0; i < 16; ++i) {
    const auto low = static_cast<float>(i), high = static_cast<float>(15 - i);
    EXPECT_EQ(symmetric[size_t(i)], (low - 8) * 0.5f);
    EXPECT_EQ(symmetric[size_t(16 + i)], (high - 8) * 0.5f);
    EXPECT_EQ(with_minimum[size_t(i)], low * 0.5f - 3);
    EXPECT_EQ(with_minimum[size_t(16 + i)], high * 0.5f - 3);
  }
}

TEST(GgufNumbers, BlocksOfEightBits) {
  std::string block = le(uint16_t(0x3400));  // 0.25
  for (int i = 0; i < 32; ++i) block += static_cast<char>(i * 8 - 128);
  const auto values = decoded(GgufDType::q8_0, block + block, 64);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(values[size_t(i)], static_cast<float>(i % 32 * 8 - 128) * 0.25f);
}

TEST(GgufNumbers, HalvesAreRoundedToNearestEven) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = safetensors_detail::float_from_half(static_cast<uint16_t>(h));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(safetensors_detail::float_from_half(half_from_float(f)))) << h;
      continue;
    }
    EXPECT_EQ(half_from_float(f), h);
    // Half way to the next one, and just off it, on both sides.
    if ((h & 0x7fff) >= 0x7bff) continue;
    const float next = safetensors_detail::float_from_half(static_cast<uint16_t>(h + 1));
    const float middle = f + (next - f) / 2;
    EXPECT_EQ(half_from_float(middle), h & 1 ? h + 1 : h);
    EXPECT_EQ(half_from_float(std::nextafter(middle, f)), h);
    EXPECT_EQ(half_from_float(std::nextafter(middle, next)), h + 1);
  }
  EXPECT_EQ(half_from_float(65519.99f), 0x7bff);
  EXPECT_EQ(half_from_float(65520), 0x7c00);
  EXPECT_EQ(half_from_float(-1e30f), 0xfc00);
  EXPECT_EQ(half_from_float(1e-30f), 0);
}

TEST(GgufNumbers, EightBitsAreWithinHalfAStep) {
  Rng rng(5);
  std::vector<float> from(320), to(320);
  for (float& v : from) v = static_cast<float>(rng.normal());
  std::fill(from.begin() + 64, from.begin() + 96, 0.0f);
  std::vector<std::byte> stored(320 / 32 * 34);
  EXPECT_EQ(encode(GgufDType::q8_0, from.data(), stored.data(), from.size()), from.size());
  decode(GgufDType::q8_0, stored.data(), to.data(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    float largest = 0;
    for (size_t k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) largest = std::max(largest, std::abs(from[k]));
    // Half a step, and the rounding of the scale to f16 at up to 127 steps.
    EXPECT_LE(std::abs(from[i] - to[i]), largest / 127 * (0.5f + 127 * 0x1p-11f) * 1.0001f) << i;
  }
  EXPECT_EQ(to[70], 0);
}

class GgufFiles : public ::testing::Test {
 protected:
  GgufFiles() : path(fs::temp_directory_path() / fmt::format("hysparse-gguf-{}.gguf", getpid())) {}
  ~GgufFiles() override { fs::remove(path); }
  static std::string refusal(const std::string& bytes) {
    try {
      parse_header(std::as_bytes(std::span(bytes)), "f");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
      return e.what();
    }
    return "(accepted)";
  }
  fs::path path;
};

TensorSource source(const std::string& name, const std::vector<int64_t>& shape) {
  TensorSource s{name, shape, {}};
  s.read = [row = s.row_size()](int64_t first, int64_t count, float* out) {
    for (int64_t i = 0; i < count * row; ++i) out[i] = static_cast<float>((first * row + i) % 251) - 120;
  };
  return s;
}

TEST_F(GgufFiles, WhatIsWrittenReadsBack) {
  GgufWriter w;
  w.add_text("t", "some text");
  w.add_u32("n", 4000000000);
  w.add_f32("x", 1e-5);
  w.add_bool("b", true);
  w.add_texts("list", {"a", "", "ccc"});
  w.add_i32s("ids", {1, -2, 3});
  const std::pair<GgufDType, std::vector<int64_t>> tensors[] = {{GgufDType::f32, {7}},
                                                                {GgufDType::bf16, {5, 3}},
                                                                {GgufDType::f16, {3, 2, 5}},
                                                                {GgufDType::q8_0, {9, 64}},
                                                                {GgufDType::f32, {300, 1024}}};
  for (const auto& [dtype, shape] : tensors)
    w.add(source(std::string(name_of(dtype)) + std::to_string(shape[0]), shape), dtype);
  w.write(path);

  const GgufFile f(path);
  EXPECT_EQ(f.text("t"), "some text");
  EXPECT_EQ(f.integer("n"), 4000000000);
  EXPECT_EQ(f.real("x"), static_cast<double>(1e-5f));
  EXPECT_EQ(f.boolean("b"), true);
  EXPECT_EQ(f.array("list")->texts, (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(f.array("ids")->integer(1), -2);
  EXPECT_EQ(f.integer("absent"), std::nullopt);
  EXPECT_THROW(f.integer("t"), Error);
  EXPECT_THROW(f.text("n"), Error);
  EXPECT_THROW(f.array("n"), Error);
  ASSERT_EQ(f.tensors().size(), std::size(tensors));
  for (size_t i = 0; i < std::size(tensors); ++i) {
    const GgufTensor& t = f.tensors()[i];
    EXPECT_EQ(t.dtype, tensors[i].first);
    EXPECT_EQ(t.shape, tensors[i].second);
    EXPECT_EQ(t.begin % 32, 0u);
    const TensorSource got = f.source(t), truth = source("", t.shape);
    const auto row = static_cast<size_t>(got.row_size());
    std::vector<float> a(static_cast<size_t>(got.rows()) * row), b(a.size());
    got.read(0, got.rows(), a.data());
    truth.read(0, got.rows(), b.data());
    for (size_t k = 0; k < a.size(); ++k)
      ASSERT_NEAR(a[k], b[k], t.dtype == GgufDType::q8_0 ? 0.6 : 0.0) << t.name;
    std::vector<float> one(row);  // any row by itself
    got.read(2, 1, one.data());
    EXPECT_TRUE(std::equal(one.begin(), one.end(), a.begin() + std::ptrdiff_t(2 * row)));
  }
}

TEST_F(GgufFiles, WhatF16CannotHoldIsRefusedAndNothingIsLeft) {
  GgufWriter w;
  TensorSource s{
      "big", {2, 32}, [](int64_t, int64_t count, float* out) { std::fill_n(out, count * 32, 7e4f); }};
  w.add(s, GgufDType::f16);
  try {
    w.write(path);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_HAS(e.what(), "tensor \"big\": holds 70000, beyond the range of F16");
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(GgufFiles, AVectorOfBlocksIsReadByElements) {
  std::string bytes = file(1, 0, tensor("v", {64}, 8, 0));
  for (int b = 0; b < 2; ++b) {
    bytes += le(uint16_t(0x3c00));
    for (int i = 0; i < 32; ++i) bytes += static_cast<char>(b * 32 + i);
  }
  std::ofstream(path, std::ios::binary) << bytes;
  const GgufFile f(path);
  std::vector<float> some(5);
  f.source(f.tensors()[0]).read(30, 5, some.data());
  EXPECT_EQ(some, (std::vector<float>{30, 31, 32, 33, 34}));
}

TEST_F(GgufFiles, FilesThatLieAreRefusedByName) {
  using T = GgufType;
  EXPECT_HAS(refusal(""), "not a GGUF file");
  EXPECT_HAS(refusal("GGML0000"), "not a GGUF file");
  EXPECT_HAS(refusal("GGUF"), "needs 4 bytes at offset 4");
  EXPECT_HAS(refusal(file(0, 0, "", 0, 32, 1)), "expected GGUF version 2 or 3, got 1");
  EXPECT_HAS(refusal(file(0, 0, "", 0, 32, 0x03000000)), "a big-endian file");
  EXPECT_HAS(refusal(file(0, UINT64_MAX, "")), "metadata keys do not fit");
  EXPECT_HAS(refusal(file(UINT64_MAX / 4, 0, "")), "tensors do not fit");
  EXPECT_HAS(refusal("GGUF" + le(3u) + le(uint64_t(0)) + le(uint64_t(1)) + text("a long key")),
             "needs 4 bytes");
  // Keys and values.
  EXPECT_HAS(refusal(file(0, 1, le(uint64_t(1) << 40) + "key")), "the length of a key is 1099511627776");
  EXPECT_HAS(refusal(file(0, 1, text("k") + le(13u))), "\"k\": expected a value type from 0 to 12, got 13");
  EXPECT_HAS(refusal(file(0, 1, key("k", T::text) + le(UINT64_MAX))),
             "\"k\": needs 18446744073709551615 bytes");
  EXPECT_HAS(refusal(file(0, 1, key("k", T::boolean) + '\2')), "a boolean of 0 or 1");
  EXPECT_HAS(refusal(file(0, 1, array("k", T::array, 1) + le(0u) + le(uint64_t(1)) + 'x')),
             "array of arrays");
  EXPECT_HAS(refusal(file(0, 1, array("k", T::u64, UINT64_MAX / 8))), "elements do not fit");
  EXPECT_HAS(refusal(file(0, 1, array("k", T::text, uint64_t(1) << 60))), "elements do not fit");
  EXPECT_HAS(refusal(file(0, 2, key("k", T::u8) + "1" + key("k", T::u8) + "2")),
             "\"k\": the key is there twice");
  // Tensors.
  const auto one = [](std::vector<uint64_t> dims, uint32_t type, uint64_t offset, size_t data) {
    return refusal(file(1, 0, tensor("t", dims, type, offset), data));
  };
  EXPECT_EQ(one({4, 2}, 0, 0, 32), "(accepted)");
  EXPECT_HAS(one({}, 0, 0, 32), "expected 1 to 4 dimensions, got 0");
  EXPECT_HAS(one({1, 1, 1, 1, 1}, 0, 0, 32), "got 5");
  EXPECT_HAS(one({4, 0}, 0, 0, 32), "dimensions of at least 1");
  EXPECT_HAS(one({4, uint64_t(1) << 63}, 0, 0, 32), "dimensions of at least 1");
  EXPECT_HAS(one({uint64_t(1) << 40, uint64_t(1) << 40}, 0, 0, 32), "overflows");
  EXPECT_HAS(one({4, 2}, 0, UINT64_MAX - 31, 32), "overflows");
  EXPECT_HAS(one({48, 2}, 2, 0, 64), "rows of whole blocks of 32 in Q4_0, got rows of 48");
  EXPECT_HAS(one({256}, 12, 0, 144), "expected F32, F16, BF16, Q8_0, Q4_0 or Q4_1, got Q4_K");
  EXPECT_HAS(one({256}, 99, 0, 144), "got type 99");
  EXPECT_HAS(one({4, 2}, 0, 4, 64), "multiple of 32, got 4");
  EXPECT_HAS(one({4, 2}, 0, 32, 32), "pass the end of the data section, which has 32");
  EXPECT_HAS(one({4, 2}, 0, 0, 31), "pass the end");
  EXPECT_HAS(refusal(file(2, 0, tensor("a", {4, 4}, 0, 0) + tensor("b", {4, 4}, 0, 32), 128)), "overlap");
  EXPECT_HAS(refusal(file(2, 0, tensor("a", {4}, 0, 0) + tensor("a", {4}, 0, 32), 64)),
             "\"a\": the tensor is there twice");
  EXPECT_HAS(refusal(file(1, 0, tensor(std::string(65, 'n'), {4}, 0, 0), 32)), "a tensor's name is 65");
  for (const uint32_t n : {0u, 3u, uint32_t(1) << 31})
    EXPECT_HAS(refusal(file(0, 1, key("general.alignment", T::u32) + le(n))), "power of two");
  EXPECT_HAS(refusal(file(0, 1, key("general.alignment", T::text) + text("32"))), "got \"32\"");
}

}  // namespace
}  // namespace hysparse
