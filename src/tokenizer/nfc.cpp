#include "tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

// Blocks without a single combining or composing character.
bool inert(uint32_t c) {
  return c < 0x300 || (c >= 0x400 && c < 0x483) || (c >= 0x48A && c < 0x591) || (c >= 0x2010 && c < 0x2071) ||
         (c >= 0x3000 && c < 0x302A) || (c >= 0x3041 && c < 0x3099) || (c >= 0x309B && c < 0xA66F) ||
         (c >= 0xAC00 && c < 0xD7A4) || (c >= 0xFF00 && c < 0xFFF0);
}

int combining_class(int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

void append_normalised(std::string& out, std::string_view valid) {
  std::vector<int32_t> chars;
  chars.reserve(valid.size());
  for (size_t at = 0; at < valid.size();) {
    const Utf8Step step = utf8_step(valid, at);
    at += step.length;
    int32_t parts[32];
    int last_class = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        static_cast<int32_t>(step.code_point), parts, 32,
        static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &last_class);
    HYSPARSE_CHECK(n >= 0 && n <= 32, "Unicode decomposition failed: {}", n);
    chars.insert(chars.end(), parts, parts + n);
  }
  // Canonical order: each run of marks sorted by class, stably.
  for (size_t i = 0; i < chars.size();) {
    if (combining_class(chars[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < chars.size() && combining_class(chars[end]) != 0) ++end;
    std::stable_sort(chars.begin() + static_cast<std::ptrdiff_t>(i),
                     chars.begin() + static_cast<std::ptrdiff_t>(end),
                     [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
  const utf8proc_ssize_t n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  HYSPARSE_CHECK(n >= 0, "Unicode composition failed: {}", n);
  for (utf8proc_ssize_t i = 0; i < n; ++i)
    append_utf8(out, static_cast<uint32_t>(chars[static_cast<size_t>(i)]));
}

}  // namespace

bool surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (step.kind == Utf8Kind::valid && !inert(step.code_point)) return false;
    at += step.length;
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_valid_end(text, at);
    const std::string_view valid = text.substr(at, end - at);
    if (surely_nfc(valid))
      out += valid;
    else
      append_normalised(out, valid);
    at = end;
    if (at < text.size()) {
      const size_t bad = utf8_step(text, at).length;
      out += text.substr(at, bad);
      at += bad;
    }
  }
  return out;
}

}  // namespace hysparse
