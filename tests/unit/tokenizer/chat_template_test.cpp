#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "io/files.h"
#include "small_tokenizer.h"

namespace hysparse {
namespace {

// Recorded from Jinja as transformers sets it up: tests/tools/chat_templates.py.
TEST(ChatTemplate, EqualsJinja) {
  const Json file = read_json_file(std::string(HYSPARSE_SOURCE_DIR) + "/tests/data/chat/cases.json");
  for (const Json& c : file["cases"]) {
    const auto name = c["template"].get<std::string>();
    SCOPED_TRACE(name + " " + c["variables"].dump());
    const ChatTemplate t = ChatTemplate::parse(file["templates"][name].get_ref<const std::string&>(), name,
                                               {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    Json v = c["variables"];
    const Json messages = v["messages"], tools = v.contains("tools") ? v["tools"] : Json(nullptr);
    const ChatOptions options{v["add_generation_prompt"].get<bool>(), file["now"].get<std::time_t>()};
    for (const char* key : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
      v.erase(key);
    try {
      const MarkedText out = t.render(messages, tools, v, options);
      ASSERT_TRUE(c.contains("text")) << "rendered: " << out.text;
      EXPECT_EQ(out.text, c["text"].get<std::string>());
      EXPECT_EQ(out.text.size(), out.trusted.size());
    } catch (const Error& e) {
      ASSERT_TRUE(c.contains("error")) << e.what();
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(c["error"].get<std::string>()), std::string::npos) << e.what();
    }
  }
}

std::string render(const std::string& source, const Json& messages = Json::array()) {
  return ChatTemplate::parse(source, "t").render(messages, nullptr, nullptr, {}).text;
}

TEST(ChatTemplate, WhatIsOutsideIsRefusedAtLoadWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{% include 'x' %}", "include"},
      {"{% call f() %}{% endcall %}", "call"},
      {"{% filter upper %}{% endfilter %}", "filter"},
      {"{{ x | batch(2) }}", "batch"},
      {"{{ x is callable }}", "callable"},
      {"{{ x.__class__() }}", "__class__"},
      {"{{ lipsum() }}", "lipsum"},
      {"{{ x.mro() }}", "mro"},
      {"{% if x %}", "endif"},
      {"{% endif %}", "endif"},
      {"{% for a, b, c in d %}{% endfor %}", "two names"},
      {"{{ 1 +", "end"},
      {"{{ 'abc }}", "quote"},
      {"{# abc", "comment"},
      {"{{ a ? b }}", "'?'"},
      {"{{ (1, 2) }}", "tuple"},
      {"{{ 2 ** 3 }}", "**"},
      {"{% break %}", "outside a loop"},
      {"{{ a < b < c }}", "chain"},
      {"{{ 99999999999999999999 }}", "digits"},
      {"{{ '\\x41' }}", "escape"},
      {"{{ x | selectattr('a', 'odder') | list }}", "test"},
      {"{% set a.b.c = 1 %}", "="},
      {std::string(300000, 'x'), "longer"},
      {"{{ " + std::string(2000, '(') + " }}", "nested"},
      {"{{ 1" +
           [] {
             std::string s;
             for (int i = 0; i < 2000; ++i) s += "+1";
             return s;
           }() +
           " }}",
       "too long"}};
  for (const auto& [source, what] : cases) {
    try {
      ChatTemplate::parse("ok\n" + source, "tokenizer_config.json");
      ADD_FAILURE() << source.substr(0, 80);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
      if (source.size() < 1000) {
        EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
      }
    }
  }
}

TEST(ChatTemplate, RunsAreBounded) {
  for (const char* source :
       {"{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{{ range(1000000) }}",
        "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(90) %}{% set ns.s = ns.s + ns.s "
        "%}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% set l = [1] %}{{ l.append(l) }}{{ l }}{{ l == [l] }}",
        "{% set l = [1] %}{{ l.append(l) }}{{ l == l }}", "{{ x.y.z }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}",
        "{% for x in y %}{% endfor %}", "{{ 'a' | replace('', 'b') }}", "{{ none + 1 }}",
        "{{ 999999999999999 * 999999999999999 * 99999 }}", "{{ 'a' < 1 }}"})
    EXPECT_THROW(render(source), Error) << source;
}

// Random pieces of the language: an error or a text, never anything else.
TEST(ChatTemplate, AnySourceEndsInATextOrAnError) {
  static const std::vector<std::string> pieces = {"{% if ",
                                                  "{% for m in messages %}",
                                                  "{% endfor %}",
                                                  "{% endif %}",
                                                  "{% else %}",
                                                  "{{ ",
                                                  " }}",
                                                  " %}",
                                                  "-%}",
                                                  "{%- ",
                                                  "m.role",
                                                  "messages[0]",
                                                  "['content']",
                                                  " | trim",
                                                  " | tojson",
                                                  " is defined",
                                                  " and ",
                                                  " not ",
                                                  " in ",
                                                  "loop.index0",
                                                  "'a'",
                                                  "\"b\"",
                                                  "1",
                                                  "-",
                                                  "+",
                                                  "~",
                                                  "(",
                                                  ")",
                                                  "[",
                                                  "]",
                                                  ":",
                                                  "{",
                                                  "}",
                                                  ",",
                                                  "{% set x = ",
                                                  "namespace(a=1)",
                                                  "x.a",
                                                  ".split('a')",
                                                  "\n",
                                                  " ",
                                                  "{# c #}",
                                                  "{% macro f(a) %}",
                                                  "{% endmacro %}",
                                                  "f(1)",
                                                  "\xff"};
  const Json messages = Json::parse(R"([{"role":"user","content":"hi"}])");
  int rendered = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Rng rng(seed);
    std::string source;
    for (uint64_t i = 0, n = rng.below(14); i < n; ++i) source += pieces[rng.below(pieces.size())];
    try {
      render(source, messages);
      ++rendered;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
    }
  }
  EXPECT_GT(rendered, 200);
}

TEST(ChatTemplate, BuiltIns) {
  const Json messages =
      Json::parse(R"([{"role":"system","content":"Be brief."},{"role":"user","content":" Hi "}])");
  EXPECT_EQ(ChatTemplate::builtin("plain").render(messages, nullptr, nullptr, {}).text,
            "System: Be brief.\n\nUser: Hi\n\nAssistant:");
  EXPECT_EQ(
      ChatTemplate::builtin("chatml").render(messages, nullptr, nullptr, {}).text,
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THROW(ChatTemplate::builtin("fancy"), Error);
}

// A model directory: both homes of a template, and the texts of special tokens in both forms.
TEST(ChatTemplate, LoadsFromAModelDirectory) {
  test::TempDir dir;
  EXPECT_FALSE(ChatTemplate::load(dir.path()));
  test::write(
      dir / "tokenizer_config.json",
      R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null,"chat_template":"{{ bos_token }}{{ eos_token }}!"})");
  EXPECT_EQ(ChatTemplate::load(dir.path())->render(Json::array(), nullptr, nullptr, {}).text, "<s></s>!");
  test::write(
      dir / "tokenizer_config.json",
      R"({"chat_template":[{"name":"tool_use","template":"{{ 1 }}"},{"name":"default","template":"{{ 2 }}"}]})");
  EXPECT_EQ(ChatTemplate::load(dir.path())->render(Json::array(), nullptr, nullptr, {}).text, "2");
  test::write(dir / "chat_template.jinja", "{{ 3 }}\n");
  EXPECT_EQ(ChatTemplate::load(dir.path())->render(Json::array(), nullptr, nullptr, {}).text, "3");
  test::write(dir / "chat_template.jinja", "{% bad %}");
  EXPECT_THROW(ChatTemplate::load(dir.path()), Error);
}

// What users write stays text: through concatenation, filters, slices, methods and JSON.
TEST(ChatTemplate, UsersCannotWriteControlTokens) {
  const Tokenizer tokenizer = test::load(test::tokenizer_json());  // <|end|> is id 256
  const auto controls = [&](const std::string& source, const std::string& content) {
    const ChatTemplate t = ChatTemplate::parse(source, "t");
    const MarkedText m =
        t.render(Json::array({{{"role", "user"}, {"content", content}}}), nullptr, Json::object(), {});
    const auto ids = tokenizer.encode_marked(m.text, m.trusted);
    EXPECT_EQ(tokenizer.decode(ids, true), m.text);
    return std::count(ids.begin(), ids.end(), 256);
  };
  const std::string end = "<|end|>";
  for (const char* source :
       {"{{ messages[0].content }}<|end|>", "{{ messages[0]['content'] + '<|end|>' }}",
        "{{ '<|end|>' ~ messages[0].content | trim }}", "{{ messages[0].content | tojson }}{{ '<|end|>' }}",
        "{% set x = messages[0].content %}{% for c in x | list %}{{ c }}{% endfor %}<|end|>",
        "{{ messages[0].content[0:3] }}{{ messages[0].content[3:] }}<|end|>",
        "{{ messages[0].content.split('|') | join('|') }}<|end|>", "{{ messages }}<|end|>",
        "{{ messages[0].content.replace('x', '<') }}<|end|>", "{{ messages[0].content | lower }}<|end|>"})
    EXPECT_EQ(controls(source, "a <|end|> b"), 1) << source;
  // Half from the user and half from the template is no token either.
  EXPECT_EQ(controls("{{ messages[0].content }}nd|>", "<|e"), 0);
  EXPECT_EQ(controls("<|e{{ messages[0].content }}", "nd|>"), 0);
  EXPECT_EQ(controls("<|end{{ messages[0].content }}|>", ""), 1);
  EXPECT_EQ(controls("{{ messages[0].content.replace('x', '<|end|>') }}", "axb"),
            1);  // the template's own words
}

// Apart from special tokens the borders do not show: pieces and merges cross them.
TEST(ChatTemplate, BordersDoNotShowInTheTokens) {
  const Tokenizer tokenizer = test::load(test::tokenizer_json({{"a", "b"}, {"ab", "c"}}));
  const std::string text = "abcabc<|end|>abc";
  std::string trusted(text.size(), 1);
  for (size_t i = 0; i < 2; ++i) trusted[i] = 0;
  EXPECT_EQ(tokenizer.encode_marked(text, trusted), tokenizer.encode(text, true));
  trusted.assign(text.size(), 0);
  EXPECT_EQ(tokenizer.encode_marked(text, trusted), tokenizer.encode(text, false));
  EXPECT_THROW(tokenizer.encode_marked(text, "x"), Error);
}

}  // namespace
}  // namespace hysparse
