// Which sanitizer this is built with (HYSPARSE_ASAN, HYSPARSE_TSAN), and borders that AddressSanitizer
// watches, for memory that is handed out in pieces. Nothing in other builds.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define HYSPARSE_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define HYSPARSE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HYSPARSE_ASAN 1
#elif __has_feature(thread_sanitizer)
#define HYSPARSE_TSAN 1
#endif
#endif
#ifdef HYSPARSE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace hysparse {

#ifdef HYSPARSE_ASAN
inline constexpr size_t kBorder = 64;  // bytes between pieces
inline void forbid(const void* p, size_t bytes) {
  __asan_poison_memory_region(p, bytes);
}
inline void permit(const void* p, size_t bytes) {
  __asan_unpoison_memory_region(p, bytes);
}
#else
inline constexpr size_t kBorder = 0;
inline void forbid(const void*, size_t) {}
inline void permit(const void*, size_t) {}
#endif

}  // namespace hysparse
