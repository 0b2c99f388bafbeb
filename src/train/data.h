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
  TokenData(const std::filesystem::path& dir, const std::string& split);
  ~TokenData();
  int64_t tokens() const;
  int64_t bytes_of_text() const;  // for bits per byte
  int32_t vocab_size() const;     // of the tokenizer it was made with
  int32_t eos_id() const;
  std::string tokenizer_fingerprint() const;
  int32_t at(int64_t i) const;  // token i
  void read(int64_t begin, int64_t count, int32_t* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Sample i of an epoch is tokens [iT, iT + T], T + 1 of them; n = (tokens - 1) / T samples; epoch e visits a
// permutation of them given by (seed, e) alone. The g-th sample ever drawn depends on nothing but (seed, n,
// g): not on workers, ranks or resumes.
class SampleOrder {
 public:
  SampleOrder(int64_t samples, uint64_t seed, bool shuffle = true);
  int64_t sample(int64_t global_index) const;

 private:
  int64_t samples_;
  uint64_t seed_;
  bool shuffle_;
};

// A micro-batch of rows: packed tokens, labels (next token; kIgnoreLabel behind the last token of a document
// when masked), cu_q.
struct TrainBatch {
  RaggedBatch batch;
  std::vector<int32_t> tokens, labels;
  int64_t targets = 0;  // labels that count
};
// Rows [first, first + rows) of the order; with document_mask every document of a row is its own sequence and
// positions restart.
TrainBatch make_train_batch(const TokenData& data, const SampleOrder& order, int64_t first, int64_t rows,
                            int64_t seq_len, bool document_mask, int64_t first_row_index = 0);

}  // namespace hysparse
