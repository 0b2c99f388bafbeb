#include "capi/guard.h"

#include <new>

namespace hysparse::capi {
namespace {

// Fixed, so that keeping a message cannot fail itself.
constexpr size_t kLongest = 4000;
thread_local char message[kLongest + 4];

int keep(int code, const char* text) noexcept {
  const size_t n = std::strlen(text);
  std::memcpy(message, text, std::min(n, kLongest));
  std::strcpy(message + std::min(n, kLongest), n > kLongest ? "..." : "");
  return code;
}

}  // namespace

const char* last_error() noexcept {
  return message;
}

int record_error() noexcept {
  try {
    throw;
  } catch (const Error& e) {
    const int code = e.kind() == ErrorKind::input         ? HYSPARSE_BAD_ARGUMENT
                     : e.kind() == ErrorKind::interrupted ? HYSPARSE_CANCELLED
                                                          : HYSPARSE_FAILURE;
    return keep(code, e.what());
  } catch (const CodedError& e) {
    return keep(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return keep(HYSPARSE_FAILURE, "out of memory");
  } catch (const std::exception& e) {
    return keep(HYSPARSE_FAILURE, e.what());
  } catch (...) {
    return keep(HYSPARSE_FAILURE, "a callback threw something that is no std::exception");
  }
}

}  // namespace hysparse::capi
