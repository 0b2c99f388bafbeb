#include "train/data.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "io/files.h"
#include "kernels/ops.h"
#include "train/chat_data.h"
#include "train/token_file.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFlags = ".flags";
constexpr int64_t kCheckedAtOpen = int64_t(256) << 20;

fs::path split_path(const fs::path& dir, const std::string& split) {
  return dir / (split + ".tokens");
}

fs::path existing_split(const fs::path& dir, const std::string& split) {
  const fs::path path = split_path(dir, split);
  if (file_exists(path)) return path;
  if (file_exists(split_path(dir, "train")))
    throw input_error(dir.string(), fmt::format("this data has no {} part", split),
                      split == "holdout" ? "prepare it again with a larger --holdout" : "");
  throw input_error(path.string(), "missing", "make the folder with `hysparse data prepare`");
}

}  // namespace

struct TokenData::Impl {
  fs::path path;
  MappedFile file;
  TokenFileHeader header;
  std::unique_ptr<TokenData> flags;  // of conversations

  explicit Impl(fs::path p) : path(std::move(p)), file(path), header(read_token_header(file, path)) {}

  const std::byte* tokens() const { return file.bytes().data() + kTokenFileHeaderBytes; }
  int32_t at(int64_t i) const {
    if (header.bytes_per_token == 2) {
      uint16_t v;
      std::memcpy(&v, tokens() + 2 * i, sizeof v);
      return v;
    }
    uint32_t v;
    std::memcpy(&v, tokens() + 4 * i, sizeof v);
    return static_cast<int32_t>(v);
  }
};

TokenData::TokenData(const fs::path& dir, const std::string& split)
    : impl_(std::make_unique<Impl>(existing_split(dir, split))) {
  if (tokens() * impl_->header.bytes_per_token <= kCheckedAtOpen) verify();
  const bool packed = impl_->header.row_tokens > 0;
  if (!packed || split.ends_with(kFlags)) return;
  if (!has(dir, split + kFlags))
    throw input_error(split_path(dir, split + kFlags).string(), "missing: which tokens are answers",
                      "make the folder again with `hysparse data prepare --chat`");
  impl_->flags = std::make_unique<TokenData>(dir, split + kFlags);
  if (impl_->flags->tokens() != tokens() || impl_->flags->tokenizer_fingerprint() != tokenizer_fingerprint())
    throw input_error(impl_->flags->path().string(), "does not belong to " + path().string(),
                      "make the folder again with `hysparse data prepare --chat`");
}
TokenData::TokenData(TokenData&&) noexcept = default;
TokenData::~TokenData() = default;

bool TokenData::has(const fs::path& dir, const std::string& split) {
  return file_exists(split_path(dir, split));
}

void TokenData::verify() const {
  const TokenFileHeader& h = impl_->header;
  TokenChecksum sum;
  sum.add(impl_->tokens(), static_cast<size_t>(h.tokens) * static_cast<size_t>(h.bytes_per_token));
  if (sum.value() != h.checksum)
    throw input_error(path().string(), "its tokens are damaged: the checksum differs",
                      "make it again with `hysparse data prepare`");
  for (int64_t i = 0; i < h.tokens; ++i)
    if (static_cast<uint32_t>(impl_->at(i)) >= static_cast<uint32_t>(h.vocab_size))
      throw input_error(path().string(), fmt::format("token {} is {}, outside the vocabulary of {}", i,
                                                     static_cast<uint32_t>(impl_->at(i)), h.vocab_size));
}

const fs::path& TokenData::path() const {
  return impl_->path;
}
int64_t TokenData::documents() const {
  return impl_->header.documents;
}
int64_t TokenData::tokens() const {
  return impl_->header.tokens;
}
int64_t TokenData::bytes_of_text() const {
  return impl_->header.text_bytes;
}
int32_t TokenData::vocab_size() const {
  return impl_->header.vocab_size;
}
int32_t TokenData::eos_id() const {
  return impl_->header.eos_id;
}
std::string TokenData::tokenizer_fingerprint() const {
  return impl_->header.fingerprint;
}

int64_t TokenData::row_tokens() const {
  return impl_->header.row_tokens;
}
bool TokenData::learned(int64_t i) const {
  return !impl_->flags || (impl_->flags->at(i) & kLearned) != 0;
}
bool TokenData::ends_document(int64_t i) const {
  return impl_->flags ? (impl_->flags->at(i) & kDocumentEnd) != 0 : at(i) == eos_id();
}

int32_t TokenData::at(int64_t i) const {
  HYSPARSE_CHECK(i >= 0 && i < tokens(), "token {} of {}", i, tokens());
  return impl_->at(i);
}

void TokenData::read(int64_t begin, int64_t count, int32_t* out) const {
  HYSPARSE_CHECK(begin >= 0 && count >= 0 && begin <= tokens() - count, "tokens [{}, {} + {}) of {}", begin,
                 begin, count, tokens());
  for (int64_t i = 0; i < count; ++i) out[i] = impl_->at(begin + i);
}

SampleOrder::SampleOrder(int64_t samples, uint64_t seed, bool shuffle)
    : samples_(samples), seed_(seed), shuffle_(shuffle) {
  if (samples <= 0)
    throw expected_error("training data", "at least one sample", std::to_string(samples),
                         "prepare more text or lower train.seq_len");
  while (half_bits_ < 31 && (int64_t(1) << (2 * half_bits_)) < samples) ++half_bits_;
}

int64_t SampleOrder::sample(int64_t global_index) const {
  HYSPARSE_CHECK(global_index >= 0, "sample {}", global_index);
  const auto n = static_cast<uint64_t>(samples_);
  const uint64_t epoch = static_cast<uint64_t>(global_index) / n;
  uint64_t x = static_cast<uint64_t>(global_index) % n;
  if (!shuffle_ || n == 1) return static_cast<int64_t>(x);
  // A Feistel network is a bijection of [0, 4^half_bits), which is less than 4n wide; starting below n and
  // repeating until the value is below n again permutes [0, n).
  const uint64_t mask = (uint64_t(1) << half_bits_) - 1;
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t mixed = hash_words({seed_, epoch, round, right}) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    x = left << half_bits_ | right;
  } while (x >= n);
  return static_cast<int64_t>(x);
}

TrainBatch make_train_batch(const TokenData& data, const SampleOrder& order, int64_t first, int64_t rows,
                            int64_t seq_len, bool document_mask, int64_t first_row_index) {
  HYSPARSE_CHECK(seq_len > 0 && rows >= 0, "{} rows of {} tokens", rows, seq_len);
  const int64_t available = (data.tokens() - 1) / seq_len;
  if (data.tokens() > seq_len && order.samples() > available)
    throw expected_error(data.path().string(),
                         fmt::format("{} samples of {} tokens", order.samples(), seq_len),
                         std::to_string(available));
  std::vector<int64_t> samples(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) samples[static_cast<size_t>(r)] = order.sample(first + r);
  return make_train_batch(data, samples, seq_len, document_mask, first_row_index);
}

TrainBatch make_train_batch(const TokenData& data, const std::vector<int64_t>& samples, int64_t seq_len,
                            bool document_mask, int64_t first_row_index) {
  HYSPARSE_CHECK(seq_len > 0, "rows of {} tokens", seq_len);
  const std::string where = data.path().string();
  const int64_t rows = std::ssize(samples);
  if (data.tokens() <= seq_len)
    throw expected_error(where, fmt::format("more than {} tokens for one sample of that length", seq_len),
                         std::to_string(data.tokens()), "prepare more text or lower train.seq_len");
  TrainBatch out;
  const auto total = static_cast<size_t>(rows * seq_len);
  out.tokens.resize(total);
  out.labels.resize(total);
  std::vector<int32_t> row(static_cast<size_t>(seq_len) + 1);
  for (int64_t r = 0; r < rows; ++r) {
    data.read(samples[static_cast<size_t>(r)] * seq_len, seq_len + 1, row.data());
    for (const int32_t t : row)
      if (t < 0 || t >= data.vocab_size())
        throw input_error(where,
                          fmt::format("token {} is outside the vocabulary of {}", t, data.vocab_size()));
    std::copy(row.begin(), row.end() - 1, out.tokens.begin() + r * seq_len);
    std::copy(row.begin() + 1, row.end(), out.labels.begin() + r * seq_len);
    const int64_t first = samples[static_cast<size_t>(r)] * seq_len;
    int64_t begin = 0;
    for (int64_t i = 0; i < seq_len; ++i) {
      const bool ends = document_mask && data.ends_document(first + i);
      if (ends || !data.learned(first + i + 1))
        out.labels[static_cast<size_t>(r * seq_len + i)] = kIgnoreLabel;
      else
        ++out.targets;
      if (!ends) continue;
      out.batch.add_sequence(i + 1 - begin, 0, first_row_index + r);
      begin = i + 1;
    }
    if (begin < seq_len) out.batch.add_sequence(seq_len - begin, 0, first_row_index + r);
  }
  return out;
}

}  // namespace hysparse
