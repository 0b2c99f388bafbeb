#include "engine/text_model.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/files.h"

namespace hysparse {

const Tokenizer& TextModel::text() const {
  if (!tokenizer)
    throw input_error(where, "there is no tokenizer.json, so text cannot be read or written",
                      "copy one there, or give and get token ids");
  return *tokenizer;
}

std::string_view TextModel::token_bytes(int32_t id) const {
  if (!tokenizer || id >= tokenizer->vocab_size() || tokenizer->is_special(id)) return {};
  return tokenizer->token_bytes(id);
}

TextModel load_text_model(const std::string& dir, const WeightOptions& weights, Memory& memory,
                          const Log& log) {
  TextModel out;
  out.where = dir;
  LoadOptions options;
  options.weights = weights;
  options.memory = &memory;
  options.log = log;
  out.loaded = load_model_dir(dir, options);
  const ModelConfig& config = out.loaded.config;
  out.eos = config.eos_token_id;
  if (!file_exists(std::filesystem::path(dir) / "tokenizer.json")) return out;
  out.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::load(dir));
  if (out.tokenizer->vocab_size() > config.vocab_size)
    throw expected_error(dir + ": tokenizer.json",
                         fmt::format("at most {} tokens (vocab_size)", config.vocab_size),
                         std::to_string(out.tokenizer->vocab_size()), "it belongs to another model");
  const int32_t eos = out.tokenizer->eos_id();
  if (eos >= 0 && std::find(out.eos.begin(), out.eos.end(), eos) == out.eos.end()) out.eos.push_back(eos);
  return out;
}

std::vector<int32_t> TextModel::or_start(std::vector<int32_t> prompt) const {
  if (!prompt.empty()) return prompt;
  if (config().bos_token_id) return {static_cast<int32_t>(*config().bos_token_id)};
  if (!eos.empty()) return {static_cast<int32_t>(eos.front())};
  throw input_error("prompt",
                    "it is empty, and the model names neither a BOS nor an EOS token to start from");
}

}  // namespace hysparse
