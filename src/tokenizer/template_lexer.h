// Internal to the tokenizer: a chat template cut into text and the tokens of its tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hysparse::chat {

struct Lexeme {
  enum class Kind {
    text,
    output_begin,
    output_end,
    tag_begin,
    tag_end,
    name,
    string,
    integer,
    real,
    sign,
    end
  } kind;
  std::string text;  // a string's without quotes and escapes
  int line;
};

// As Jinja with trim_blocks and lstrip_blocks: a line feed right behind a tag goes, and blanks between the
// beginning of a line and a tag; "-" takes all white space on its side, "+" leaves it. One line feed at the
// very end goes.
std::vector<Lexeme> lex_template(std::string_view source, const std::string& where);

}  // namespace hysparse::chat
