// Views, owning buffers and arenas. A TensorView never owns; a Tensor does. Shapes and strides count
// elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace hysparse {

enum class DeviceKind : uint8_t { cpu, cuda };

// Where bytes live. The host implementation is host_memory(); a GPU backend brings its own.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual DeviceKind device() const = 0;
  virtual void* allocate(size_t bytes) = 0;  // 64-byte aligned (256 on a GPU), not zeroed; throws Error
  virtual void release(void* p, size_t bytes) noexcept = 0;
  virtual void zero(void* p, size_t bytes) = 0;
  virtual void from_host(void* dst, const void* host, size_t bytes) = 0;
  virtual void to_host(void* host, const void* src, size_t bytes) = 0;
  virtual void copy(void* dst, const void* src, size_t bytes) = 0;
  // A range of addresses whose first bytes become memory as they are needed: an arena then grows in place and
  // holds no more than its peak. Null where this kind of memory has no such thing.
  virtual void* reserve(size_t /*bytes*/) { return nullptr; }
  virtual void commit(void* /*range*/, size_t /*from*/, size_t /*to*/) {}  // multiples of kCommitStep
  virtual void release_range(void* /*range*/, size_t /*bytes*/, size_t /*committed*/) noexcept {}
  static constexpr size_t kCommitStep = size_t(32) << 20;
  // Bytes that can be had now, as far as known.
  virtual size_t available() const { return SIZE_MAX; }
  virtual void synchronize() {}  // waits until the device has done all that was asked of it
};
Memory& host_memory();

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};   // elements
  std::array<int64_t, kMaxRank> stride{};  // elements; the last is 1 unless said otherwise

  TensorView() = default;
  TensorView(void* p, DType t, std::initializer_list<int64_t> dims);  // contiguous

  explicit operator bool() const { return data != nullptr; }
  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t numel() const;
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype); }
  bool contiguous() const;
  bool same_shape(const TensorView& o) const;

  template <class T>
  T* as() const {
    HYSPARSE_CHECK(DTypeOf<T>::value == dtype, "tensor holds {}, not {}", name_of(dtype),
                   name_of(DTypeOf<T>::value));
    return static_cast<T*>(data);
  }
  // Rows [begin, end) of dimension 0.
  TensorView rows(int64_t begin, int64_t end) const;
  // The sub-tensor at index i of dimension 0 (rank falls by one).
  TensorView at(int64_t i) const;
  // Same elements, other shape; needs a contiguous view.
  TensorView reshape(std::initializer_list<int64_t> dims) const;
  std::string describe() const;  // "bf16[512, 8, 64]"
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, std::initializer_list<int64_t> dims, Memory& memory = host_memory());  // zeroed
  Tensor(Tensor&& o) noexcept { *this = std::move(o); }
  Tensor& operator=(Tensor&& o) noexcept;
  ~Tensor();
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  explicit operator bool() const { return view_.data != nullptr; }

 private:
  TensorView view_;
  size_t bytes_ = 0;
  Memory* memory_ = nullptr;
};

// A contiguous tensor where the host can read it: the tensor itself, or a copy of one that lives on a device.
class HostCopy {
 public:
  HostCopy(const TensorView& tensor, Memory& memory);
  const TensorView& view() const { return view_; }

 private:
  Tensor own_;
  TensorView view_;
};

// Bump allocator over growing slabs, or over one range of addresses where the memory offers that.
// mark()/release() nest like a stack; memory is kept for reuse.
class Arena {
 public:
  explicit Arena(Memory& memory = host_memory()) : memory_(&memory) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  TensorView alloc(DType dtype, std::initializer_list<int64_t> dims);  // contiguous, NOT zeroed
  TensorView alloc_zero(DType dtype, std::initializer_list<int64_t> dims);
  void* alloc_bytes(size_t bytes);  // 64-byte aligned

  struct Mark {
    size_t slab = 0, used = 0;
  };
  Mark mark() const { return {current_, used_}; }
  void release(Mark m);
  void reset() { release({0, 0}); }
  size_t bytes_reserved() const;
  Memory& memory() const { return *memory_; }

 private:
  struct Slab {
    void* data;
    size_t size;
  };
  Memory* memory_;
  bool grow_in_place(size_t bytes);
  std::vector<Slab> slabs_;
  bool asked_ = false, in_place_ = false;  // whether slabs_[0] is a range
  size_t current_ = 0, used_ = 0;
};

// Frees what was allocated from the arena since construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace hysparse
