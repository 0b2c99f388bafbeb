// Turns a conversation into the text that a model was trained to answer: Hugging Face's chat templates.
//
// The language is a subset of Jinja, as docs/serving.md lists it: text, {{ }}, if/elif/else, for (with
// filter, else, break, continue and the loop variable), set (names, members of a namespace, blocks), macro,
// generation; literals, lists, mappings, members, slices, calls, the operators and the filters, tests,
// functions and methods that template_parse.cpp names. Anything else is Error(input) when the template is
// loaded.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_value.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

// Text of which some came from the caller: there, special tokens' texts are plain text.
struct MarkedText {
  std::string text;
  std::string trusted;  // a byte for each: 1 where the template wrote it
};

struct ChatOptions {
  bool add_generation_prompt = true;
  std::time_t now = 0;  // strftime_now, in UTC
};

class ChatTemplate {
 public:
  // `tokens`: texts of special tokens that templates may name (bos_token, eos_token, ...).
  static ChatTemplate parse(std::string_view source, const std::string& where,
                            std::vector<std::pair<std::string, std::string>> tokens = {});
  // What a model directory has: chat_template.jinja, or chat_template of tokenizer_config.json (of several,
  // the one called "default"). Nothing where it has none.
  static std::optional<ChatTemplate> load(const std::filesystem::path& dir);
  // "plain" (roles as words before their texts, no special tokens) or "chatml"; Error(input) for another
  // name.
  static ChatTemplate builtin(std::string_view name);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `messages`: a list of {"role", "content", ...}; `tools`: a list or null; `extra`: further variables of
  // the template (an object). Error(input) with what the template itself has to say against them.
  MarkedText render(const Json& messages, const Json& tools, const Json& extra,
                    const ChatOptions& options) const;
  const std::string& name() const;    // where it came from, for people
  const std::string& source() const;  // its text

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
