// The inference cache: pages for full layers (grow with the context), rings for window branches (constant).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"
#include "model/kv_store.h"
#include "model/plan.h"
#include "tensor/tensor.h"

namespace hysparse {

struct PagedKvOptions {
  int64_t max_tokens = 0;  // a sequence's limit; pages are allocated on demand up to it
  int64_t max_sequences = 1;
  int64_t page_size = 0;       // tokens; 0: max(64, block); a multiple of the selection block
  int64_t max_pages = 0;       // of all sequences together; 0: enough for max_sequences of max_tokens
  int64_t slots = 0;           // rings for this many sequences and snapshots together; 0: max_sequences
  bool reserve_pages = false;  // take the memory of max_pages at once, not as they are needed
  DType dtype = DType::f32;    // as the activations: f64, f32 or bf16
  KvDtype kv_dtype = KvDtype::compute;  // of pages; in 8 bits needs a runtime
  std::optional<double> poison;  // fill unused space with this: a read past the length then shows (tests)
};

// The runtime that a cache of such pages takes: on the host rows in the compute dtype are copied without.
inline Runtime* cache_runtime(Runtime& rt, KvDtype kv) {
  return rt.memory.device() == DeviceKind::cpu && kv == KvDtype::compute ? nullptr : &rt;
}

// What a sequence held, in host memory: the way back of a sequence that made room for others.
struct KvImage {
  int64_t length = 0, peak = 0;
  bool slot = false;
  DType dtype = DType::f32;  // of the activations
  KvDtype kv_dtype = KvDtype::compute;
  std::vector<std::byte> bytes;
};

// A step: begin_step(), append() for each layer in turn, then commit() the batch (rings take the new tokens
// only then), or discard() it. Page ids are shared by all full layers: page i of a sequence is the same row
// of every layer's pool. A slot is one sequence's rings of all window branches.
//
// Pages may have several holders: sequences that began alike, and a prefix cache. A sequence that is about to
// write into a page that others hold gets a copy of its own first.
class PagedKv : public KvStore {
 public:
  // runtime: whose operations bring rows to their places; without one they are copied run by run, as is best
  // on the host where nothing is to be computed.
  PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
          Memory& memory = host_memory(), Runtime* runtime = nullptr);
  ~PagedKv() override;

  // Binds sequence s of the coming step's batch to cache sequence ids[s]; batch.past_len must equal
  // length(id). All pages and slots of the step are taken here, so views stay valid until the next
  // begin_step(). Throws, and changes nothing, when a sequence would pass max_tokens or too few pages or
  // slots are free. partial: commit() may be asked to keep fewer tokens than the batch has.
  void begin_step(const std::vector<int>& ids, const RaggedBatch& batch, bool partial = false);
  KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) override;
  void commit();
  // begin_step() of one new token a sequence and `body`, a forward of the batch into `logits` and nothing
  // else, as a step that repeats while the sequences grow (kernels/ops.h); commit() or discard() come next.
  // model_layout: Model::layout() of repeat_bound() positions. Needs a runtime.
  void repeat(const std::vector<int>& ids, RaggedBatch batch, uint64_t model_layout, const TensorView& tokens,
              const TensorView& logits, const std::function<void(const RaggedBatch&)>& body);
  // The length up to which sequences now of `length` share one recording; at most max_tokens.
  int64_t repeat_bound(int64_t length) const;
  bool can_repeat() const;  // a runtime on a device
  // Of each sequence of the batch the first kept[s] >= 1 new tokens; pages beyond are given back.
  void commit(std::span<const int64_t> kept);
  void discard();  // also: nothing happens outside a step

  int64_t length(int id) const;  // committed tokens
  // Keeps the first `length` tokens. False when a ring no longer holds the window before `length` (nothing is
  // changed then): the caller recomputes instead of guessing. The query at `length` needs the keys
  // length - w + 1 .. length - 1; a ring of w rows that has taken n tokens holds n - w .. n - 1: so any
  // length is possible while n <= w, then only n and n - 1 (and 0).
  bool truncate(int id, int64_t length);
  void clear(int id);
  // Takes the pages and the slot that the first `tokens` tokens need, so that later steps up to there cannot
  // fail.
  void reserve(int id, int64_t tokens);
  // Whether a sequence now at length(id) could grow to `tokens`: within max_tokens and the free pages.
  bool fits(int id, int64_t tokens) const;
  // Free pages that growing to `tokens` takes, a copy of a shared page included.
  int64_t pages_missing(int id, int64_t tokens) const;
  int64_t pages_for(int64_t tokens) const;  // that hold so many; 0 where the model has no full layer

  // ---- sharing. Slots and pages that a caller holds are its own to give back.
  bool has_rings() const;
  std::span<const int32_t> pages(int id) const;  // of the sequence, first to last
  void hold_page(int32_t page);
  void drop_page(int32_t page);
  // A free slot with a copy of the sequence's rings, held by the caller.
  int32_t copy_rings(int id);
  // The sequence's own slot, which the caller holds from now on. The sequence must be cleared next.
  int32_t take_rings(int id);
  void hold_slot(int32_t slot);
  void drop_slot(int32_t slot);
  // Whether rings that have taken `peak` tokens serve a sequence of `length`.
  bool rings_serve(int64_t length, int64_t peak) const;
  // Makes the empty sequence `id` one of `length` tokens: those in `pages`, which it shares from now on, and
  // with a copy of the rings in `slot`, which have taken `peak` tokens.
  void attach(int id, std::span<const int32_t> pages, int64_t length, int32_t slot, int64_t peak);
  // Makes the empty sequence `to` equal to `from`.
  void fork(int from, int to);
  // Moves a sequence to host memory and clears it; and back into an empty one.
  KvImage move_out(int id);
  void move_in(int id, const KvImage& image);
  int64_t image_bytes(int id) const;  // what move_out() takes

  int64_t free_pages() const;  // of max_pages
  int64_t free_slots() const;
  int64_t slots() const;
  int64_t slot_bytes() const;
  int64_t page_bytes() const;      // K and V of the pages in use, all full layers
  int64_t ring_bytes() const;      // K and V of all rings
  int64_t reserved_bytes() const;  // what is allocated, the pools' spare pages included
  int64_t page_size() const;
  int64_t max_pages() const;
  int64_t pages_in_use() const;
  int64_t max_tokens() const;

  // Throws when the bookkeeping contradicts itself (a page with wrong holders or lost, a table too short,
  // ...); the arguments: what callers hold, an entry a hold.
  void check(std::span<const int32_t> held_pages = {}, std::span<const int32_t> held_slots = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
