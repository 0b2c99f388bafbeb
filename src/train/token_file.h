// The file of one split of prepared data: a header of 128 bytes, then every token (docs/formats.md).
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "io/files.h"

namespace hysparse {

static_assert(std::endian::native == std::endian::little,
              "token files are read and written as they lie in memory");

inline constexpr uint32_t kTokenFileVersion = 1;
inline constexpr size_t kTokenFileHeaderBytes = 128;

struct TokenFileHeader {
  int bytes_per_token = 2;  // 2: uint16, 4: uint32
  int64_t tokens = 0;
  int64_t text_bytes = 0;  // of the documents, without their EOS
  int64_t documents = 0;
  int64_t row_tokens = 0;  // > 0: rows of so many tokens were packed, for just that train.seq_len
  int32_t vocab_size = 0;
  int32_t eos_id = -1;
  std::string fingerprint;  // of the tokenizer: 32 hex digits
  uint64_t checksum = 0;    // TokenChecksum of the tokens' bytes
};

// Of a stream of bytes that comes in pieces whose lengths, but for the last, are multiples of 32.
class TokenChecksum {
 public:
  void add(const void* data, size_t bytes);
  uint64_t value() const { return hash_words({lanes_[0], lanes_[1], lanes_[2], lanes_[3], length_}); }

 private:
  uint64_t lanes_[4] = {1, 2, 3, 4};
  uint64_t length_ = 0;
};

// Throws Error(input) naming `path` for anything that is not a whole token file of this version.
TokenFileHeader read_token_header(const MappedFile& file, const std::filesystem::path& path);

// Writes a token file into a folder that publish_directory() is filling.
class TokenFileWriter {
 public:
  // `header`: vocab_size, eos_id, fingerprint and row_tokens count; the rest is found while writing.
  TokenFileWriter(std::filesystem::path path, TokenFileHeader header);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  void add_tokens(const int32_t* ids, size_t count);
  void end_document(int64_t text_bytes);    // adds EOS
  void count_document(int64_t text_bytes);  // one that ends without
  void finish();                            // once
  const TokenFileHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  void flush();
  void write_at(const void* data, size_t bytes, int64_t offset);

  std::filesystem::path path_;
  TokenFileHeader header_;
  TokenChecksum checksum_;
  std::vector<uint8_t> buffer_;
  size_t used_ = 0;
  int64_t offset_ = static_cast<int64_t>(kTokenFileHeaderBytes);
  int fd_ = -1;
};

}  // namespace hysparse
