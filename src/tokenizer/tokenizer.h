// Byte-level BPE in Hugging Face's tokenizer.json form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"

namespace hysparse {

class Tokenizer {
 public:
  // `dir` holds tokenizer.json (or is that file). Errors name what is unsupported or malformed.
  static Tokenizer load(const std::filesystem::path& dir);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are allowed (invalid UTF-8 and NUL included) and decode(encode(x)) == x. With parse_special,
  // special tokens' texts
  // ("<|endoftext|>") become their ids; by default they are plain text.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = false) const;
  // Special tokens are skipped unless keep_special. Ids outside [0, vocab_size) throw Error(input).
  std::string decode(const std::vector<int32_t>& ids, bool keep_special = false) const;
  // The raw bytes of one token (special tokens: their text).
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  int32_t vocab_size() const;                       // largest id + 1
  int32_t eos_id() const;                           // -1 when none is known
  int32_t find(std::string_view token_text) const;  // an added token's id by its text, -1 when absent

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

struct TokenizerTraining {
  int64_t vocab_size = 4096;  // 256 bytes + merges + special tokens
  std::string eos = "<|endoftext|>";
};
// Trains on the files' bytes and writes tokenizer.json + tokenizer_config.json into `out` (created, published
// atomically). Deterministic.
void train_tokenizer(const std::vector<std::filesystem::path>& inputs, const TokenizerTraining& options,
                     const std::filesystem::path& out, ThreadPool& pool, const Log& log);

// Turns a stream of tokens' bytes into text that never splits a UTF-8 character. Invalid bytes become U+FFFD
// at once when they can no longer become valid; at the end flush() releases what is held.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string flush();

 private:
  std::string held_;
};

}  // namespace hysparse
