// The inference cache: pages for full layers (grow with the context), rings for window branches (constant).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/config.h"
#include "model/kv_store.h"
#include "model/plan.h"
#include "tensor/tensor.h"

namespace hysparse {

struct PagedKvOptions {
  int64_t max_tokens = 0;  // a sequence's limit; pages are allocated on demand up to it
  int64_t max_sequences = 1;
  int64_t page_size = 0;         // tokens; 0: max(64, block); a multiple of the selection block
  int64_t max_pages = 0;         // of all sequences together; 0: enough for max_sequences of max_tokens
  DType dtype = DType::f32;      // as the activations: f64, f32 or bf16
  std::optional<double> poison;  // fill unused space with this: a read past the length then shows (tests)
};

// A step: begin_step(), append() for each layer in turn, then commit() the batch (rings take the new tokens
// only then), or discard() it. Page ids are shared by all full layers: page i of a sequence is the same row
// of every layer's pool.
class PagedKv : public KvStore {
 public:
  PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
          Memory& memory = host_memory());
  ~PagedKv() override;

  // Binds sequence s of the coming step's batch to cache sequence ids[s]; batch.past_len must equal
  // length(id). All pages of the step are allocated here, so views stay valid until the next begin_step().
  // Throws, and changes nothing, when a sequence would pass max_tokens or the pool has too few free pages.
  void begin_step(const std::vector<int>& ids, const RaggedBatch& batch);
  KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) override;
  void commit();
  void discard();  // also: nothing happens outside a step

  int64_t length(int id) const;  // committed tokens
  // Keeps the first `length` tokens. False when a ring no longer holds the window before `length` (nothing is
  // changed then): the caller recomputes instead of guessing. The query at `length` needs the keys
  // length - w + 1 .. length - 1; a ring of w rows that has taken n tokens holds n - w .. n - 1: so any
  // length is possible while n <= w, then only n and n - 1 (and 0).
  bool truncate(int id, int64_t length);
  void clear(int id);
  // Allocates the pages that the first `tokens` tokens need, so that later steps up to there cannot fail.
  void reserve(int id, int64_t tokens);
  // Whether a sequence now at length(id) could grow to `tokens`: within max_tokens and the free pages.
  bool fits(int id, int64_t tokens) const;

  int64_t page_bytes() const;      // K and V of the pages in use, all full layers
  int64_t ring_bytes() const;      // K and V of all rings
  int64_t reserved_bytes() const;  // what is allocated, the pools' spare pages included
  int64_t page_size() const;
  int64_t pages_in_use() const;
  int64_t max_tokens() const;

  // Throws when the bookkeeping contradicts itself (a page owned twice or lost, a table too short, ...).
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
