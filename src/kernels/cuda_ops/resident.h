// What stays on the GPU from call to call: tables of a step's batches, index lists of selections, and memory
// that is used again. Everything runs on one stream, so a buffer may be rewritten as soon as the calls that
// read it have been issued.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda_ops/library.h"
#include "kernels/cuda_ops/recording.h"
#include "kernels/kv_view.h"

namespace hysparse::cuda_calls {

// Device memory by powers of two; what is given back is kept for the next caller.
class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  ~BlockPool();
  std::shared_ptr<void> take(size_t bytes);

 private:
  std::multimap<size_t, void*> free_;
  std::mutex mutex_;
};

// Host arrays on the device by content: equal bytes are sent once. What a call gets stays valid until it has
// asked for kEntries others.
class TableCache {
 public:
  explicit TableCache(BlockPool& pool) : pool_(pool) {}
  template <class T>
  const T* on_device(const T* host, size_t count) {
    return static_cast<const T*>(find(host, count * sizeof(T)));
  }
  template <class T>
  const T* on_device(const std::vector<T>& host) {
    return on_device(host.data(), host.size());
  }

 private:
  static constexpr size_t kEntries = 64;
  struct Entry {
    std::vector<std::byte> host;
    std::shared_ptr<void> device;
    uint64_t used = 0;
  };
  const void* find(const void* host, size_t bytes);

  BlockPool& pool_;
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
  std::mutex mutex_;
};

using FastBatch = std::shared_ptr<hysparse_cuda_batch>;

// The tables of the fast kernels, by the numbers of the batch.
class BatchCache {
 public:
  // Null where some sequence has no rows or a key lies beyond 2^31 rows: the plain kernels take those.
  FastBatch get(const RaggedBatch& batch, const int64_t* cu_kv);

 private:
  static constexpr size_t kEntries = 8;
  struct Entry {
    std::vector<int32_t> key;
    FastBatch batch;
    uint64_t used = 0;
  };
  std::vector<Entry> entries_;
  uint64_t clock_ = 0;
  std::mutex mutex_;
};

// Index lists of one selection, with the memory and the batch that they point into.
struct FastSelection {
  FastBatch batch;
  std::shared_ptr<void> memory;
  std::shared_ptr<hysparse_cuda_selection> selection;
  const void* idx = nullptr;
  int64_t block = 0;
  int q_heads = 0;
  bool backward = false;
};

// K and V of one call's sequences widened from 8 bits (kv_8_bits.h): the latest, for calls over the same
// rows.
struct WidenedKv {
  std::shared_ptr<void> memory;
  size_t bytes = 0;
  std::shared_ptr<const void> version;  // KvView::version
  DType t = DType::bf16;
  std::vector<int64_t> rows;
  std::mutex mutex;
};

struct Resident {
  bool deterministic = false;
  int managed = 0;  // the memory that tensors lie in
  std::shared_ptr<BlockPool> pool = std::make_shared<BlockPool>();
  TableCache tables{*pool};
  BatchCache batches;
  Recorder recorder{*pool};
  WidenedKv widened;
};

}  // namespace hysparse::cuda_calls
