// Chat templates, as model directories bring them, and conversations, as training reads them: the template
// (or "plain" or "chatml"), then behind the first line that is "--chats" a JSON line each.
#include <nlohmann/json.hpp>

#include "byte_tokenizer.h"
#include "target.h"
#include "tokenizer/chat_template.h"
#include "train/chat_data.h"

namespace hysparse::fuzz {
namespace {

constexpr size_t kRow = 48;

void pack(RowPacker& packer, std::vector<ChatDocument> documents) {
  for (ChatDocument& d : documents) {
    require(!d.ids.empty() && d.ids.size() == d.flags.size(), "a flag a token");
    require((d.flags.back() & kDocumentEnd) != 0 && d.answer_bytes >= 0, "a document ends once");
    packer.add(std::move(d));
  }
}

void check_row(const std::vector<int32_t>& ids, const std::vector<int32_t>& flags, int32_t eos,
               int32_t vocab) {
  require(ids.size() == flags.size() && (ids.size() == kRow || ids == std::vector<int32_t>{eos}),
          "rows are whole");
  require((flags.back() & kDocumentEnd) != 0, "no document goes on in the next row");
  for (size_t i = 0; i < ids.size(); ++i)
    require(ids[i] >= 0 && ids[i] < vocab && flags[i] >= 0 && flags[i] <= (kLearned | kDocumentEnd),
            "ids and flags");
}

}  // namespace

bool run_input(std::string_view input) {
  static const Tokenizer tokenizer = byte_tokenizer(kOwnPattern);
  const int32_t eos = tokenizer.eos_id();
  const size_t cut = std::min(input.find("\n--chats\n"), input.size());
  const std::string_view source = input.substr(0, cut);
  std::string_view lines = input.substr(std::min(cut + 9, input.size()));
  return accepted([&] {
    const ChatTemplate chat = source == "plain" || source == "chatml"
                                  ? ChatTemplate::builtin(source)
                                  : ChatTemplate::parse(source, "fuzz", {{"eos_token", "<|end|>"}});
    const ChatEncoder encoder(tokenizer, chat, 1'700'000'000);
    RowPacker packer(kRow, eos, [&](const auto& ids, const auto& flags) {
      check_row(ids, flags, eos, tokenizer.vocab_size());
    });
    while (!lines.empty()) {
      const size_t end = std::min(lines.find('\n'), lines.size());
      const Json line = parse_json(lines.substr(0, end), "fuzz");
      lines.remove_prefix(std::min(end + 1, lines.size()));
      if (line.is_object() && line.contains("messages")) {
        const MarkedText text = chat.render(line["messages"], nullptr, nullptr, {});
        require(text.text.size() == text.trusted.size(), "a mark a byte");
      }
      pack(packer, encoder.encode(line, "fuzz"));
    }
    packer.finish();
  });
}

std::vector<std::string> seeds() {
  const std::string chats =
      R"(
--chats
{"messages": [{"role": "user", "content": "12 the thing <|end|>"}, {"role": "assistant", "content": "a\u00e9"}]}
{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}, {"role": "assistant", "content": "z"},
)" + std::string() +
      R"( {"role": "user", "content": "more"}, {"role": "assistant", "content": "end"}], "extra": [1, 2.5, {"k": null}]})";
  // A conversation is a line: no line feed inside it.
  std::string flat;
  for (size_t i = 0; i < chats.size(); ++i)
    if (!(chats[i] == '\n' && i > 0 && chats[i - 1] == ',')) flat += chats[i];
  return {
      "plain" + flat, "chatml" + flat,
      R"({%- set ns = namespace(n=0) -%}
{%- macro show(m, sep='|') %}{{ m.role | upper ~ sep }}{{ m['content'] | trim }}{% endmacro -%}
{%- for m in messages if m.content is string -%}
{%- if loop.first and m.role == 'system' %}{{ raise_exception('no') if false else '' }}{% continue %}{%- elif m.content[1:] in ['zz'] %}?{% else -%}
{{ show(m, sep=loop.index ~ ':') }}{%- set ns.n = ns.n + m.content | length // 2 %}{% generation %}{% endgeneration %}{{ eos_token }}{{ '\n' }}
{%- endif -%}{%- endfor -%}
{% if add_generation_prompt %}ASSISTANT{{ ns.n * 0 or '' }}{% endif %})" +
          flat,
      R"({% for m in messages %}{{ {'a': m, 'b': [1, 2, -3][::-1]} | tojson(indent=2) | length }}{{ m.role.split('s') | join(',') | replace('u', 'v') }}{{ "%s" | default('x', true) }}{% for k, v in m.items() %}{{ k ~ '=' ~ v }}{% else %}none{% endfor %}{% endfor %})"
      "\n--chats\n"};
}

std::vector<std::string> dictionary() {
  return {"{{ ",
          " }}",
          "{% ",
          " %}",
          "{%- ",
          "-%}",
          "{# ",
          " #}",
          "{% if x %}",
          "{% endif %}",
          "{% for a, b in messages %}",
          "{% endfor %}",
          "{% set x = x + 1 %}",
          "{% macro m(a) %}{{ m(a) }}{% endmacro %}",
          "m(1)",
          " | tojson",
          " | length",
          " | list",
          " | join('')",
          " | int",
          " | string",
          " | reverse",
          " | selectattr('role', 'equalto', 'user')",
          "range(1000000)",
          "range(9223372036854775807)",
          "'a' * 1000000000",
          "9223372036854775807",
          " // 0",
          " % 0",
          "[-1]",
          "[::0]",
          "[1:-1:2]",
          "[9223372036854775807:]",
          "(",
          ")",
          "[",
          "]",
          "is defined",
          "not ",
          "none",
          "strftime_now('%Y')",
          "raise_exception('x')",
          ".split('')",
          ".strip('x')",
          ".items()",
          "\xc3\xa9",
          "\xff",
          "{% raw %}",
          "-9223372036854775807 - 1",
          "1e400",
          "loop.index0",
          "namespace()",
          "\n--chats\n",
          "\"content\": null, ",
          "\"role\": \"assistant\", ",
          "\"tool_calls\": [], ",
          std::string(200, '('),
          std::string(100, '[')};
}

}  // namespace hysparse::fuzz
