#include "engine/kv_storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace hysparse {

void copy_kv_rows(Memory& memory, const TensorView& src, int64_t first, int64_t count, std::byte* dst) {
  const size_t element = size_of(src.dtype);
  const int64_t heads = src.dim(1), dim = src.dim(2);
  const bool dense_heads = heads == 1 || src.stride[1] == dim;
  const auto* base =
      static_cast<const std::byte*>(src.data) + static_cast<size_t>(first * src.stride[0]) * element;
  const size_t row = static_cast<size_t>(heads * dim) * element;
  if (dense_heads && (src.stride[0] == heads * dim || count == 1)) {
    memory.copy(dst, base, static_cast<size_t>(count) * row);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto* from = base + static_cast<size_t>(i * src.stride[0]) * element;
    std::byte* to = dst + static_cast<size_t>(i) * row;
    if (dense_heads) {
      memory.copy(to, from, row);
      continue;
    }
    const size_t head = static_cast<size_t>(dim) * element;
    for (int64_t h = 0; h < heads; ++h)
      memory.copy(to + static_cast<size_t>(h) * head, from + static_cast<size_t>(h * src.stride[1]) * element,
                  head);
  }
}

KvStorage::KvStorage(const ModelConfig& config, const LayerPlan& plan, DType dtype, KvDtype pages,
                     int64_t page_size, int64_t slots, std::optional<double> poison, Memory& memory)
    : poison_(poison), memory_(memory), page_size_(page_size) {
  const auto make = [&](int64_t groups, int64_t rows, int64_t dim, DType type) {
    KvTensor t;
    t.groups = groups;
    t.rows = rows;
    t.heads = config.kv_heads();
    t.dim = dim;
    t.dtype = type;
    t.block = KvBlock(static_cast<size_t>(groups) * t.group_bytes(), memory);
    this->poison(t.dtype, t.block.data(), t.block.bytes());
    return t;
  };
  for (const LayerPlanEntry& entry : plan) {
    const bool full = entry.kind == LayerKind::full;
    const bool ring = !full && entry.own_window_kv;
    is_ring_.push_back(ring);
    index_.push_back(full || ring ? static_cast<int>(ring ? rings_.size() : pools_.size()) : -1);
    if (!full && !ring) continue;
    KvLayer layer;
    layer.ring = ring;
    const DType type = ring ? dtype : page_dtype(pages, dtype);
    layer.k = make(ring ? slots : 0, ring ? entry.window : page_size, config.d(), type);
    layer.v = make(ring ? slots : 0, ring ? entry.window : page_size, config.dv(), type);
    if (type != dtype) layer.scales = make(0, page_size, 2, DType::bf16);
    (ring ? rings_ : pools_).push_back(std::move(layer));
  }
}

const KvLayer* KvStorage::layer(int index) const {
  const int at = index_[static_cast<size_t>(index)];
  if (at < 0) return nullptr;
  return &(is_ring_[static_cast<size_t>(index)] ? rings_ : pools_)[static_cast<size_t>(at)];
}

int64_t KvStorage::page_bytes() const {
  size_t bytes = 0;
  for (const KvLayer& l : pools_) bytes += l.group_bytes();
  return static_cast<int64_t>(bytes);
}

int64_t KvStorage::slot_bytes() const {
  size_t bytes = 0;
  for (const KvLayer& l : rings_) bytes += l.group_bytes();
  return static_cast<int64_t>(bytes);
}

size_t KvStorage::allocated_bytes() const {
  size_t bytes = 0;
  for (const auto* layers : {&pools_, &rings_})
    for (const KvLayer& l : *layers)
      for (const KvTensor* t : l.tensors()) bytes += t->block.bytes();
  return bytes;
}

void KvStorage::grow(int64_t pages) {
  if (pages <= pages_) return;
  for (KvLayer& l : pools_)
    for (KvTensor* t : l.tensors()) {
      if (t->groups >= pages) continue;  // a growth that failed half way
      KvBlock block(static_cast<size_t>(pages) * t->group_bytes(), memory_);
      const size_t used = static_cast<size_t>(pages_) * t->group_bytes();
      if (used > 0) memory_.copy(block.data(), t->block.data(), used);
      t->block = std::move(block);
      t->groups = pages;
      poison(t->dtype, t->block.data() + used, t->block.bytes() - used);
    }
  pages_ = pages;
}

void KvStorage::copy_page(int32_t from, int32_t to, int64_t rows) {
  for (const KvLayer& l : pools_)
    for (const KvTensor* t : l.tensors())
      memory_.copy(t->at(to, 0), t->at(from, 0), static_cast<size_t>(rows) * t->row_bytes());
}

void KvStorage::copy_slot(int32_t from, int32_t to) {
  for (const KvLayer& l : rings_)
    for (const KvTensor* t : l.tensors()) memory_.copy(t->at(to, 0), t->at(from, 0), t->group_bytes());
}

void KvStorage::page_to_host(int32_t page, int64_t rows, std::byte* host) const {
  for (const KvLayer& l : pools_)
    for (const KvTensor* t : l.tensors()) {
      const size_t bytes = static_cast<size_t>(rows) * t->row_bytes();
      memory_.to_host(host, t->at(page, 0), bytes);
      host += bytes;
    }
}

void KvStorage::page_from_host(int32_t page, int64_t rows, const std::byte* host) {
  for (const KvLayer& l : pools_)
    for (const KvTensor* t : l.tensors()) {
      const size_t bytes = static_cast<size_t>(rows) * t->row_bytes();
      memory_.from_host(t->at(page, 0), host, bytes);
      host += bytes;
    }
}

void KvStorage::slot_to_host(int32_t slot, std::byte* host) const {
  for (const KvLayer& l : rings_)
    for (const KvTensor* t : l.tensors()) {
      memory_.to_host(host, t->at(slot, 0), t->group_bytes());
      host += t->group_bytes();
    }
}

void KvStorage::slot_from_host(int32_t slot, const std::byte* host) {
  for (const KvLayer& l : rings_)
    for (const KvTensor* t : l.tensors()) {
      memory_.from_host(t->at(slot, 0), host, t->group_bytes());
      host += t->group_bytes();
    }
}

// Codes stay as they are: the poison of their scales makes it theirs.
void KvStorage::poison(DType dtype, std::byte* p, size_t bytes) {
  if (!poison_ || bytes == 0 || size_of(dtype) == 1) return;
  const size_t element = size_of(dtype);
  std::vector<std::byte> fill(bytes);
  const double wide = *poison_;
  const auto single = static_cast<float>(wide);
  const bf16 half(single);
  const void* from = dtype == DType::f64   ? static_cast<const void*>(&wide)
                     : dtype == DType::f32 ? static_cast<const void*>(&single)
                                           : static_cast<const void*>(&half);
  for (size_t at = 0; at < bytes; at += element) std::memcpy(fill.data() + at, from, element);
  memory_.from_host(p, fill.data(), bytes);
}

void KvStorage::poison_page(int32_t page, int64_t from_row) {
  if (!poison_) return;
  for (const KvLayer& l : pools_)
    for (const KvTensor* t : l.tensors())
      poison(t->dtype, t->at(page, from_row), static_cast<size_t>(page_size_ - from_row) * t->row_bytes());
}

void KvStorage::poison_slot(int32_t slot, int64_t begin, int64_t end) {
  if (!poison_) return;
  for (const KvLayer& l : rings_)
    for (const KvTensor* t : l.tensors())
      for (int64_t p = std::max(begin, end - t->rows); p < end; ++p)
        poison(t->dtype, t->at(slot, p % t->rows), t->row_bytes());
}

}  // namespace hysparse
