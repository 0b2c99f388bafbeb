// The header as the enemy writes it: every case of a damaged or crafted file is an Error naming file and
// tensor.
#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/sanitizer.h"
#include "io/safetensors_detail.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace testing_io;
using namespace std::string_literals;

const std::string kOpen = "{";  // (gcc 12 warns about nothing at "{" + a temporary)

std::string length_bytes(uint64_t n) {
  std::string s(8, '\0');
  for (size_t i = 0; i < 8; ++i) s[i] = static_cast<char>(n >> (8 * i));
  return s;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_bytes(header.size()) + header + std::string(data_bytes, '\x01');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

class SafetensorsHeader : public ::testing::Test {
 protected:
  void refused(const std::string& content, std::vector<std::string> parts) {
    const auto path = dir_ / "w.safetensors";
    put(path, content);
    parts.insert(parts.begin(), path.string() + ": ");
    expect_input_error(
        parts, [&] { SafetensorsFile f(path); }, content.substr(0, 100));
  }
  void refused(const std::string& header, size_t data_bytes, const std::vector<std::string>& parts) {
    refused(file_of(header, data_bytes), parts);
  }
  // The one entry "t" between braces.
  void entry_refused(const std::string& dtype, const std::string& shape, const std::string& offsets,
                     size_t data_bytes, std::vector<std::string> parts) {
    parts.emplace_back("tensor \"t\"");
    refused(kOpen + entry("t", dtype, shape, offsets) + "}", data_bytes, parts);
  }
  SafetensorsFile accepted(const std::string& header, size_t data_bytes) {
    put(dir_ / "ok.safetensors", file_of(header, data_bytes));
    return SafetensorsFile(dir_ / "ok.safetensors");
  }
  TempDir dir_;
};

TEST_F(SafetensorsHeader, ReadsWhatIsWellFormed) {
  const SafetensorsFile f =
      accepted("{\"__metadata__\":{\"format\":\"pt\",\"\":\"\"}," + entry("b", "F32", "[2,3]", "[2,26]") +
                   "," + entry("a", "U8", "[2]", "[0,2]") + "," + entry("s", "F64", "[]", "[26,34]") + "," +
                   entry("none", "I64", "[0,4]", "[26,26]") + "}   ",
               34);
  EXPECT_EQ(f.entries().size(), 4u);
  EXPECT_EQ(f.metadata().at("format"), "pt");
  EXPECT_EQ(f.entry("b").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(f.entry("b").begin, 2u);
  EXPECT_EQ(f.entry("b").end, 26u);
  EXPECT_EQ(f.entry("s").shape.size(), 0u);
  EXPECT_EQ(f.entry("none").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(accepted("{}", 0).entries().size(), 0u);
  EXPECT_EQ(accepted("{\"__metadata__\":{}}", 0).entries().size(), 0u);
  EXPECT_EQ(
      accepted(kOpen + entry("a", "F8_E4M3", "[5]", "[0,5]") + "," + entry("b", "F4", "[3,2]", "[5,8]") + "}",
               8)
          .entries()
          .size(),
      2u);
}

TEST_F(SafetensorsHeader, BC26_ShapeAgainstOffsets) {
  entry_refused("F32", "[32,8]", "[0,65536]", 0, {"1024 bytes", "span 65536"});
  entry_refused("F32", "[32,8]", "[0,65536]", 65536, {"1024 bytes", "span 65536"});
  entry_refused("F64", "[4]", "[0,16]", 16, {"32 bytes", "span 16"});
  entry_refused("F32", "[]", "[0,0]", 0, {"4 bytes", "span 0"});
  entry_refused("F32", "[0]", "[0,4]", 4, {"0 bytes", "span 4"});
  entry_refused("F32", "[9223372036854775807]", "[0,4]", 4, {"overflows"});
  entry_refused("U8", "[4294967296,4294967296]", "[0,0]", 0, {"overflows"});  // 2^64 = 0 in 64 bits
  entry_refused("F32", "[4611686018427387905]", "[0,4]", 4, {"overflows"});   // 4 x this = 4 in 64 bits
  entry_refused("U8", "[0,4294967296,4294967296]", "[0,0]", 0, {"overflows"});
  entry_refused("U8", "[4294967296,4294967296,0]", "[0,0]", 0, {"overflows"});
  entry_refused("U8", "[18446744073709551615]", "[0,1]", 1, {"2^63"});
  entry_refused("U8", "[99999999999999999999]", "[0,1]", 1, {"non-negative integers"});
  entry_refused("U8", "[-1]", "[0,1]", 1, {"non-negative", "-1"});
  entry_refused("U8", "[1.0]", "[0,1]", 1, {"non-negative"});
  entry_refused("U8", "[\"1\"]", "[0,1]", 1, {"non-negative"});
  entry_refused("F4", "[3]", "[0,1]", 1, {"whole number of bytes"});
  std::string deep = "[1";
  for (int i = 0; i < 100; ++i) deep += ",1";
  entry_refused("U8", deep + "]", "[0,1]", 1, {"dimensions"});
}

TEST_F(SafetensorsHeader, BC26_HeaderLength) {
  const std::string header = kOpen + entry("t", "U8", "[4]", "[0,4]") + "}";
  for (uint64_t length :
       {uint64_t(1) << 63, ~uint64_t(0), ~uint64_t(0) - 7, uint64_t(1) << 32, uint64_t(header.size()) + 5})
    refused(length_bytes(length) + header + "1234", {"header length " + std::to_string(length)});
  refused(length_bytes(0) + header + "1234", {"header length 0"});
  refused(length_bytes(0), {"header length 0"});
  refused(length_bytes(1), {"header length 1 passes the end"});
  refused(length_bytes(header.size() - 1) + header + "1234", {"not valid JSON"});
  refused("", {"is empty"});
  refused("\x08"s, {"has 1 bytes"});
  refused("\x08\0\0\0\0\0\0"s, {"has 7 bytes"});
  const auto missing = dir_ / "missing.safetensors";
  expect_input_error({missing.string(), "No such file"}, [&] { SafetensorsFile f(missing); });
  expect_input_error({dir_.path().string(), "is a folder"}, [&] { SafetensorsFile f(dir_.path()); });
}

TEST_F(SafetensorsHeader, BC26_Offsets) {
  entry_refused("U8", "[4]", "[4,0]", 4, {"reversed"});
  entry_refused("U8", "[4]", "[-4,0]", 4, {"non-negative", "-4"});
  entry_refused("U8", "[4]", "[0,-4]", 4, {"non-negative"});
  entry_refused("U8", "[8]", "[0,8]", 4, {"pass the end", "cut short"});
  entry_refused("U8", "[4]", "[9223372036854775803,9223372036854775807]", 4, {"pass the end"});
  entry_refused("U8", "[4]", "[18446744073709551612,18446744073709551615]", 4, {"2^63"});
  entry_refused("U8", "[4]", "[0]", 4, {"two data_offsets"});
  entry_refused("U8", "[4]", "[]", 4, {"two data_offsets"});
  entry_refused("U8", "[4]", "[0,4,4]", 4, {"two data_offsets"});
  entry_refused("U8", "[4]", "4", 4, {"data_offsets"});
  entry_refused("U8", "[4]", "[0.0,4]", 4, {"data_offsets"});
  entry_refused("U8", "[4]", "[[0],4]", 4, {"expected"});
  entry_refused("U8", "[4]", "[1,5]", 5, {"hole"});
  const auto two = [](const std::string& a, const std::string& b) {
    return kOpen + entry("a", "U8", "[4]", a) + "," + entry("b", "U8", "[4]", b) + "}";
  };
  refused(two("[0,4]", "[0,4]"), 4, {"overlap", "\"a\"", "\"b\""});
  refused(two("[0,4]", "[3,7]"), 7, {"overlap", "\"a\"", "\"b\""});
  refused(two("[3,7]", "[0,4]"), 7, {"overlap", "\"a\"", "\"b\""});
  refused(two("[0,4]", "[5,9]"), 9, {"hole", "\"b\""});
  refused(two("[0,4]", "[4,8]"), 9, {"1 bytes after the last tensor", "\"b\""});
  refused(two("[0,4]", "[4,8]"), 7, {"pass the end", "\"b\""});
  refused("{}", 3, {"3 bytes after the last tensor"});
  // an empty tensor in the midst of another is an overlap; between two it is fine
  refused(kOpen + entry("a", "U8", "[4]", "[0,4]") + "," + entry("e", "U8", "[0]", "[2,2]") + "}", 4,
          {"overlap", "\"e\""});
  EXPECT_EQ(accepted(kOpen + entry("a", "U8", "[4]", "[0,4]") + "," + entry("e", "U8", "[0]", "[4,4]") + "," +
                         entry("b", "U8", "[4]", "[4,8]") + "}",
                     8)
                .entries()
                .size(),
            3u);
}

TEST_F(SafetensorsHeader, BC26_NotTheRightJson) {
  refused("not json", 0, {"not a JSON object"});
  refused(" {}", 0, {"not a JSON object"});
  refused("[]", 0, {"not a JSON object"});
  refused("{", 0, {"not valid JSON"});
  refused("{}{}", 0, {"not valid JSON"});
  refused("{}\0"s, 0, {"NUL"});
  refused("{\"t\":1}", 0, {"\"t\"", "object"});
  refused("{\"t\":[]}", 0, {"\"t\"", "object"});
  refused("{\"t\":null}", 0, {"object"});
  refused("{\"t\":{}}", 0, {"\"t\"", "no dtype"});
  refused("{\"t\":{\"dtype\":\"U8\"}}", 0, {"\"t\"", "no shape"});
  refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, {"\"t\"", "data_offsets"});
  refused("{\"t\":{\"dtype\":8,\"shape\":[],\"data_offsets\":[0,1]}}", 1, {"\"t\"", "dtype"});
  refused("{\"t\":{\"dtype\":[\"U8\"],\"shape\":[],\"data_offsets\":[0,1]}}", 1, {"\"t\"", "dtype"});
  refused("{\"t\":{\"dtype\":\"U8\",\"shape\":{},\"data_offsets\":[0,1]}}", 1, {"\"t\"", "shape"});
  refused("{\"t\":{\"dtype\":\"U8\",\"shape\":null,\"data_offsets\":[0,1]}}", 1, {"\"t\"", "shape"});
  refused("{\"t\":{\"dtype\":\"U8\",\"shape\":true,\"data_offsets\":[0,1]}}", 1, {"\"t\"", "shape"});
  refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"x\":1}}", 1,
          {"\"t\"", "unknown key \"x\""});
  refused("{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
          {"\"t\"", "duplicate key \"dtype\""});
  refused(kOpen + entry("t", "U8", "[]", "[0,1]") + "," + entry("t", "U8", "[]", "[1,2]") + "}", 2,
          {"duplicate key \"t\""});
  refused("{\"__metadata__\":{\"a\":1}}", 0, {"__metadata__", "text"});
  refused("{\"__metadata__\":{\"a\":[]}}", 0, {"__metadata__"});
  refused("{\"__metadata__\":{\"a\":{}}}", 0, {"__metadata__"});
  refused("{\"__metadata__\":[]}", 0, {"__metadata__"});
  refused("{\"__metadata__\":\"x\"}", 0, {"expected"});
  refused("{\"\xff\":{}}", 0, {"not valid JSON"});
  refused("{\"t\":{\"shape\":" + std::string(1000, '[') + "}}", 0, {"\"t\""});
  for (const char* dtype : {"f32", "F31", "", "FLOAT", "BF16 "})
    entry_refused(dtype, "[1]", "[0,1]", 1, {"unknown dtype"});
}

// A file of under 200 bytes must not make the reader allocate by what it claims.
TEST_F(SafetensorsHeader, BC26_ClaimsAllocateNothing) {
#if !defined(HYSPARSE_ASAN) && !defined(HYSPARSE_TSAN)  // which map terabytes of their own
  in_child([&] {
    const rlimit limit{size_t(600) << 20, size_t(600) << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    entry_refused("U8", "[1099511627776]", "[0,1099511627776]", 0, {"pass the end"});
    refused(length_bytes(uint64_t(1) << 40) + "{}", {"passes the end"});
  });
#endif
  put(dir_ / "sparse.safetensors", length_bytes(200'000'000) + "{");
  std::filesystem::resize_file(dir_ / "sparse.safetensors", 300'000'000);  // holes: no disk is used
  expect_input_error({"header length 200000000 is over the format's"},
                     [&] { SafetensorsFile f(dir_ / "sparse.safetensors"); });
}

// Time grows with the number of tensors, not with its square (CPU time: the machine may be busy with other
// things).
TEST_F(SafetensorsHeader, AHundredThousandTensorsAreQuick) {
  const auto seconds = [&](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      if (i) header += ',';
      header += entry(fmt::format("model.layers.{}.mlp.experts.{}.up_proj.weight", i % 997, i), "BF16",
                      "[2,2]", fmt::format("[{},{}]", i * 8, i * 8 + 8));
    }
    put(dir_ / "many.safetensors", file_of(header + "}", static_cast<size_t>(count) * 8));
    const std::clock_t start = std::clock();
    const SafetensorsFile f(dir_ / "many.safetensors");
    const std::clock_t end = std::clock();
    EXPECT_EQ(f.entries().size(), static_cast<size_t>(count));
    return static_cast<double>(end - start) / CLOCKS_PER_SEC;
  };
  const double few = std::min(seconds(10000), seconds(10000));  // about 0.02 s
  EXPECT_LT(seconds(100000), 50 * few + 0.5);  // about 0.3 s; a quadratic reader: 100 times few
}

TEST_F(SafetensorsHeader, UnknownNamesGetTheNearest) {
  const SafetensorsFile f = accepted(kOpen + entry("model.norm.weight", "U8", "[4]", "[0,4]") + "}", 4);
  expect_input_error({"ok.safetensors", "model.norm.wieght", "model.norm.weight"},
                     [&] { f.entry("model.norm.wieght"); });
}

}  // namespace
}  // namespace hysparse
