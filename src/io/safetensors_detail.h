// Internal to io: the parts of safetensors that can be tested alone.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "io/safetensors.h"

namespace hysparse::safetensors_detail {

struct Header {
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
  size_t data_begin = 0;  // offset of the data section in the file
};

// Validates a whole file by its header; reads no byte of the data section. `where` names the file.
Header parse_header(std::span<const std::byte> file, const std::string& where);

// Bits an element of a safetensors dtype; 0 = no such dtype.
int bits_of(std::string_view dtype);
// The name under which a DType is stored.
std::string_view stored_name(DType dtype);
std::string shape_text(const std::vector<int64_t>& shape);  // "[32, 8]"

// `n` elements of a stored dtype (any alignment) to `to`; false when the pair is not supported.
bool convert_stored(const std::byte* from, std::string_view dtype, void* to, DType to_dtype, size_t n);
// `n` elements from memory to their stored form; false when the pair is not supported.
bool convert_to_stored(const std::byte* from, DType from_dtype, std::byte* to, DType as, size_t n);

NonFinite count_nonfinite(const std::byte* from, std::string_view dtype, size_t n);

bf16 bf16_from_double(double d);  // one rounding to nearest even (by way of float it would be two)
float float_from_half(uint16_t h);

}  // namespace hysparse::safetensors_detail
