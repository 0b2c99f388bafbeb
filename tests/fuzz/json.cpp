// The JSON reader, and what it reads back from what is written.
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"
#include "io/json_value.h"
#include "target.h"

namespace hysparse::fuzz {

bool run_input(std::string_view input) {
  quote_text(input);
  nearest_name(input, {"hidden_size", "head_dim", "train.lr"});
  Json value;
  try {
    value = parse_json(input, "fuzz");
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "a bad text is the input's fault");
    require(std::strlen(e.what()) < 2000, "messages are short");
    return false;
  }
  for (int indent : {-1, 2})
    require(parse_json(dump_json(value, indent), "again") == value, "what is written reads back");
  return true;
}

std::vector<std::string> seeds() {
  return {
      R"({"a": 1, "b": [true, false, null], "c": {"d": -1.5e3, "e": "text \u00e9 \ud83d\ude00 \" \\ \n"}})",
      R"([[[[[[]]]]], {}, {"": ""}, 0, -0, 18446744073709551615, -9223372036854775808, 1e-300])",
      "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"",
      " 12 ",
      "null",
  };
}

std::vector<std::string> dictionary() {
  return {"{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "\\",
          "\\u",
          "\\ud83d",
          "\\ude00",
          "\"a\": 1,",
          "null",
          "true",
          "NaN",
          "1e999",
          "-",
          "0.1",
          "Infinity",
          "//",
          "\xed\xa0\x80",
          "\xff",
          std::string(1, '\0'),
          "[[[[[[[[[[[[[[[[",
          "{\"a\":{\"a\":{\"a\":"};
}

}  // namespace hysparse::fuzz
