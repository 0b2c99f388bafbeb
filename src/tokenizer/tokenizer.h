// Byte-level BPE in Hugging Face's tokenizer.json form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"

namespace hysparse {

class Tokenizer {
 public:
  // `dir` holds tokenizer.json (or is that file). Errors name what is unsupported or malformed. Supported:
  // BPE with a ByteLevel pre-tokenizer, alone or behind Split and Digits steps; normalizer null or NFC.
  static Tokenizer load(const std::filesystem::path& dir);
  // The text of a tokenizer.json alone; no EOS is known. `where` names it in errors.
  static Tokenizer parse(std::string_view json, const std::string& where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Any bytes are allowed (invalid UTF-8 and NUL included) and decode(encode(x)) == x, unless the file asks
  // for NFC or a prefix space. Neither BOS nor EOS is added. With parse_special, special tokens' texts
  // ("<|endoftext|>") become their ids; by default they are plain text. Any number of threads may encode at
  // once.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = false) const;
  // A text as a model reads it from its beginning: start_ids() and the text's ids. With parse_special, a text
  // that begins with them itself does not get them twice.
  std::vector<int32_t> encode_from_start(std::string_view text, bool parse_special = false) const;
  // `text` of which trusted[i] != 0 says whether byte i may be of a special token: only texts that are
  // trusted from end to end become one. All else is encoded as if the text had no such borders.
  std::vector<int32_t> encode_marked(std::string_view text, std::string_view trusted) const;
  // The same ids as encode()'s in the same order, handed over a few thousand at a time: for texts whose ids
  // would not fit.
  using IdSink = std::function<void(const int32_t* ids, size_t count)>;
  void encode_to(std::string_view text, const IdSink& sink, bool parse_special = false) const;
  // A position p >= from at which plain text may be cut so that the ids of both parts, one after the other,
  // are the ids of the whole; text.size() when there is none or the pre-tokenizer is not known to allow cuts.
  size_t next_cut(std::string_view text, size_t from) const;
  // Special tokens are skipped unless keep_special. Ids outside [0, vocab_size) throw Error(input).
  std::string decode(const std::vector<int32_t>& ids, bool keep_special = false) const;
  // The raw bytes of one token (special tokens: their text; empty for an id that the file leaves out).
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  int32_t vocab_size() const;  // largest id + 1
  int32_t eos_id() const;      // -1 when none is known
  // What the tokenizer's files put before every text: usually nothing, or BOS.
  const std::vector<int32_t>& start_ids() const;
  int32_t find(std::string_view token_text) const;  // an added token's id by its text, -1 when absent
  // 32 hex digits of all that decides ids and texts; the same for the two ways of writing merges.
  const std::string& fingerprint() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl>);
  std::unique_ptr<Impl> impl_;
};

struct TokenizerTraining {
  int64_t vocab_size = 4096;  // 256 bytes + merges + special tokens
  std::string eos = "<|endoftext|>";
};
// Trains on the files' bytes (each file is one text) and writes tokenizer.json + tokenizer_config.json into
// `out`, which is created or, being empty or of a tokenizer or a model, gets the two files replaced; whether
// that can be done is seen before training. The result depends on nothing but files and
// options: the most frequent pair first, ties to the smaller pair of ids; EOS is id 0, bytes follow, then
// merges in order. Stops early, and says so, when no pair is left.
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
