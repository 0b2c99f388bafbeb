// What the server needs to know of a model beside the engine that runs it: its name and its words.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/constraint.h"
#include "engine/text_model.h"
#include "serve/api_request.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

struct ServedModel {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;
  std::vector<int64_t> eos;
  std::vector<int32_t> start;      // what an empty prompt becomes; empty: it is refused
  int64_t vocab = 0, context = 0;  // of the model
  std::string bos_text, eos_text;
  int64_t created = 0;  // seconds since 1970

  // A token as clients see it: its text, or "bytes:\xNN..." where that is no whole character.
  std::string token_text(int32_t id) const;
  // Ids as text for people: what is no UTF-8 is replaced.
  std::string text(const std::vector<int32_t>& ids) const;
  std::vector<int32_t> encode_chat(const Json& messages, const Json& extra, bool add_generation_prompt) const;
  // A prompt of /v1/completions: control tokens may be written out, as callers with templates of their own
  // do.
  std::vector<int32_t> encode_prompt(const ApiPrompt& prompt, bool add_special_tokens) const;
};

// `chat_template`: "plain", "chatml", or a file; empty: the model directory's own, where it has one.
// Error(input) for a model without a tokenizer, and for a template that is outside the subset.
ServedModel describe_model(const TextModel& model, const std::string& name, const std::string& chat_template,
                           int64_t context);

// Compiled constraints of the last requests: clients send the same schema again and again.
class ConstraintCache {
 public:
  explicit ConstraintCache(std::shared_ptr<const TokenTrie> trie) : trie_(std::move(trie)) {}
  // ApiError(400) for what cannot be compiled. Any thread.
  std::shared_ptr<const Constraint> get(ResponseFormat format, const std::string& schema);

 private:
  static constexpr size_t kKept = 16;
  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<const Constraint>>> kept_;  // the latest last
};

}  // namespace hysparse
