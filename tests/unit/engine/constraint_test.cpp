#include "engine/constraint.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "engine/json_schema.h"
#include "engine/pattern.h"
#include "engine/sampler.h"
#include "io/json_value.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

constexpr int32_t kEos = 300;

// All bytes by themselves, tokens of several bytes (parts of characters, quotes with letters, JSON's joints),
// one twice, one without bytes, an end.
std::shared_ptr<const TokenTrie> vocabulary() {
  static const std::vector<std::string> more = {
      "{\"",  "\":", "\": ", "\",",  ", \"", "\"}",      "true",     "false",    "null", "ab",       "abc",
      "the ", "12",  "007",  "3.5",  "-1",   "\xf0\x9f", "\x98\x80", "\xe2\x82", "\xc3", "\xff\xfe", "e\xcc",
      "\\u",  "\\n", "d8",   "\n  ", "  ",   "]}",       "},{",      "ab",       "\"\""};
  static const auto trie = std::make_shared<const TokenTrie>(
      int64_t(kEos) + 1,
      [](int32_t id) -> std::string {
        if (id < 256) return {char(id)};
        return size_t(id - 256) < more.size() ? more[size_t(id - 256)] : std::string();
      },
      std::vector<int64_t>{kEos});
  return trie;
}

std::shared_ptr<const Constraint> regex(const std::string& p) {
  return Constraint::regex(p, vocabulary());
}
bool matches(const std::string& pattern, const std::string& text) {
  return regex(pattern)->automaton().matches(text);
}
void refused(const std::function<void()>& call, const std::string& named) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << named;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
  }
}

TEST(Pattern, MatchesWholeTexts) {
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> cases = {
      {"", {""}, {"a"}},
      {"abc", {"abc"}, {"ab", "abcd", ""}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"(a|b)*c", {"c", "abbac"}, {"ab", "ca"}},
      {"a{2,3}", {"aa", "aaa"}, {"a", "aaaa"}},
      {"a{2}b{0,1}c{1,}", {"aac", "aabccc"}, {"aab", "aabbc"}},
      {"x*?y+?z??", {"y", "xxyyz"}, {"x", "xz"}},
      {"[a-c]+-[^a-c]", {"abc-d", "a-\xe2\x82\xac"}, {"a-b", "a-\xff"}},
      {"[]a-]+", {"]a-"}, {"b"}},
      {"[\\]\\\\^x-]", {"]", "\\", "^", "x", "-"}, {"a"}},
      {"\\d{3}\\.\\w+\\s\\S\\D\\W", {"123.a_9 xx!"}, {"123xa_9 xx!"}},
      {".",
       {"a", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\r"},
       {"\n", "", "ab", "\xe2\x82", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}},
      {"[\\u0100-\\u2000]", {"\xc4\x80", "\xe2\x80\x80"}, {"\xc3\xbf", "\xe2\x80\x81"}},
      {"\\ud83d\\ude00|\\x41|\\t", {"\xf0\x9f\x98\x80", "A", "\t"}, {"a"}},
      {"(?:ab)+(?<n>c)(?P<m>d)", {"abcd", "ababcd"}, {"cd"}},
      {"^ab$", {"ab"}, {"^ab$"}},
      {"^(?:a|b)$", {"a", "b"}, {"ab"}},
      {"\\$\\^\\{\\}", {"$^{}"}, {}},
      {"}]", {"}]"}, {}},
  };
  for (const auto& [pattern, yes, no] : cases) {
    for (const auto& t : yes) EXPECT_TRUE(matches(pattern, t)) << pattern << " should match " << t;
    for (const auto& t : no) EXPECT_FALSE(matches(pattern, t)) << pattern << " should not match " << t;
  }
}

TEST(Pattern, WhatIsOutsideIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"(?=a)", "look-around"},
                                                                  {"(?!a)", "look-around"},
                                                                  {"(?<=a)b", "look-behind"},
                                                                  {"(?i)a", "flags"},
                                                                  {"(a)\\1", "\\1"},
                                                                  {"\\bword", "\\b"},
                                                                  {"\\p{L}", "\\p"},
                                                                  {"a^b", "^ inside"},
                                                                  {"a$b", "$ inside"},
                                                                  {"(a$)", "$ inside"},
                                                                  {"^a|b$", "beside |"},
                                                                  {"*a", "repetition of nothing"},
                                                                  {"a**", "of a repetition"},
                                                                  {"a{3,2}", "reversed"},
                                                                  {"a{x}", "no repetition"},
                                                                  {"[b-a]", "reversed"},
                                                                  {"[a", "without its ]"},
                                                                  {"(a", "without its )"},
                                                                  {"a)", "without its ("},
                                                                  {"[[:alpha:]]", "[:name:]"},
                                                                  {"[\\d-z]", "no character"},
                                                                  {"\\", "at the end"},
                                                                  {"\\x4", "hexadecimal"},
                                                                  {"\\ud83d", "surrogate"},
                                                                  {"\xff", "UTF-8"},
                                                                  {"[^\\u0000-\\U]", "\\U"},
                                                                  {std::string(300, '('), "nested"},
                                                                  {std::string(20000, 'a'), "longer than"},
                                                                  {"[^\\s\\S]", "no text at all"}};
  for (const auto& [pattern, what] : cases) refused([&] { regex(pattern); }, what);
}

// The known ways to make an automaton explode; each is refused in a moment, with little memory.
TEST(Pattern, CatastrophesAreRefused) {
  for (const char* p : {"(a|b)*a(a|b){20}", "((((a{100}){100}){100}){100}", "(((a{100}){100}){100}){100}",
                        "(.*a){30}(.|b){200}c", "(((){1000}){1000}){1000}", "(x{1,500}){1,500}",
                        "(a?){500}a{500}(b?a?){9000}"}) {
    EXPECT_THROW(regex(p), Error) << p;
  }
  EXPECT_TRUE(matches("(a*)*(a*)*b", std::string(10000, 'a') + "b"));  // harmless to an automaton
  EXPECT_TRUE(matches(".{0,2000}", std::string(2000, 'x')));
}

TEST(TokenTrie, MaskIsWhatATokenByTokenCheckSays) {
  const auto trie = vocabulary();
  for (const char* p : {"[a-z ]*", "\"(\\d+|ab?c?)\"", ".{3}", "\\{\"a\": (true|null|-?\\d{1,3})\\}"}) {
    const auto c = regex(p);
    for (int32_t s = 0; s < c->automaton().size(); ++s) {
      const auto mask = c->mask(s);
      for (int32_t id = 0; id < kEos; ++id) {
        int32_t t = s;
        for (const char b : trie->bytes(id)) {
          t = c->automaton().next(t, uint8_t(b));
          if (t == Automaton::kDead) break;
        }
        EXPECT_EQ(mask->test(id), t != Automaton::kDead && !trie->bytes(id).empty()) << p << " token " << id;
      }
      EXPECT_EQ(mask->test(kEos), c->automaton().accepts(s));
    }
  }
}

TEST(ConstraintState, CopiesGoTheirOwnWay) {
  ConstraintState a(regex("ab+c"));
  EXPECT_FALSE(a.advance('b'));
  EXPECT_FALSE(a.allows(kEos));
  EXPECT_TRUE(a.advance('a'));
  ConstraintState b = a;
  EXPECT_TRUE(a.advance('b'));
  EXPECT_TRUE(a.advance('c'));
  EXPECT_TRUE(a.complete());
  EXPECT_TRUE(a.allows(kEos));
  EXPECT_FALSE(a.advance(kEos));
  EXPECT_EQ(a.allowed()->count(), 1);
  EXPECT_FALSE(b.advance('c'));
  EXPECT_FALSE(b.allows(256 + 9));  // "ab" from here would be aab
  EXPECT_TRUE(b.advance('b'));
  EXPECT_FALSE(b.may_end());
}

// ---- schemas

std::shared_ptr<const Constraint> schema(const std::string& s) {
  return Constraint::json_schema(s, vocabulary());
}
bool valid(const std::string& s, const std::string& text) {
  return schema(s)->automaton().matches(text);
}

TEST(JsonSchema, AcceptsWhatIsValidAndNothingElse) {
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::vector<std::string>>> cases = {
      {R"({"type":"boolean"})", {"true", "false"}, {"null", "True", "\"true\""}},
      {R"({"type":["null","integer"],"minimum":5,"maximum":11})",
       {"null", "5", "11", "9"},
       {"4", "12", "05", "-5"}},
      {R"({"type":"integer"})", {"0", "-1", "123456789012345"}, {"00", "-", "1.0", "+1", "1e3"}},
      {R"({"type":"integer","minimum":-12,"exclusiveMaximum":103})",
       {"-12", "-1", "0", "99", "102", "100"},
       {"-13", "103", "-012", "1000"}},
      {R"({"type":"integer","maximum":-7})", {"-7", "-1000"}, {"-6", "0", "7"}},
      {R"({"type":"number"})", {"0", "-0.5", "1e5", "3.25E-07"}, {".5", "1.", "01", "1e", "Infinity", "NaN"}},
      {R"({"type":"string"})",
       {"\"\"", "\"a\xe2\x82\xac\\n\\u00e9\\ud83d\\ude00\\/\""},
       {"\"", "\"a\nb\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xff\"", "'a'"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"\xf0\x9f\x98\x80\\n\xc3\xa9\""},
       {"\"a\"", "\"abcd\""}},
      {R"({"type":"string","pattern":"^a\"\\n[^b]$"})",
       {"\"a\\\"\\nz\"", "\"a\\\"\\n\\\"\"", "\"a\\\"\\n\\\\\""},
       {"\"a\"\\nz\"", "\"a\\\"\\nb\"", "\"a\\\"\\n\"\""}},
      {R"({"type":"string","pattern":"\\d\\d"})", {"\"x42y\"", "\"42\""}, {"\"4a2\""}},
      {R"({"type":"string","format":"date"})",
       {"\"2024-02-28\"", "\"1999-12-31\""},
       {"\"2024-02-30\"", "\"2024-13-01\"", "\"24-01-01\""}},
      {R"({"type":"string","format":"ipv4"})",
       {"\"255.0.10.199\""},
       {"\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
      {R"({"enum":["a",1,null,{"b":[true]},"\u00e9\""]})",
       {"\"a\"", "1", "null", "{\"b\":[true]}", "\"\xc3\xa9\\\"\""},
       {"\"b\"", "a"}},
      {R"({"const":"x","type":"string"})", {"\"x\""}, {"x"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
       {"[true]", "[true, false]", "[\n  true,\n  false\n]"},
       {"[]", "[true,]", "[true,true,true]", "[true true]"}},
      {R"({"type":"array","items":{"type":"null"},"minItems":2})",
       {"[null,null]", "[null,null,null,null]"},
       {"[null]", "[]"}},
      {R"({"type":"array","items":{"type":"null"}})", {"[]", "[ ]", "[null]", "[null,null,null]"}, {"[,]"}},
      {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":false})",
       {"[null,true]"},
       {"[null]", "[null,true,1]"}},
      {R"({"type":"array","prefixItems":[{"type":"null"}],"items":{"const":1},"minItems":2,"maxItems":3})",
       {"[null,1]", "[null,1,1]"},
       {"[null]", "[null,1,1,1]"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"boolean"},"c":{"const":3}},"required":["b"],"additionalProperties":false})",
       {"{\"b\":true}", "{\"a\": null, \"b\": false}", "{\"b\":true,\"c\":3}",
        "{\n  \"a\": null,\n  \"b\": true,\n  \"c\": 3\n}"},
       {"{}", "{\"a\":null}", "{\"b\":true,}", "{,\"b\":true}", "{\"b\":true,\"d\":1}",
        "{\"c\":3,\"b\":true}"}},
      {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}}})",
       {"{}", "{ }", "{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}"},
       {"{\"b\":null,\"a\":null}"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {"{\"x\":1}", "{\"x\":1,\"y\":2}"},
       {"{}", "{\"x\":true}", "{\"x\":1,\"y\":2,\"z\":3}"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {"{\"a\":1}"}},
      {R"({"anyOf":[{"type":"null"},{"$ref":"#/$defs/p"}],"$defs":{"p":{"type":"array","items":{"$ref":"#/$defs/q"}},"q":{"const":1}}})",
       {"null", "[1,1]"},
       {"1", "[2]"}},
      {R"({"allOf":[{"type":"null"}],"title":"t","description":"d","default":null})", {"null"}, {"1"}},
      {R"({})", {"1", "\"a\"", "[[[[1]]]]", "{\"a\":{\"b\":[null]}}"}, {"[[[[[1]]]]]", "x"}},
      {R"({"type":"object"})", {"{}", "{\"a\":{\"b\":{\"c\":[1]}}}"}, {"[]", "1"}},
      {R"(true)", {"1"}, {""}},
  };
  for (const auto& [s, yes, no] : cases) {
    for (const auto& t : yes) EXPECT_TRUE(valid(s, t)) << s << " should take " << t;
    for (const auto& t : no) EXPECT_FALSE(valid(s, t)) << s << " should not take " << t;
  }
}

TEST(JsonSchema, IntegerRangesAreExact) {
  Rng rng(3);
  for (int round = 0; round < 60; ++round) {
    const auto pick = [&] { return int64_t(rng.below(2500)) - 1250; };
    const int64_t a = pick(), b = pick(), lo = std::min(a, b), hi = std::max(a, b);
    const auto c = schema(fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", lo, hi));
    for (int64_t v = -1400; v <= 1400; ++v)
      EXPECT_EQ(c->automaton().matches(std::to_string(v)), lo <= v && v <= hi) << lo << ' ' << hi << ' ' << v;
  }
}

TEST(JsonSchema, WhatIsOutsideIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"oneOf":[{"type":"null"}]})", "oneOf"},
      {R"({"not":{"type":"null"}})", "not"},
      {R"({"type":"number","minimum":1})", "minimum"},
      {R"({"type":"integer","multipleOf":2})", "multipleOf"},
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","contains":{}})", "contains"},
      {R"({"type":"object","patternProperties":{}})", "patternProperties"},
      {R"({"type":"string","format":"email"})", "email"},
      {R"x({"type":"string","pattern":"(?=a)"})x", "look-around"},
      {R"({"type":"string","pattern":"a","maxLength":3})", "exclude"},
      {R"({"type":"strnig"})", "strnig"},
      {R"({"type":7})", "type"},
      {R"({"properties":{"a":{"typ":"null"}}})", ".a"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"items":{"$ref":"#/$defs/a"}}}})", "leads to itself"},
      {R"({"$ref":"http://example.org/x"})", "$ref"},
      {R"({"$ref":"#/$defs/none"})", "not there"},
      {R"({"allOf":[{},{}]})", "allOf"},
      {R"({"enum":[]})", "enum"},
      {R"({"enum":["a"],"type":"integer"})", "no value"},
      {R"({"type":"integer","minimum":3,"maximum":2})", "no integer"},
      {R"({"type":"string","minLength":3,"maxLength":2})", "less than"},
      {R"({"type":"string","maxLength":1e30})", "maxLength"},
      {R"({"type":"string","maxLength":-1})", "maxLength"},
      {R"({"type":"array","maxItems":20000,"items":{"type":"array","maxItems":20000}})", "too complex"},
      {R"({"type":"object","required":["x"],"additionalProperties":false})", "none of the properties"},
      {R"(false)", "false"},
      {R"([])", "schema"},
      {R"({"a":)", "JSON"},
  };
  for (const auto& [s, what] : cases) refused([&] { schema(s); }, what);
  std::string deep = "{}";
  for (int i = 0; i < 30; ++i) deep = R"({"items":)" + deep + "}";
  EXPECT_THROW(schema(deep + std::string(1, '}')), Error);
  std::string wide = R"({"anyOf":[)";
  for (int i = 0; i < 3000; ++i) wide += R"({"type":"object"},)";
  refused([&] { schema(wide + "{}]}"); }, "too complex");
}

// Logits that say nothing: whatever is drawn parses, is valid by an independent reading of the schema, and is
// UTF-8; the masks alone hold it together.
TEST(JsonSchema, RandomDrawsAreAlwaysValid) {
  const std::string s = R"({"type":"object","properties":{
      "name":{"type":"string","maxLength":12},
      "kind":{"enum":["cat","dog","\u20ac"]},
      "age":{"type":"integer","minimum":-3,"maximum":120},
      "weight":{"type":"number"},
      "tags":{"type":"array","items":{"type":"string","pattern":"^[a-z\u00e9\"]{1,4}$"},"minItems":1,"maxItems":3},
      "home":{"anyOf":[{"type":"null"},{"type":"object","properties":{"zip":{"type":"string","pattern":"^\\d{5}$"}},"required":["zip"]}]},
      "day":{"type":"string","format":"date"}},
      "required":["name","kind","age","tags","home"],"additionalProperties":false})";
  const auto constraint = schema(s);
  SamplerScratch scratch;
  std::vector<float> logits(kEos + 1);
  std::set<std::string> seen;
  for (uint64_t draw = 0; draw < 1000; ++draw) {
    Rng rng(draw);
    SamplerOptions o;
    o.seed = draw;
    const Sampler sampler(o, kEos + 1);
    ConstraintState state(constraint);
    std::string text;
    for (uint64_t i = 0;; ++i) {
      ASSERT_LT(i, 2000u) << text;
      for (float& v : logits) v = float(rng.uniform() * 16);
      const auto mask = state.allowed();
      ASSERT_GT(mask->count(), 0) << text;
      const int32_t t =
          sampler.sample(TensorView(logits.data(), DType::f32, {kEos + 1}), i, scratch, mask.get());
      ASSERT_TRUE(state.allows(t));
      if (t == kEos) break;
      ASSERT_TRUE(state.advance(t));
      text += constraint->trie().bytes(t);
    }
    ASSERT_EQ(utf8_valid_end(text, 0), text.size());
    const Json j = parse_json(text, text);
    ASSERT_TRUE(j.is_object());
    for (const char* key : {"name", "kind", "age", "tags", "home"}) ASSERT_TRUE(j.contains(key)) << text;
    for (const auto& [key, v] : j.items())
      ASSERT_TRUE((std::set<std::string>{"name", "kind", "age", "weight", "tags", "home", "day"}.count(key)))
          << text;
    size_t characters = 0;
    for (const char c : j["name"].get<std::string>()) characters += (uint8_t(c) & 0xc0) != 0x80;
    ASSERT_LE(characters, 12u) << text;
    const auto kind = j["kind"].get<std::string>();
    ASSERT_TRUE(kind == "cat" || kind == "dog" || kind == "\xe2\x82\xac") << text;
    ASSERT_TRUE(j["age"].is_number_integer() && j["age"] >= -3 && j["age"] <= 120) << text;
    if (j.contains("weight")) {
      ASSERT_TRUE(j["weight"].is_number()) << text;
    }
    ASSERT_TRUE(j["tags"].is_array() && j["tags"].size() >= 1 && j["tags"].size() <= 3) << text;
    for (const Json& tag : j["tags"]) ASSERT_FALSE(tag.get<std::string>().empty()) << text;
    if (!j["home"].is_null()) {
      ASSERT_EQ(j["home"]["zip"].get<std::string>().size(), 5u) << text;
    }
    if (j.contains("day")) {
      ASSERT_EQ(j["day"].get<std::string>().size(), 10u) << text;
    }
    seen.insert(text);
  }
  EXPECT_GT(seen.size(), 990u);
}

}  // namespace
}  // namespace hysparse
