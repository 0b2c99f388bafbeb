// Reads Hugging Face's tokenizer.json into plain data. What this program cannot reproduce exactly is refused
// by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/json_value.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"

namespace hysparse {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;  // looked for in the normalised text (else in the text as it came)
};

struct TokenizerSpec {
  std::vector<std::pair<std::string, int32_t>> vocab;  // as written: in the byte alphabet
  std::vector<BpeMerge> merges;
  std::vector<AddedToken> added;
  bool nfc = false;
  PreTokenizerRules rules;
  bool ignore_merges = false;
  bool fuse_unk = false;
  int32_t unk_id = -1;
  std::vector<int32_t> start;  // what the post-processor puts before a text: usually nothing, or BOS
};

// The document of a tokenizer.json; `where` names it in errors.
TokenizerSpec parse_tokenizer_json(const Json& json, const std::string& where);
TokenizerSpec read_tokenizer_json(const std::filesystem::path& file);
TokenizerSpec parse_tokenizer_json(std::string_view text, const std::string& where);

// The end-of-text token that the files beside tokenizer.json name: tokenizer_config.json and
// special_tokens_map.json ("eos_token"), then generation_config.json and config.json ("eos_token_id", the
// first of a list). -1: none does.
int32_t find_eos(const std::filesystem::path& dir, const TokenizerSpec& spec);

// What comes before a text: "bos_token" of tokenizer_config.json where that file states add_bos_token
// (nothing where it is false), else what tokenizer.json's post-processor says.
std::vector<int32_t> find_start(const std::filesystem::path& dir, const TokenizerSpec& spec);

}  // namespace hysparse
