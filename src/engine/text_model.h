// A model directory as what reads or writes text uses it: model, tokenizer, the ids that end a text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

struct TextModel {
  LoadedModel loaded;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int64_t> eos;  // the config's and the tokenizer's

  Model& model() { return *loaded.model; }
  const ModelConfig& config() const { return loaded.config; }
  // The tokenizer; Error(input) where there is none.
  const Tokenizer& text() const;
  // Bytes of a token in a text: none for special ones and those only the model knows.
  std::string_view token_bytes(int32_t id) const;
  // `prompt`, or where it is empty what a new document starts with: BOS or an end of text. Error(input) where
  // the model names neither.
  std::vector<int32_t> or_start(std::vector<int32_t> prompt) const;

  std::string where;  // the directory
};
TextModel load_text_model(const std::string& dir, const WeightOptions& weights, Memory& memory,
                          const Log& log);

}  // namespace hysparse
