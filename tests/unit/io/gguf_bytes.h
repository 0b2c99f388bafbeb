// GGUF files put together byte by byte, for what the writer would never write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace hysparse::gguf_bytes {

template <class T>
std::string le(T v) {
  return std::string(reinterpret_cast<const char*>(&v), sizeof v);
}
inline std::string text(const std::string& s) {
  return le(uint64_t(s.size())) + s;
}
inline std::string key(const std::string& name, GgufType type) {
  return text(name) + le(static_cast<uint32_t>(type));
}
inline std::string array(const std::string& name, GgufType element, uint64_t count) {
  return key(name, GgufType::array) + le(static_cast<uint32_t>(element)) + le(count);
}
// `dims` in the file's order: the length of a row first.
inline std::string tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
                          uint64_t offset) {
  std::string s = text(name) + le(static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) s += le(d);
  return s + le(type) + le(offset);
}
inline std::string file(uint64_t tensors, uint64_t keys, const std::string& rest, size_t data = 0,
                        size_t align = 32, uint32_t version = 3) {
  std::string s = "GGUF" + le(version) + le(tensors) + le(keys) + rest;
  s.append((align - s.size() % align) % align, '\0');
  return s + std::string(data, 'd');
}

}  // namespace hysparse::gguf_bytes
