#include "tokenizer/chat_template.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json.h"
#include "tokenizer/template_run.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPlain =
    "{%- for message in messages %}"
    "{{- message.role | capitalize ~ ': ' ~ message.content | trim ~ '\\n\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}Assistant:{% endif %}";
constexpr std::string_view kChatml =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

}  // namespace

struct ChatTemplate::Impl {
  std::string name, source;
  std::vector<std::pair<std::string, std::string>> tokens;
  chat::Block program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::name() const {
  return impl_->name;
}
const std::string& ChatTemplate::source() const {
  return impl_->source;
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& where,
                                 std::vector<std::pair<std::string, std::string>> tokens) {
  auto impl = std::make_unique<Impl>();
  impl->name = where;
  impl->source = source;
  impl->tokens = std::move(tokens);
  impl->program = chat::parse_template(source, where);
  return ChatTemplate(std::move(impl));
}

ChatTemplate ChatTemplate::builtin(std::string_view name) {
  if (name == "plain") return parse(kPlain, "built-in template plain");
  if (name == "chatml") return parse(kChatml, "built-in template chatml");
  throw expected_error("chat template", "plain or chatml", quote_text(name));
}

std::optional<ChatTemplate> ChatTemplate::load(const fs::path& dir) {
  std::vector<std::pair<std::string, std::string>> tokens;
  std::optional<std::string> found;
  std::string where;
  if (const fs::path file = dir / "tokenizer_config.json"; file_exists(file)) {
    const Json config = read_json_file(file);
    where = file.string() + ": chat_template";
    for (const auto& [key, value] : config.items()) {
      if (!key.ends_with("_token")) continue;
      const Json* text = value.is_object() && value.contains("content") ? &value["content"] : &value;
      if (text->is_string()) tokens.emplace_back(key, text->get<std::string>());
    }
    if (config.contains("chat_template")) {
      const Json& t = config["chat_template"];
      if (t.is_string()) found = t.get<std::string>();
      if (t.is_array())
        for (const Json& one : t)
          if (one.is_object() && one.value("name", "") == "default" && one.contains("template") &&
              one["template"].is_string())
            found = one["template"].get<std::string>();
      if (!found && !t.is_null())
        throw expected_error(where, "a text, or a list with one called \"default\"", quote_text(t.dump()));
    }
  }
  if (const fs::path file = dir / "chat_template.jinja"; file_exists(file)) {
    where = file.string();
    found = read_file(file);
  }
  if (!found) return {};
  return parse(*found, where, std::move(tokens));
}

MarkedText ChatTemplate::render(const Json& messages, const Json& tools, const Json& extra,
                                const ChatOptions& options) const {
  chat::Dict globals;
  const auto add = [&](std::string_view name, chat::Value v) {
    globals.emplace_back(chat::Text(name), std::move(v));
  };
  if (extra.is_object())
    for (const auto& [key, value] : extra.items()) add(key, chat::Value::of(value));
  for (const auto& [key, text] : impl_->tokens) add(key, chat::Text(text));
  add("messages", chat::Value::of(messages));
  if (!tools.is_null()) add("tools", chat::Value::of(tools));
  add("add_generation_prompt", options.add_generation_prompt);
  chat::Text out = chat::run_template(impl_->program, std::move(globals), options.now);
  MarkedText marked{std::move(out.bytes), std::move(out.origin)};
  for (char& c : marked.trusted) c = c == chat::Text::kTemplate ? 1 : 0;
  return marked;
}

}  // namespace hysparse
