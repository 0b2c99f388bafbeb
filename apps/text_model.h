// A model directory as commands that read or write text use it: model, tokenizer, the ids that end a text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

struct TextModel {
  LoadedModel loaded;
  std::optional<Tokenizer> tokenizer;
  std::vector<int64_t> eos;  // the config's and the tokenizer's

  Model& model() { return *loaded.model; }
  const ModelConfig& config() const { return loaded.config; }
  // The tokenizer; Error(input) with a hint at --tokens where there is none.
  const Tokenizer& text() const;
  // Bytes of a token in a text: none for special ones and those only the model knows.
  std::string_view token_bytes(int32_t id) const;

  std::string where;  // the directory
};
TextModel load_text_model(const std::string& dir, DType compute, Memory& memory, const Log& log);

// `log` without what a reader of results does not need to know.
Log warnings_only(const Log& log);

// Token ids out of "1 2 3", "1,2,3" or "[1, 2, 3]"; Error(input) naming `where`.
std::vector<int32_t> parse_ids(std::string_view text, const std::string& where);

}  // namespace hysparse
