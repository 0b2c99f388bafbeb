// The header reader of weight files.
#include <algorithm>
#include <cstring>
#include <memory>

#include "io/safetensors_detail.h"
#include "target.h"

namespace hysparse::fuzz {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  std::string s(8, '\0');
  for (size_t i = 0; i < 8; ++i) s[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  return s + header + std::string(data_bytes, 'd');
}

}  // namespace

bool run_input(std::string_view input) {
  // The header's length is hard to hit by chance: an input that begins with '{' is a header, and the data
  // section has the size that it asks for.
  std::string framed;
  if (!input.empty() && input.front() == '{') {
    framed = file_of(std::string(input), 64);
    input = framed;
  }
  // An exact copy on the heap, so that a sanitizer sees a read past the end.
  const std::unique_ptr<std::byte[]> copy(new std::byte[input.size()]);
  std::copy_n(reinterpret_cast<const std::byte*>(input.data()), input.size(), copy.get());
  safetensors_detail::Header header;
  try {
    header = safetensors_detail::parse_header({copy.get(), input.size()}, "fuzz");
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "a bad file is the input's fault");
    require(std::strlen(e.what()) < 2000, "messages are short");
    return false;
  }
  // Every byte of the data section belongs to exactly one tensor.
  require(header.data_begin <= input.size(), "the data section begins inside the file");
  std::vector<int> owners(input.size() - header.data_begin);
  for (const auto& [name, e] : header.entries) {
    require(e.begin <= e.end && e.end <= owners.size(), "tensors lie inside the data section");
    int64_t count = 1;
    for (int64_t d : e.shape) require(d >= 0 && !__builtin_mul_overflow(count, d, &count), "shapes multiply");
    require(static_cast<size_t>(count) * static_cast<size_t>(safetensors_detail::bits_of(e.dtype)) ==
                8 * (e.end - e.begin),
            "shape, dtype and offsets agree");
    for (size_t i = e.begin; i < e.end; ++i) ++owners[i];
    if (e.dtype == "F32" && count < 1000) {
      std::vector<double> values(static_cast<size_t>(count));
      safetensors_detail::convert_stored(copy.get() + header.data_begin + e.begin, e.dtype, values.data(),
                                         DType::f64, values.size());
    }
  }
  require(std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; }), "no overlap and no hole");
  return true;
}

std::vector<std::string> seeds() {
  const std::string one = R"({"t":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}})";
  const std::string two =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,8],"data_offsets":[0,32]},"b":{"dtype":"I64","shape":[4],"data_offsets":[32,64]}})";
  const std::string mixed =
      R"({"e":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"u":{"dtype":"U8","shape":[7,8],"data_offsets":[8,64]}}  )";
  return {one, two, mixed, file_of(one, 64), file_of(two, 64), file_of("{}", 0)};
}

std::vector<std::string> dictionary() {
  return {"{",         "}",
          "[",         "]",
          ",",         ":",
          "\"",        "\"dtype\"",
          "\"shape\"", "\"data_offsets\"",
          "\"F32\"",   "\"F16\"",
          "\"F4\"",    "[0,64]",
          "[64,0]",    "[0,0]",
          "[1,1]",     "\"__metadata__\":{",
          "null",      "\\u0000",
          "-",         "1e3",
          "{\"t\":",   "0,",
          "\xff",      std::string(1, '\0')};
}

}  // namespace hysparse::fuzz
