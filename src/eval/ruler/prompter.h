// How a sample becomes a prompt: the text as it is, or as the user's turn of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::ruler {

class Prompter {
 public:
  // chat null: plain prompts.
  explicit Prompter(std::shared_ptr<const Tokenizer> tokenizer,
                    std::shared_ptr<const ChatTemplate> chat = nullptr);

  // `user` and, behind it (with a template: behind the beginning of the assistant's turn), `prefix`. Special
  // tokens' texts in either are plain text.
  std::vector<int32_t> prompt(const std::string& user, const std::string& prefix) const;
  // Tokens of a text by itself.
  int64_t count(std::string_view text) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Of all that decides a text's ids, for the settings of a run: the tokenizer's fingerprint and the
  // template.
  std::string identity() const;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> chat_;
};

}  // namespace hysparse::ruler
