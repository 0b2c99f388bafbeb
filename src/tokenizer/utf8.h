// UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hysparse {

enum class Utf8Kind {
  valid,       // `length` bytes are one character
  invalid,     // `length` bytes can never become a character (a maximal subpart: what one U+FFFD replaces)
  incomplete,  // the text ends inside a character that is valid so far
};
struct Utf8Step {
  Utf8Kind kind;
  size_t length;        // >= 1
  uint32_t code_point;  // where valid
};
// What stands at text[at], at < text.size().
Utf8Step utf8_step(std::string_view text, size_t at);

// The end of the valid run that starts at `at` (== at when the byte there is invalid or incomplete).
size_t utf8_valid_end(std::string_view text, size_t at);

void append_utf8(std::string& out, uint32_t code_point);

}  // namespace hysparse
