// What answers must match, as clients send it: a regular expression behind "regex\n", a JSON schema behind
// "schema\n". Whatever is compiled is walked at random: each text that it accepts is one that it should.
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "engine/constraint.h"
#include "io/json_value.h"
#include "target.h"
#include "tokenizer/utf8.h"

namespace hysparse::fuzz {
namespace {

// Bytes, and some tokens of several.
std::shared_ptr<const TokenTrie> trie() {
  static const std::vector<std::string> pieces = {"\"", "{\"",      "\": ",       "\", \"",  "true",
                                                  "12", "\xc3\xa9", "\xc3\xa9\"", "]}",      "ab",
                                                  "  ", "",         "\\u",        "\xf0\x9f"};
  static const auto made = std::make_shared<const TokenTrie>(
      256 + static_cast<int64_t>(pieces.size()),
      [](int32_t id) {
        return id < 256 ? std::string(1, static_cast<char>(id)) : pieces[static_cast<size_t>(id) - 256];
      },
      std::vector<int64_t>{267});
  return made;
}

void walk(const std::shared_ptr<const Constraint>& constraint, bool json, Rng& rng) {
  ConstraintState state(constraint);
  std::string text;
  for (int step = 0; step < 64; ++step) {
    const std::shared_ptr<const TokenMask> mask = state.allowed();
    require(mask->test(267) == state.may_end(), "the end is allowed where the text may end");
    std::vector<int32_t> next;
    for (int32_t id = 0; id < trie()->vocab(); ++id) {
      require(mask->test(id) == state.allows(id), "the mask is what each token says");
      if (mask->test(id) && id != 267) next.push_back(id);
    }
    require(state.complete() == (state.may_end() && next.empty()), "complete: nothing can follow");
    require(!next.empty() || state.may_end(), "bytes are tokens: no way is a dead end");
    if (state.may_end()) {
      require(constraint->automaton().matches(text), "tokens and bytes agree");
      if (json) require(Json::accept(text), "what a schema accepts is JSON");
      if (json) require(utf8_valid_end(text, 0) == text.size(), "and UTF-8");
    }
    if (next.empty()) return;
    const int32_t id = next[rng.below(next.size())];
    text += trie()->bytes(id);
    require(state.advance(id), "an allowed token can be appended");
  }
}

}  // namespace

bool run_input(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const bool schema = input.substr(0, line) == "schema";
  const std::string_view source = input.substr(std::min(line + 1, input.size()));
  return accepted([&] {
    const auto made =
        schema ? Constraint::json_schema(source, trie(), "fuzz") : Constraint::regex(source, trie(), "fuzz");
    Rng rng(input.size());
    for (int i = 0; i < 3; ++i) walk(made, schema, rng);
  });
}

std::vector<std::string> seeds() {
  return {"regex\n(?:ab|[^x-z\\n]{2,4}|\\d+\\.\\d*)?(?<name>\\u00e9|\\x41)*[\\w-]$",
          "regex\n^[A-Z][a-z]+( [A-Z][a-z]+){0,3}$",
          R"(schema
{"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": -12,
 "maximum": 1050}, "l": {"type": "array", "items": {"$ref": "#/$defs/p"}, "minItems": 1, "maxItems": 3}},
 "required": ["n"], "additionalProperties": false, "$defs": {"p": {"enum": ["a", 1, null, {"b": [true]}]}}})",
          R"(schema
{"anyOf": [{"type": ["string", "null"], "pattern": "^\\d{2}[^\"]?$"}, {"const": 3}, {"type": "number"},
 {"prefixItems": [{"type": "boolean"}, {"format": "date", "type": "string"}], "items": false},
 {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}]})"};
}

std::vector<std::string> dictionary() {
  return {"{1000}",
          "{0,99999}",
          "(?:",
          ")",
          "[^",
          "]",
          "-",
          "|",
          "*",
          "+?",
          "\\uD83D\\uDE00",
          "\\D",
          "\\W",
          "\\S",
          ".",
          "^",
          "$",
          "\\x",
          "(?=",
          "\\b",
          "\xc3\xa9",
          "\xf0\x9f\x98\x80",
          "\xff",
          "[[:alpha:]]",
          "schema\n",
          "regex\n",
          "\"minLength\": 20000, ",
          "\"minimum\": -999999999999999, ",
          "\"exclusiveMaximum\": 999999999999999, ",
          "\"type\": [\"object\", \"array\"], ",
          "\"$ref\": \"#/$defs/p\", ",
          "\"allOf\": [{}], ",
          "{}",
          "true",
          "false",
          "\"required\": [\"x\"], ",
          "\"additionalProperties\": true, ",
          "\"minItems\": 0, ",
          "\"maxItems\": 0, ",
          "\"properties\": {\"\": {}}, ",
          "\"pattern\": \"a|b\", ",
          "\"format\": \"uuid\", ",
          "\"enum\": [\"\\u0000\"], ",
          "\"minProperties\": 1, ",
          "1e300",
          "null"};
}

}  // namespace hysparse::fuzz
