// The byte-level BPE tokenizer in a GGUF file as the files of a model directory, and the other way round.
// GGUF names a pre-tokenizer instead of stating its expressions; a kind or name that cannot be reproduced
// exactly is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "io/gguf.h"

namespace hysparse {

struct TokenizerFiles {
  std::string tokenizer;      // text of tokenizer.json
  std::string config;         // of tokenizer_config.json
  std::string chat_template;  // of chat_template.jinja; empty: none
};

// Error(input) for a kind or pre-tokenizer that is not supported and for vocabularies that contradict
// themselves. Nothing where the file says that it has no tokenizer.
std::optional<TokenizerFiles> tokenizer_from_gguf(const GgufFile& file);

// Adds the tokenizer of a model directory; `rows`: of the embedding, all of which get a token. The ids are
// the model config's. Without a tokenizer.json in `dir`, or with an empty `dir`, the file says that it has
// none.
void add_tokenizer(GgufWriter& file, const std::filesystem::path& dir, int64_t rows,
                   const std::vector<int64_t>& eos, std::optional<int64_t> bos, std::optional<int64_t> pad,
                   const Log& log);

}  // namespace hysparse
