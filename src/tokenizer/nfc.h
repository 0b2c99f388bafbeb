// Unicode normalization form C of UTF-8 text.
#pragma once

#include <string>
#include <string_view>

namespace hysparse {

// Bytes that are not UTF-8 stay as they are and separate what is normalised. Linear but for runs of combining
// marks, which are sorted.
std::string to_nfc(std::string_view text);
// Quick and sure: true only for text that NFC leaves alone; false says nothing.
bool surely_nfc(std::string_view text);

}  // namespace hysparse
