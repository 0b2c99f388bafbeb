// Prepared data: token shards with document boundaries, and the order in which training reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/batch.h"
#include "tensor/tensor.h"

namespace hysparse {

// One split ("train" or "holdout") of a prepared directory, memory-mapped: the concatenation of all
// documents, each ended by EOS.
class TokenData {
 public:
  // Error(input) when the split is missing, cut off, damaged or of another version. Files up to 256 MiB are
  // read once and checked against their checksum; larger ones only by verify().
  TokenData(const std::filesystem::path& dir, const std::string& split);
  TokenData(TokenData&&) noexcept;
  ~TokenData();
  // Whether `dir` has that split: data prepared with --holdout 0 has no "holdout".
  static bool has(const std::filesystem::path& dir, const std::string& split);
  void verify() const;  // reads everything
  const std::filesystem::path& path() const;
  int64_t documents() const;
  int64_t tokens() const;
  int64_t bytes_of_text() const;  // of the documents, EOS not counted; for bits per byte
  int32_t vocab_size() const;     // of the tokenizer it was made with
  int32_t eos_id() const;
  std::string tokenizer_fingerprint() const;
  int64_t row_tokens() const;  // > 0: packed in rows of so many tokens (conversations)
  // Of conversations, what a token is (train/chat_data.h); elsewhere every token is learned, and EOS ends a
  // document.
  bool learned(int64_t i) const;
  bool ends_document(int64_t i) const;
  int32_t at(int64_t i) const;                                  // token i
  void read(int64_t begin, int64_t count, int32_t* out) const;  // [begin, begin + count) must exist

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sample i of an epoch is tokens [iT, iT + T], T + 1 of them; n = (tokens - 1) / T samples; epoch e visits a
// permutation of them given by (seed, e) alone. The g-th sample ever drawn depends on nothing but (seed, n,
// g): not on workers, ranks or resumes.
class SampleOrder {
 public:
  SampleOrder(int64_t samples, uint64_t seed, bool shuffle = true);  // samples > 0
  int64_t samples() const { return samples_; }
  int64_t sample(int64_t global_index) const;  // without stored state

 private:
  int64_t samples_;
  uint64_t seed_;
  bool shuffle_;
  int half_bits_ = 0;  // the permutation is made on [0, 4^half_bits) and walked until it falls below samples
};

// A micro-batch of rows: packed tokens, labels (next token; kIgnoreLabel behind the last token of a document
// when masked), cu_q.
struct TrainBatch {
  RaggedBatch batch;
  std::vector<int32_t> tokens, labels;
  int64_t targets = 0;  // labels that count
};
// Rows [first, first + rows) of the order, seq_len tokens each. With document_mask every document of a row
// (and every piece of one that the row's ends cut off) is its own sequence, positions restart in it, and the
// label behind its end does not count; without, a row is one sequence and all labels count. Labels that are
// not learned never count. RaggedBatch::row is first_row_index, first_row_index + 1, ...
TrainBatch make_train_batch(const TokenData& data, const SampleOrder& order, int64_t first, int64_t rows,
                            int64_t seq_len, bool document_mask, int64_t first_row_index = 0);
// The same of the samples with these numbers.
TrainBatch make_train_batch(const TokenData& data, const std::vector<int64_t>& samples, int64_t seq_len,
                            bool document_mask, int64_t first_row_index = 0);

}  // namespace hysparse
