#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

struct Alphabet {
  std::array<uint16_t, 256> of_byte{};
  std::array<int16_t, 0x144> of_char{};
};

constexpr bool stands_for_itself(int b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (int16_t& b : a.of_char) b = -1;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const int c = stands_for_itself(b) ? b : next++;
    a.of_byte[static_cast<size_t>(b)] = static_cast<uint16_t>(c);
    a.of_char[static_cast<size_t>(c)] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

uint32_t alphabet_char(uint8_t byte) {
  return kAlphabet.of_byte[byte];
}

int alphabet_byte(uint32_t c) {
  return c < kAlphabet.of_char.size() ? kAlphabet.of_char[c] : -1;
}

std::string to_alphabet(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_utf8(out, alphabet_char(static_cast<uint8_t>(b)));
  return out;
}

bool from_alphabet(std::string_view text, std::string& bytes) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const int b = step.kind == Utf8Kind::valid ? alphabet_byte(step.code_point) : -1;
    if (b < 0) return false;
    out.push_back(static_cast<char>(b));
    at += step.length;
  }
  bytes = std::move(out);
  return true;
}

}  // namespace hysparse
