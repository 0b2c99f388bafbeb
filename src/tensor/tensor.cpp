#include "tensor/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "base/limits.h"
#include "base/sanitizer.h"

namespace hysparse {
namespace {

class HostMemory final : public Memory {
 public:
  DeviceKind device() const override { return DeviceKind::cpu; }
  void* allocate(size_t bytes) override {
    // The system hands out more than there is and kills whoever touches it, without a word: what cannot fit
    // is refused here. (Nor does the library look for overflow when it rounds the size up.)
    static const auto limit = static_cast<size_t>(memory_limit());
    const size_t before = bytes > limit ? used_.load() : used_.fetch_add(bytes);
    if (bytes > limit || before > limit - bytes) {
      if (bytes <= limit) used_.fetch_sub(bytes);
      throw failure("memory",
                    fmt::format("could not allocate {} bytes: {} are in use, and this process may have {}",
                                bytes, before, limit),
                    "a smaller batch, context or dtype needs less");
    }
    void* p = ::operator new(std::max<size_t>(bytes, 1), alignment(bytes), std::nothrow);
    if (p) {
      if (bytes >= kHugePage) madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint
      return p;
    }
    used_.fetch_sub(bytes);
    throw failure("memory", fmt::format("could not allocate {} bytes: {} are in use", bytes, before));
  }
  void release(void* p, size_t bytes) noexcept override {
    ::operator delete(p, alignment(bytes));
    used_.fetch_sub(bytes);
  }
  void zero(void* p, size_t bytes) override { std::memset(p, 0, bytes); }
  void from_host(void* dst, const void* host, size_t bytes) override { std::memcpy(dst, host, bytes); }
  void to_host(void* host, const void* src, size_t bytes) override { std::memcpy(host, src, bytes); }
  void copy(void* dst, const void* src, size_t bytes) override { std::memmove(dst, src, bytes); }
  size_t available() const override { return static_cast<size_t>(memory_available()); }

 private:
  // Large buffers lie on huge pages where the system has them: reading weights in order is twice as fast.
  static constexpr size_t kHugePage = size_t(2) << 20;
  static std::align_val_t alignment(size_t bytes) {
    return std::align_val_t{bytes >= kHugePage ? kHugePage : 64};
  }
  std::atomic<size_t> used_{0};
};

size_t checked_bytes(DType dtype, std::initializer_list<int64_t> dims) {
  size_t bytes = size_of(dtype);
  for (int64_t d : dims) {
    HYSPARSE_CHECK(d >= 0 && !__builtin_mul_overflow(bytes, static_cast<size_t>(d), &bytes),
                   "tensor shape with a dimension of {} overflows", d);
  }
  return bytes;
}

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

TensorView::TensorView(void* p, DType t, std::initializer_list<int64_t> dims) : data(p), dtype(t) {
  HYSPARSE_CHECK(dims.size() <= kMaxRank, "rank {} is over {}", dims.size(), kMaxRank);
  rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), shape.begin());
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[size_t(i)] = step;
    HYSPARSE_CHECK(shape[size_t(i)] >= 0 && !__builtin_mul_overflow(step, shape[size_t(i)], &step),
                   "tensor shape with a dimension of {} overflows", shape[size_t(i)]);
  }
}

int64_t TensorView::numel() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= dim(i);
  return n;
}

bool TensorView::contiguous() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride[size_t(i)] != step) return false;
    step *= dim(i);
  }
  return true;
}

bool TensorView::same_shape(const TensorView& o) const {
  return rank == o.rank && std::equal(shape.begin(), shape.begin() + rank, o.shape.begin());
}

TensorView TensorView::rows(int64_t begin, int64_t end) const {
  HYSPARSE_CHECK(rank >= 1 && 0 <= begin && begin <= end && end <= dim(0), "rows [{}, {}) of {}", begin, end,
                 describe());
  TensorView v = *this;
  v.data = static_cast<std::byte*>(data) + static_cast<size_t>(begin * stride[0]) * size_of(dtype);
  v.shape[0] = end - begin;
  return v;
}

TensorView TensorView::at(int64_t i) const {
  TensorView v = rows(i, i + 1);
  for (int d = 1; d < rank; ++d) {
    v.shape[size_t(d) - 1] = shape[size_t(d)];
    v.stride[size_t(d) - 1] = stride[size_t(d)];
  }
  --v.rank;
  return v;
}

TensorView TensorView::reshape(std::initializer_list<int64_t> dims) const {
  HYSPARSE_CHECK(contiguous(), "reshape of a strided view {}", describe());
  TensorView v(data, dtype, dims);
  HYSPARSE_CHECK(v.numel() == numel(), "reshape {} to {}", describe(), v.describe());
  return v;
}

std::string TensorView::describe() const {
  std::string s(name_of(dtype));
  s += '[';
  for (int i = 0; i < rank; ++i) s += (i ? ", " : "") + std::to_string(dim(i));
  return s + ']';
}

// (Delegates so that the destructor runs should a later step throw.)
Tensor::Tensor(DType dtype, std::initializer_list<int64_t> dims, Memory& memory) : Tensor() {
  bytes_ = checked_bytes(dtype, dims);
  view_ = TensorView(nullptr, dtype, dims);
  view_.data = memory.allocate(bytes_);
  memory_ = &memory;
  memory.zero(view_.data, bytes_);
}

Tensor& Tensor::operator=(Tensor&& o) noexcept {
  std::swap(view_, o.view_);
  std::swap(bytes_, o.bytes_);
  std::swap(memory_, o.memory_);
  return *this;
}

Tensor::~Tensor() {
  if (memory_) memory_->release(view_.data, bytes_);
}

HostCopy::HostCopy(const TensorView& tensor, Memory& memory) : view_(tensor) {
  if (memory.device() == DeviceKind::cpu) return;
  HYSPARSE_CHECK(tensor.contiguous(), "a copy of a strided view {}", tensor.describe());
  own_ = Tensor(tensor.dtype, {tensor.numel()});
  view_.data = own_.view().data;
  memory.to_host(view_.data, tensor.data, tensor.bytes());
}

// Pieces of host memory have borders under AddressSanitizer, and what is not handed out is forbidden.
static bool watched(const Memory* memory) {
  return kBorder > 0 && memory == &host_memory();
}

constexpr size_t kRange = size_t(1) << 40;  // addresses, not memory

Arena::~Arena() {
  for (const Slab& s : slabs_) {
    if (watched(memory_)) permit(s.data, s.size);
    if (in_place_)
      memory_->release_range(s.data, kRange, s.size);
    else
      memory_->release(s.data, s.size);
  }
}

// False where the memory has slabs only.
bool Arena::grow_in_place(size_t bytes) {
  if (!asked_) {
    asked_ = true;
    if (void* range = memory_->reserve(kRange)) {
      in_place_ = true;
      slabs_.push_back({range, 0});
    }
  }
  if (!in_place_) return false;
  Slab& slab = slabs_[0];
  if (used_ + bytes > slab.size) {
    const size_t step = Memory::kCommitStep, to = (used_ + bytes + step - 1) / step * step;
    HYSPARSE_CHECK(to <= kRange, "an arena of {} bytes", to);
    memory_->commit(slab.data, slab.size, to);
    slab.size = to;
  }
  return true;
}

void* Arena::alloc_bytes(size_t bytes) {
  HYSPARSE_CHECK(bytes <= SIZE_MAX / 2, "an arena allocation of {} bytes", bytes);
  const size_t wanted = bytes;
  bytes = (bytes + kBorder + 63) & ~size_t(63);
  const bool in_place = grow_in_place(bytes);
  while (!in_place && current_ < slabs_.size() && used_ + bytes > slabs_[current_].size) {
    ++current_;
    used_ = 0;
  }
  if (current_ == slabs_.size()) {
    const size_t grown =
        slabs_.empty() ? size_t(1) << 20 : std::min<size_t>(slabs_.back().size * 2, size_t(256) << 20);
    const size_t size = std::max(bytes, grown);
    slabs_.push_back({memory_->allocate(size), size});
    if (watched(memory_)) forbid(slabs_.back().data, size);
    used_ = 0;
  }
  void* p = static_cast<std::byte*>(slabs_[current_].data) + used_;
  used_ += bytes;
  permit(p, wanted);  // on a device that is host memory, too: kernels put borders into what they are given
  return p;
}

TensorView Arena::alloc(DType dtype, std::initializer_list<int64_t> dims) {
  return TensorView(alloc_bytes(checked_bytes(dtype, dims)), dtype, dims);
}

TensorView Arena::alloc_zero(DType dtype, std::initializer_list<int64_t> dims) {
  const TensorView v = alloc(dtype, dims);
  memory_->zero(v.data, v.bytes());
  return v;
}

void Arena::release(Mark m) {
  if (watched(memory_))
    for (size_t i = m.slab; i < slabs_.size() && i <= current_; ++i) {
      const size_t from = i == m.slab ? m.used : 0;
      forbid(static_cast<std::byte*>(slabs_[i].data) + from, slabs_[i].size - from);
    }
  current_ = m.slab;
  used_ = m.used;
}

size_t Arena::bytes_reserved() const {
  size_t n = 0;
  for (const Slab& s : slabs_) n += s.size;
  return n;
}

}  // namespace hysparse
