// From tokens' bytes to the text a reader sees: whole UTF-8 characters, nothing of a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hysparse {

// Ends at the first stop string. What may still become one is held back; the pieces handed out, joined, are
// the text up to just before it. The stop whose last byte comes first wins (of several that end there, the
// longest), so the result does not depend on how the text was cut into tokens.
class TextStream {
 public:
  // Throws Error(input) for an empty stop string or one that is not UTF-8.
  explicit TextStream(std::vector<std::string> stops = {});

  // Bytes of the next token; returns text that is now certain. Nothing more once stopped().
  std::string push(std::string_view bytes);
  // The end: releases what was held back, a cut character as U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string match(std::string text);
  size_t held_back() const;

  std::vector<std::string> stops_;
  size_t longest_ = 0;
  Utf8Stream utf8_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace hysparse
