// Small tokenizers made for a test.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "io/json_value.h"
#include "support.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::test {

// A tokenizer.json: the 256 bytes at ids 0-255 (id = byte), then a token for every merge given as {left,
// right} in bytes, then "<|end|>" (special).
inline Json tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object(), list = Json::array();
  for (int b = 0; b < 256; ++b) vocab[to_alphabet(std::string(1, static_cast<char>(b)))] = b;
  int next = 256;
  for (const auto& [left, right] : merges) {
    vocab[to_alphabet(left + right)] = next++;
    list.push_back(Json::array({to_alphabet(left), to_alphabet(right)}));
  }
  Json file;
  file["added_tokens"] = Json::array({{{"id", next}, {"content", "<|end|>"}, {"special", true}}});
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}};
  return file;
}

inline Tokenizer load(const Json& file, const Json& config = nullptr) {
  TempDir dir;
  write(dir / "tokenizer.json", dump_json(file));
  if (!config.is_null()) write(dir / "tokenizer_config.json", dump_json(config));
  return Tokenizer::load(dir.path());
}

}  // namespace hysparse::test
