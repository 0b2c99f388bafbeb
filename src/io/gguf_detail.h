// Internal to io: the parts of GGUF that can be tested alone.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace hysparse::gguf_detail {

constexpr size_t kAlignment = 32;  // of tensors, unless general.alignment says otherwise

struct Header {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;
  size_t data_begin = 0;  // offset of the data section in the file
};

// Validates a whole file by its header; reads no byte of the data section. `where` names the file.
Header parse_header(std::span<const std::byte> file, const std::string& where);

// Elements and bytes of a block.
int64_t block_size(GgufDType t);
size_t block_bytes(GgufDType t);

// `count` elements, whole blocks of them, from and to their stored form. encode() returns the index of the
// first element that the dtype cannot hold, count when there is none.
void decode(GgufDType t, const std::byte* from, float* to, size_t count);
size_t encode(GgufDType t, const float* from, std::byte* to, size_t count);

uint16_t half_from_float(float f);  // to nearest even; overflow gives an infinity

}  // namespace hysparse::gguf_detail
