// The edge between C and C++: exceptions become codes and a message, structs are taken by their size.
#pragma once

#include <cxxabi.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "base/error.h"
#include "hysparse/status.h"

namespace hysparse::capi {

// A failure with a code of its own, beside those that an ErrorKind means.
class CodedError : public std::runtime_error {
 public:
  CodedError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

const char* last_error() noexcept;
// Keeps the message of the exception that is being handled; returns its code.
int record_error() noexcept;

// What every exported function does: runs `body`, which returns a code >= 0.
template <class Body>
int guarded(Body&& body) {
  try {
    return body();
  } catch (const abi::__forced_unwind&) {
    throw;  // the end of this thread (pthread_exit within a callback), no error: it must go on
  } catch (...) {
    return record_error();
  }
}

template <class T>
T& required(T* pointer, const char* name) {
  if (!pointer) throw expected_error(name, "a pointer", "NULL");
  return *pointer;
}

// [data, data + count), which may be NULL when it is empty.
template <class T>
const T* array(const T* data, size_t count, const char* name) {
  if (!data && count > 0) throw expected_error(name, fmt::format("{} elements", count), "NULL");
  return data;
}

inline constexpr size_t kMaxStruct = 4096;  // a larger `size` was never set

// The caller's options over `defaults`; NULL: the defaults. Fields of later versions must be zero.
template <class T>
T take_options(const T* given, const T& defaults, const char* name) {
  if (!given) return defaults;
  T out = defaults;
  if (given->size < sizeof(T) || given->size > kMaxStruct)
    throw expected_error(std::string(name) + ": size", std::to_string(sizeof(T)), std::to_string(given->size),
                         "set the options with their _INIT macro");
  std::memcpy(&out, given, sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(T); i < given->size; ++i)
    if (bytes[i]) throw input_error(name, "sets an option that this version of the library does not know");
  return out;
}

// Fills the caller's struct, which may be of a later version (what it has more stays as it is).
template <class T>
void check_result(const T* given, const char* name) {
  const size_t size = required(given, name).size;
  if (size < sizeof(T) || size > kMaxStruct)
    throw expected_error(std::string(name) + ": size", std::to_string(sizeof(T)), std::to_string(size),
                         "set it to sizeof before the call");
}
template <class T>
void put_result(T* given, T value) {
  value.size = given->size;
  std::memcpy(given, &value, sizeof(T));
}

// Memory that hysparse_free takes, with one zero byte behind.
inline void* copy_out(const void* data, size_t bytes) {
  auto* out = static_cast<char*>(std::malloc(bytes + 1));
  if (!out) throw std::bad_alloc();
  if (bytes) std::memcpy(out, data, bytes);
  out[bytes] = 0;
  return out;
}

}  // namespace hysparse::capi
