#include "eval/ruler/prompter.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace hysparse::ruler {

Prompter::Prompter(std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const ChatTemplate> chat)
    : tokenizer_(std::move(tokenizer)), chat_(std::move(chat)) {}

std::vector<int32_t> Prompter::prompt(const std::string& user, const std::string& prefix) const {
  if (!chat_) return tokenizer_->encode_from_start(user + prefix);
  const Json messages = Json::array({{{"role", "user"}, {"content", user}}});
  MarkedText turn = chat_->render(messages, nullptr, Json::object(), {});
  // The turn begins here: a space would be one too many.
  const std::string_view start = std::string_view(prefix).substr(prefix.find_first_not_of(' '));
  turn.text += start;
  turn.trusted.append(start.size(), '\0');
  return tokenizer_->encode_marked(turn.text, turn.trusted);
}

int64_t Prompter::count(std::string_view text) const {
  return static_cast<int64_t>(tokenizer_->encode(text).size());
}

std::string Prompter::identity() const {
  if (!chat_) return tokenizer_->fingerprint();
  uint64_t h = 0;
  for (const char c : chat_->source()) h = mix64(h ^ static_cast<unsigned char>(c));
  return fmt::format("{}+{:016x}", tokenizer_->fingerprint(), h);
}

}  // namespace hysparse::ruler
