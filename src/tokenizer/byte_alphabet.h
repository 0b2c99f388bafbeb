// The printable alphabet in which byte-level tokenizers write bytes: bytes that are printable Latin-1 stand
// for themselves, the other 68 get U+0100 onwards in ascending order ("Ġ" is the space).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hysparse {

uint32_t alphabet_char(uint8_t byte);
int alphabet_byte(uint32_t code_point);  // -1: not a character of the alphabet
std::string to_alphabet(std::string_view bytes);
// False (and `bytes` untouched) when some character is not of the alphabet.
bool from_alphabet(std::string_view text, std::string& bytes);

}  // namespace hysparse
