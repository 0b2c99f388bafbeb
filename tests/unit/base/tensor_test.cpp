#include "tensor/tensor.h"
#include "base/sanitizer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace hysparse {
namespace {

// Host memory that counts what is out and can be told to fail.
class CountingMemory : public Memory {
 public:
  std::map<void*, size_t> live;
  bool fail_zero = false;
  int allocations = 0;

  DeviceKind device() const override { return DeviceKind::cpu; }
  void* allocate(size_t bytes) override {
    void* p = host_memory().allocate(bytes);
    std::memset(p, 0xee, bytes);
    live[p] = bytes;
    ++allocations;
    return p;
  }
  void release(void* p, size_t bytes) noexcept override {
    EXPECT_EQ(live.count(p), 1u);
    EXPECT_EQ(live[p], bytes);
    live.erase(p);
    host_memory().release(p, bytes);
  }
  void zero(void* p, size_t bytes) override {
    if (fail_zero) throw failure("memory", "told to fail");
    host_memory().zero(p, bytes);
  }
  void from_host(void* d, const void* h, size_t n) override { host_memory().from_host(d, h, n); }
  void to_host(void* h, const void* s, size_t n) override { host_memory().to_host(h, s, n); }
  void copy(void* d, const void* s, size_t n) override { host_memory().copy(d, s, n); }
};

TEST(TensorView, ShapeAndStrides) {
  std::vector<float> x(24);
  const TensorView v(x.data(), DType::f32, {2, 3, 4});
  EXPECT_EQ(v.rank, 3);
  EXPECT_EQ(v.numel(), 24);
  EXPECT_EQ(v.bytes(), 96u);
  EXPECT_EQ(v.stride[0], 12);
  EXPECT_EQ(v.stride[1], 4);
  EXPECT_EQ(v.stride[2], 1);
  EXPECT_TRUE(v.contiguous());
  EXPECT_EQ(v.describe(), "f32[2, 3, 4]");
  EXPECT_EQ(v.as<float>(), x.data());
  EXPECT_THROW(v.as<double>(), Error);
  EXPECT_FALSE(bool(TensorView()));
  const TensorView scalar(x.data(), DType::f32, {});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_TRUE(scalar.contiguous());
}

TEST(TensorView, RowsAtAndReshape) {
  std::vector<int32_t> x(24);
  std::iota(x.begin(), x.end(), 0);
  const TensorView v(x.data(), DType::i32, {4, 3, 2});
  const TensorView r = v.rows(1, 3);
  EXPECT_EQ(r.describe(), "i32[2, 3, 2]");
  EXPECT_EQ(r.as<int32_t>()[0], 6);
  EXPECT_EQ(v.rows(4, 4).numel(), 0);
  const TensorView a = v.at(2);
  EXPECT_EQ(a.describe(), "i32[3, 2]");
  EXPECT_EQ(a.as<int32_t>()[0], 12);
  EXPECT_EQ(a.at(1).as<int32_t>()[0], 14);
  EXPECT_EQ(a.at(1).at(1).as<int32_t>()[0], 15);
  EXPECT_EQ(a.at(1).at(1).rank, 0);
  EXPECT_THROW(v.rows(-1, 2), Error);
  EXPECT_THROW(v.rows(3, 2), Error);
  EXPECT_THROW(v.rows(0, 5), Error);
  EXPECT_THROW(v.at(4), Error);
  EXPECT_THROW(v.at(0).at(0).at(0).at(0), Error);  // no dimension left
  const TensorView f = v.reshape({2, 12});
  EXPECT_EQ(f.describe(), "i32[2, 12]");
  EXPECT_EQ(f.data, v.data);
  EXPECT_THROW(v.reshape({5, 5}), Error);
}

TEST(TensorView, StridedViews) {
  std::vector<int32_t> x(24);
  std::iota(x.begin(), x.end(), 0);
  TensorView v(x.data(), DType::i32, {4, 6});
  v.shape[1] = 2;  // columns 0 and 1 of every row
  EXPECT_FALSE(v.contiguous());
  EXPECT_EQ(v.at(3).as<int32_t>()[1], 19);
  EXPECT_EQ(v.rows(2, 4).at(0).as<int32_t>()[0], 12);
  EXPECT_THROW(v.reshape({8}), Error);
  EXPECT_TRUE(v.rows(1, 2).contiguous());  // one row: its stride is never used
  TensorView one(x.data(), DType::i32, {3, 1, 2});
  one.stride[1] = 999;
  EXPECT_TRUE(one.contiguous());
  EXPECT_TRUE(one.same_shape(TensorView(nullptr, DType::f64, {3, 1, 2})));
  EXPECT_FALSE(one.same_shape(TensorView(nullptr, DType::i32, {3, 2, 1})));
  EXPECT_FALSE(one.same_shape(TensorView(nullptr, DType::i32, {3, 1})));
}

TEST(TensorView, RefusesImpossibleShapes) {
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::f32, {2, -1}), Error);
  EXPECT_THROW(TensorView(nullptr, DType::f32, {0, huge, huge}), Error);
  EXPECT_THROW(Tensor(DType::f32, {huge, huge}), Error);
  EXPECT_THROW(Tensor(DType::f32, {huge}), Error);
  EXPECT_THROW(Tensor(DType::u8, {huge}), Error);  // fits a size, not a memory
}

TEST(Tensor, IsZeroedAlignedAndMovable) {
  Tensor t(DType::f32, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.view().data) % 64, 0u);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(t.view().as<float>()[i], 0.0f);
  void* p = t.view().data;
  Tensor u(std::move(t));
  EXPECT_EQ(u.view().data, p);
  EXPECT_FALSE(bool(t));
  Tensor w(DType::i64, {2});
  w = std::move(u);
  EXPECT_EQ(w.view().data, p);
  EXPECT_TRUE(bool(Tensor(DType::f32, {0, 4})));  // empty, but there
}

TEST(Tensor, GivesItsMemoryBackWhateverHappens) {
  CountingMemory memory;
  {
    Tensor a(DType::f32, {7}, memory), b(DType::f64, {2, 2}, memory);
    EXPECT_EQ(memory.live.size(), 2u);
    a = std::move(b);
    Tensor c(std::move(a));
  }
  EXPECT_TRUE(memory.live.empty());
  EXPECT_THROW(Tensor(DType::f32, {1, 1, 1, 1, 1}, memory), Error);
  EXPECT_TRUE(memory.live.empty());
  memory.fail_zero = true;
  EXPECT_THROW(Tensor(DType::f32, {4}, memory), Error);
  EXPECT_TRUE(memory.live.empty());
}

TEST(Arena, AllocationsAreAlignedAndDisjoint) {
  CountingMemory memory;
  {
    Arena arena(memory);
    std::map<uintptr_t, uintptr_t> spans;  // end -> begin
    for (int i = 0; i < 300; ++i) {
      const TensorView v = arena.alloc(DType::u8, {1 + (i * 7919) % 50000});
      const auto begin = reinterpret_cast<uintptr_t>(v.data), end = begin + v.bytes();
      EXPECT_EQ(begin % 64, 0u);
      const auto next = spans.upper_bound(begin);
      EXPECT_TRUE(next == spans.end() || next->second >= end)
          << "allocation " << i << " overlaps an earlier one";
      spans[end] = begin;
      std::memset(v.data, i & 0xff, v.bytes());
    }
    size_t live = 0;
    for (const auto& e : memory.live) live += e.second;
    EXPECT_EQ(arena.bytes_reserved(), live);
  }
  EXPECT_TRUE(memory.live.empty());
}

TEST(Arena, MarksNestAndSlabsAreReused) {
  CountingMemory memory;
  Arena arena(memory);
  const auto round = [&] {
    std::vector<void*> out;
    out.push_back(arena.alloc_bytes(1000));
    {
      const ArenaScope scope(arena);
      out.push_back(arena.alloc_bytes(700000));
      {
        const ArenaScope inner(arena);
        out.push_back(arena.alloc_bytes(3000000));
        out.push_back(arena.alloc_bytes(10));
      }
      out.push_back(arena.alloc_bytes(3000000));  // takes the inner one's place
    }
    out.push_back(arena.alloc_bytes(500));
    return out;
  };
  const auto first = round();
  EXPECT_EQ(first[2], first[4]);
  EXPECT_EQ(first[1], static_cast<std::byte*>(first[0]) + 1024 + kBorder);
  EXPECT_EQ(first[5], first[1]);  // right behind what was there before the scope
  const size_t reserved = arena.bytes_reserved();
  const int allocations = memory.allocations;
  for (int i = 0; i < 100; ++i) {
    arena.reset();
    EXPECT_EQ(round(), first);
  }
  EXPECT_EQ(arena.bytes_reserved(), reserved);
  EXPECT_EQ(memory.allocations, allocations);
}

// Memory that grows in place: one range of addresses, no slabs.
class RangeMemory : public CountingMemory {
 public:
  void* reserve(size_t bytes) override {
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
  }
  void commit(void* range, size_t from, size_t to) override {
    EXPECT_EQ(from, committed);
    EXPECT_EQ(from % kCommitStep + to % kCommitStep, 0u);
    if (to > limit) throw Error(ErrorKind::failure, "the device is full");
    ASSERT_EQ(mprotect(static_cast<std::byte*>(range) + from, to - from, PROT_READ | PROT_WRITE), 0);
    committed = to;
  }
  void release_range(void* range, size_t bytes, size_t held) noexcept override {
    EXPECT_EQ(held, committed);
    EXPECT_EQ(munmap(range, bytes), 0);
    committed = 0;
  }
  size_t committed = 0, limit = SIZE_MAX;
};

TEST(Arena, GrowsInPlaceWhereTheMemoryOffersARange) {
  constexpr size_t kStep = Memory::kCommitStep;
  RangeMemory memory;
  {
    Arena arena(memory);
    auto* first = static_cast<std::byte*>(arena.alloc_bytes(kStep / 2));
    const Arena::Mark mark = arena.mark();
    auto* second = static_cast<std::byte*>(arena.alloc_bytes(3 * kStep));
    EXPECT_GE(second, first + kStep / 2);
    EXPECT_LT(second, first + kStep / 2 + 4096) << "nothing is lost between neighbours";
    second[0] = second[3 * kStep - 1] = std::byte{1};
    EXPECT_EQ(arena.bytes_reserved(), 4 * kStep) << "no more than the peak, in steps";
    arena.release(mark);
    EXPECT_EQ(arena.alloc_bytes(kStep), static_cast<void*>(second));
    EXPECT_EQ(memory.committed, 4 * kStep) << "what was taken is used again";
    memory.limit = 5 * kStep;
    EXPECT_THROW(arena.alloc_bytes(8 * kStep), Error);
    EXPECT_NE(arena.alloc_bytes(64), nullptr) << "a refused allocation leaves the arena as it was";
  }
  EXPECT_EQ(memory.committed, 0u);
}

TEST(Arena, ZeroesOnRequestOnly) {
  CountingMemory memory;  // hands out 0xee
  Arena arena(memory);
  const auto sum = [](const TensorView& v) {
    return std::accumulate(v.as<uint8_t>(), v.as<uint8_t>() + v.numel(), int64_t(0));
  };
  EXPECT_EQ(sum(arena.alloc(DType::u8, {100})), 100 * 0xee);
  EXPECT_EQ(sum(arena.alloc_zero(DType::u8, {100})), 0);
  EXPECT_EQ(arena.alloc(DType::f32, {0, 8}).numel(), 0);
  EXPECT_NE(arena.alloc_bytes(0), nullptr);
}

TEST(Arena, RefusesImpossibleSizes) {
  Arena arena;
  const int64_t huge = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(arena.alloc(DType::f32, {huge, huge}), Error);
  EXPECT_THROW(arena.alloc(DType::f32, {-1}), Error);
  EXPECT_THROW(arena.alloc_bytes(std::numeric_limits<size_t>::max()), Error);
  EXPECT_THROW(arena.alloc_bytes(size_t(1) << 62), Error);
  EXPECT_NE(arena.alloc_bytes(64), nullptr);
}

}  // namespace
}  // namespace hysparse
