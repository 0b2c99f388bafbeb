// The bytes of the inference cache: pages of full layers, slots of rings. Who owns what is PagedKv's
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kv_view.h"
#include "model/config.h"
#include "model/kv_dtype.h"
#include "model/plan.h"
#include "tensor/tensor.h"

namespace hysparse {

// Uninitialised memory: untouched parts of a large block cost address space only.
class KvBlock {
 public:
  KvBlock() = default;
  KvBlock(size_t bytes, Memory& memory) : data_(memory.allocate(bytes)), bytes_(bytes), memory_(&memory) {}
  KvBlock(KvBlock&& o) noexcept { *this = std::move(o); }
  KvBlock& operator=(KvBlock&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(memory_, o.memory_);
    return *this;
  }
  ~KvBlock() {
    if (memory_) memory_->release(data_, bytes_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Memory* memory_ = nullptr;
};

// K or V of one layer: `groups` (pages or slots) of `rows` tokens of `heads` x `dim`.
struct KvTensor {
  int64_t groups = 0, rows = 0, heads = 0, dim = 0;
  DType dtype = DType::f32;
  KvBlock block;

  size_t row_bytes() const { return static_cast<size_t>(heads * dim) * size_of(dtype); }
  size_t group_bytes() const { return static_cast<size_t>(rows) * row_bytes(); }
  std::byte* at(int64_t group, int64_t row) const {
    return block.data() + static_cast<size_t>(group) * group_bytes() + static_cast<size_t>(row) * row_bytes();
  }
  TensorView view() const { return TensorView(block.data(), dtype, {groups, rows, heads, dim}); }
};

struct KvLayer {
  KvTensor k, v;
  KvTensor scales;  // of pages in 8 bits: of k and of v; else without rows
  bool ring = false;

  std::vector<KvTensor*> tensors() {
    return in_8_bits() ? std::vector{&k, &v, &scales} : std::vector{&k, &v};
  }
  std::vector<const KvTensor*> tensors() const {
    return in_8_bits() ? std::vector{&k, &v, &scales} : std::vector{&k, &v};
  }
  bool in_8_bits() const { return scales.heads > 0; }
  size_t group_bytes() const {
    size_t bytes = 0;
    for (const KvTensor* t : tensors()) bytes += t->group_bytes();
    return bytes;
  }
};

class KvStorage {
 public:
  // page_size a multiple of the selection block; slots: of each window branch's ring.
  KvStorage(const ModelConfig& config, const LayerPlan& plan, DType dtype, KvDtype pages, int64_t page_size,
            int64_t slots, std::optional<double> poison, Memory& memory);

  // The layer's tensors; null where it stores nothing.
  const KvLayer* layer(int index) const;
  int layers() const { return static_cast<int>(index_.size()); }
  const std::vector<KvLayer>& pools() const { return pools_; }
  const std::vector<KvLayer>& rings() const { return rings_; }
  int64_t page_bytes() const;  // K and V of one page, all full layers
  int64_t slot_bytes() const;  // of one slot, all rings
  int64_t pages() const { return pages_; }
  size_t allocated_bytes() const;

  // Makes the pools hold `pages`. Layer by layer: the old pool is gone before the next one grows.
  void grow(int64_t pages);
  // The first `rows` rows of a page.
  void copy_page(int32_t from, int32_t to, int64_t rows);
  void copy_slot(int32_t from, int32_t to);
  void page_to_host(int32_t page, int64_t rows, std::byte* host) const;
  void page_from_host(int32_t page, int64_t rows, const std::byte* host);
  void slot_to_host(int32_t slot, std::byte* host) const;
  void slot_from_host(int32_t slot, const std::byte* host);
  // Fills space that holds nothing any more, where poison was asked for.
  void poison_page(int32_t page, int64_t from_row);
  void poison_slot(int32_t slot, int64_t begin, int64_t end);  // positions [begin, end) of its sequence

 private:
  void poison(DType dtype, std::byte* p, size_t bytes);

  std::optional<double> poison_;
  Memory& memory_;
  int64_t page_size_, pages_ = 0;
  std::vector<int> index_;  // of a layer into pools_ or rings_; -1: stores nothing
  std::vector<bool> is_ring_;
  std::vector<KvLayer> pools_, rings_;
};

// Rows [first, first + count) of src [n, heads, dim] (dense in dim only) to contiguous rows at dst.
void copy_kv_rows(Memory& memory, const TensorView& src, int64_t first, int64_t count, std::byte* dst);

}  // namespace hysparse
