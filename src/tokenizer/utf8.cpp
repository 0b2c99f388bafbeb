#include "tokenizer/utf8.h"

#include <cstring>

#include "tokenizer/tokenizer.h"

namespace hysparse {

Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Kind::valid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Kind::invalid, 1, 0};
  const size_t need = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  uint32_t code = lead & (0xFFu >> (need + 1));
  for (size_t i = 1; i < need; ++i) {
    if (at + i >= text.size()) return {Utf8Kind::incomplete, i, 0};
    const uint8_t b = byte(i);
    if (b < low || b > high) return {Utf8Kind::invalid, i, 0};
    code = code << 6 | (b & 0x3Fu);
    low = 0x80, high = 0xBF;
  }
  return {Utf8Kind::valid, need, code};
}

size_t utf8_valid_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    uint64_t word;
    if (text.size() - at >= sizeof word) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if ((word & 0x8080808080808080ull) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text, at);
    if (step.kind != Utf8Kind::valid) break;
    at += step.length;
  }
  return at;
}

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

std::string Utf8Stream::push(std::string_view bytes) {
  held_.append(bytes);
  std::string out;
  out.reserve(held_.size());
  size_t at = 0;
  while (at < held_.size()) {
    const size_t valid = utf8_valid_end(held_, at);
    out.append(held_, at, valid - at);
    at = valid;
    if (at == held_.size()) break;
    const Utf8Step step = utf8_step(held_, at);
    if (step.kind == Utf8Kind::incomplete) break;
    append_utf8(out, 0xFFFD);
    at += step.length;
  }
  held_.erase(0, at);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  if (!held_.empty()) append_utf8(out, 0xFFFD);  // what is held is one maximal subpart
  held_.clear();
  return out;
}

}  // namespace hysparse
