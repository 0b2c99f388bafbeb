#include "train/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hysparse {
namespace {

constexpr char kMagic[8] = {'H', 'Y', 'S', 'P', 'T', 'O', 'K', 'S'};
constexpr size_t kBufferBytes = size_t(1) << 20;  // a multiple of 32

// As it lies in the file.
struct RawHeader {
  char magic[8];
  uint32_t version, bytes_per_token;
  uint64_t tokens, text_bytes, documents;
  uint32_t vocab_size;
  int32_t eos_id;
  char fingerprint[32];
  uint64_t checksum;
  uint64_t row_tokens;
  uint8_t reserved[24];
  uint64_t header_checksum;  // of the 120 bytes before
};
static_assert(sizeof(RawHeader) == kTokenFileHeaderBytes);

uint64_t header_checksum(const RawHeader& raw) {
  TokenChecksum c;
  c.add(&raw, offsetof(RawHeader, header_checksum));
  return c.value();
}

}  // namespace

void TokenChecksum::add(const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, bytes - i < 8 ? bytes - i : 8);
    uint64_t& lane = lanes_[(i / 8) % 4];
    lane = mix64(lane ^ word);
  }
  length_ += bytes;
}

TokenFileHeader read_token_header(const MappedFile& file, const std::filesystem::path& path) {
  const std::string where = path.string();
  const auto bytes = file.bytes();
  constexpr const char* kHint = "make it again with `hysparse data prepare`";
  if (bytes.size() < sizeof(kMagic) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0)
    throw input_error(where, "not a token file: it does not begin with HYSPTOKS");
  if (bytes.size() < kTokenFileHeaderBytes)
    throw input_error(
        where, fmt::format("cut off inside its header: {} bytes of {}", bytes.size(), kTokenFileHeaderBytes),
        kHint);
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.version != kTokenFileVersion)
    throw expected_error(where + ": version", std::to_string(kTokenFileVersion), std::to_string(raw.version),
                         "made by another version of hysparse");
  if (raw.header_checksum != header_checksum(raw)) throw input_error(where, "its header is damaged", kHint);

  TokenFileHeader h;
  if (raw.bytes_per_token != 2 && raw.bytes_per_token != 4)
    throw expected_error(where + ": bytes a token", "2 or 4", std::to_string(raw.bytes_per_token));
  h.bytes_per_token = static_cast<int>(raw.bytes_per_token);
  const uint64_t payload = bytes.size() - kTokenFileHeaderBytes;
  if (raw.tokens > payload / raw.bytes_per_token || raw.tokens * raw.bytes_per_token != payload)
    throw input_error(where,
                      fmt::format("its header says {} tokens of {} bytes, but {} bytes follow", raw.tokens,
                                  raw.bytes_per_token, payload),
                      kHint);
  if (raw.vocab_size == 0 || raw.vocab_size > uint32_t(1) << 30 || raw.eos_id < 0 ||
      static_cast<uint32_t>(raw.eos_id) >= raw.vocab_size)
    throw input_error(
        where, fmt::format("a vocabulary of {} with EOS {} cannot be", raw.vocab_size, raw.eos_id), kHint);
  h.tokens = static_cast<int64_t>(raw.tokens);
  h.text_bytes = static_cast<int64_t>(raw.text_bytes);
  h.documents = static_cast<int64_t>(raw.documents);
  h.row_tokens = static_cast<int64_t>(raw.row_tokens);
  h.vocab_size = static_cast<int32_t>(raw.vocab_size);
  h.eos_id = raw.eos_id;
  h.fingerprint.assign(raw.fingerprint, strnlen(raw.fingerprint, sizeof raw.fingerprint));
  h.checksum = raw.checksum;
  return h;
}

TokenFileWriter::TokenFileWriter(std::filesystem::path path, TokenFileHeader header)
    : path_(std::move(path)), header_(std::move(header)), buffer_(kBufferBytes) {
  header_.bytes_per_token = header_.vocab_size <= 65536 ? 2 : 4;
  HYSPARSE_CHECK(header_.fingerprint.size() == 32, "fingerprint {} is not of 32 digits", header_.fingerprint);
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0) throw failure(path_.string(), fmt::format("cannot be created: {}", std::strerror(errno)));
}

TokenFileWriter::~TokenFileWriter() {
  if (fd_ >= 0) close(fd_);
}

void TokenFileWriter::write_at(const void* data, size_t bytes, int64_t offset) {
  const auto* p = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd_, p, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw failure(path_.string(), fmt::format("cannot be written: {}", std::strerror(errno)));
    p += n, offset += n, bytes -= static_cast<size_t>(n);
  }
}

void TokenFileWriter::flush() {
  checksum_.add(buffer_.data(), used_);
  write_at(buffer_.data(), used_, offset_);
  offset_ += static_cast<int64_t>(used_);
  used_ = 0;
}

void TokenFileWriter::add_tokens(const int32_t* ids, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    HYSPARSE_CHECK(ids[i] >= 0 && ids[i] < header_.vocab_size, "token {} outside [0, {})", ids[i],
                   header_.vocab_size);
    std::memcpy(buffer_.data() + used_, &ids[i], static_cast<size_t>(header_.bytes_per_token));
    used_ += static_cast<size_t>(header_.bytes_per_token);
    if (used_ == buffer_.size()) flush();
  }
  header_.tokens += static_cast<int64_t>(count);
}

void TokenFileWriter::end_document(int64_t text_bytes) {
  add_tokens(&header_.eos_id, 1);
  count_document(text_bytes);
}

void TokenFileWriter::count_document(int64_t text_bytes) {
  header_.text_bytes += text_bytes;
  ++header_.documents;
}

void TokenFileWriter::finish() {
  flush();
  header_.checksum = checksum_.value();
  RawHeader raw{};
  std::memcpy(raw.magic, kMagic, sizeof kMagic);
  raw.version = kTokenFileVersion;
  raw.bytes_per_token = static_cast<uint32_t>(header_.bytes_per_token);
  raw.tokens = static_cast<uint64_t>(header_.tokens);
  raw.text_bytes = static_cast<uint64_t>(header_.text_bytes);
  raw.documents = static_cast<uint64_t>(header_.documents);
  raw.row_tokens = static_cast<uint64_t>(header_.row_tokens);
  raw.vocab_size = static_cast<uint32_t>(header_.vocab_size);
  raw.eos_id = header_.eos_id;
  std::memcpy(raw.fingerprint, header_.fingerprint.data(), sizeof raw.fingerprint);
  raw.checksum = header_.checksum;
  raw.header_checksum = header_checksum(raw);
  write_at(&raw, sizeof raw, 0);
  if (close(std::exchange(fd_, -1)) != 0)
    throw failure(path_.string(), fmt::format("cannot be written: {}", std::strerror(errno)));
}

}  // namespace hysparse
