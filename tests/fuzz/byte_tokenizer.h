// A tokenizer that any text passes through, for targets that need one.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "io/json_value.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "unit/support/temp_dir.h"

namespace hysparse::fuzz {

// The 256 bytes, some merges, an added token and a special one, which ends texts.
inline Tokenizer byte_tokenizer(std::string_view pattern) {
  static const std::pair<const char*, const char*> kMerges[] = {
      {"t", "h"},       {"th", "e"},      {" ", "the"},     {"a", "a"},
      {"aa", "aa"},     {" ", " "},       {"  ", "  "},     {"\n", "\n"},
      {"\xc3", "\xa9"}, {"\xf0", "\x9f"}, {"\x98", "\x80"}, {"\xf0\x9f", "\x98\x80"},
      {"1", "2"},       {"12", "3"},      {"\r", "\n"},     {"i", "n"},
      {"in", "g"},      {"'", "s"}};
  Json vocab = Json::object(), merges = Json::array();
  for (int b = 0; b < 256; ++b) vocab[to_alphabet(std::string(1, static_cast<char>(b)))] = b;
  int next = 256;
  for (const auto& [left, right] : kMerges) {
    vocab[to_alphabet(std::string(left) + right)] = next++;
    merges.push_back(Json::array({to_alphabet(left), to_alphabet(right)}));
  }
  Json file;
  file["added_tokens"] =
      Json::array({{{"id", next}, {"content", "<|end|>"}, {"special", true}},
                   {{"id", next + 1}, {"content", "<tool>"}, {"special", false}, {"normalized", false}}});
  file["pre_tokenizer"] = {{"type", "Sequence"}};
  file["pre_tokenizer"]["pretokenizers"] = Json::array(
      {{{"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}},
       {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}});
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  const tests::TempDir dir;
  std::ofstream(dir / "tokenizer.json") << dump_json(file);
  std::ofstream(dir / "tokenizer_config.json") << R"({"eos_token": "<|end|>"})";
  return Tokenizer::load(dir.path());
}

}  // namespace hysparse::fuzz
