#include "text_model.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"

namespace hysparse {

const Tokenizer& TextModel::text() const {
  if (!tokenizer)
    throw input_error(where, "there is no tokenizer.json, so text cannot be read or written",
                      "copy one there, or give and get token ids with --tokens");
  return *tokenizer;
}

std::string_view TextModel::token_bytes(int32_t id) const {
  if (!tokenizer || id >= tokenizer->vocab_size() || tokenizer->is_special(id)) return {};
  return tokenizer->token_bytes(id);
}

TextModel load_text_model(const std::string& dir, DType compute, Memory& memory, const Log& log) {
  TextModel out;
  out.where = dir;
  LoadOptions options;
  options.weights.compute = compute;
  options.memory = &memory;
  options.log = log;
  out.loaded = load_model_dir(dir, options);
  const ModelConfig& config = out.loaded.config;
  out.eos = config.eos_token_id;
  if (!std::filesystem::exists(std::filesystem::path(dir) / "tokenizer.json")) return out;
  out.tokenizer = Tokenizer::load(dir);
  if (out.tokenizer->vocab_size() > config.vocab_size)
    throw expected_error(dir + ": tokenizer.json",
                         fmt::format("at most {} tokens (vocab_size)", config.vocab_size),
                         std::to_string(out.tokenizer->vocab_size()), "it belongs to another model");
  const int32_t eos = out.tokenizer->eos_id();
  if (eos >= 0 && std::find(out.eos.begin(), out.eos.end(), eos) == out.eos.end()) out.eos.push_back(eos);
  return out;
}

Log warnings_only(const Log& log) {
  return [log](LogLevel level, const std::string& message) {
    if (level == LogLevel::warning) hysparse::log(log, level, message);
  };
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& where) {
  const std::string_view space = " \t\r\n";
  const auto trim = [&](std::string_view s) {
    const size_t first = s.find_first_not_of(space);
    return first == std::string_view::npos ? std::string_view{}
                                           : s.substr(first, s.find_last_not_of(space) - first + 1);
  };
  std::string_view list = trim(text);
  if (!list.empty() && list.front() == '[' && list.back() == ']')
    list = trim(list.substr(1, list.size() - 2));
  std::vector<int32_t> ids;
  while (!list.empty()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), id);
    std::string_view rest = list.substr(static_cast<size_t>(end - list.data()));
    const bool ends =
        rest.empty() || rest.front() == ',' || space.find(rest.front()) != std::string_view::npos;
    if (error != std::errc() || !ends || id < 0)
      throw expected_error(where, "token ids such as \"1 2 3\" or \"[1, 2, 3]\"",
                           "'" + std::string(list.substr(0, 20)) + "'");
    ids.push_back(id);
    rest = trim(rest);
    if (!rest.empty() && rest.front() == ',') {
      rest = trim(rest.substr(1));
      if (rest.empty()) throw expected_error(where, "a token id behind every comma", "the end");
    }
    list = rest;
  }
  return ids;
}

}  // namespace hysparse
