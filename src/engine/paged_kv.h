// The inference cache: pages for full layers (grow with the context), rings for window branches (constant).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/kv_store.h"
#include "model/plan.h"
#include "tensor/tensor.h"

namespace hysparse {

struct PagedKvOptions {
  int64_t max_tokens = 0;  // a sequence's limit; pages are allocated on demand up to it
  int64_t max_sequences = 1;
  int64_t page_size = 0;     // 0: max(64, block); a multiple of the selection block
  DType dtype = DType::f32;  // as the activations: f64, f32 or bf16
};

// A step: append() for each layer in turn, then commit() the batch (rings take the new tokens only then), or
// discard() it.
class PagedKv : public KvStore {
 public:
  PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
          Memory& memory = host_memory());
  ~PagedKv() override;

  // Binds sequence s of the coming step's batch to cache sequence ids[s]; batch.past_len must equal
  // length(id).
  void begin_step(const std::vector<int>& ids, const RaggedBatch& batch);
  KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) override;
  void commit();
  void discard();

  int64_t length(int id) const;  // committed tokens
  // Keeps the first `length` tokens. False when a ring no longer holds the window before `length` (nothing is
  // changed then): the caller recomputes instead of guessing.
  bool truncate(int id, int64_t length);
  void clear(int id);

  int64_t page_bytes() const;  // bytes of the pages in use
  int64_t ring_bytes() const;  // bytes of all rings
  int64_t page_size() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
