// A flat hash table from a pair of token ids to a value: open addressing, built once or grown while training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace hysparse {

// (left, right) as one word whose order is that of the pair; ids are not negative.
constexpr uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

template <class Value>
class PairTable {
 public:
  explicit PairTable(size_t expected = 0) {
    size_t slots = 16;
    while (slots < expected * 2) slots *= 2;
    slots_.resize(slots);
  }

  size_t size() const { return size_; }

  const Value* find(uint64_t key) const {
    for (size_t i = home(key);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].key == key) return &slots_[i].value;
      if (slots_[i].key == kFree) return nullptr;
    }
  }

  // The value of `key`, made with Value() when absent; `fresh` says so. The reference lives until the next
  // call.
  Value& get(uint64_t key, bool& fresh) {
    if (size_ * 2 >= slots_.size()) grow();
    size_t i = home(key);
    while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    fresh = slots_[i].key == kFree;
    if (fresh) {
      slots_[i].key = key;
      ++size_;
    }
    return slots_[i].value;
  }

 private:
  static constexpr uint64_t kFree = ~0ull;  // no pair of ids: they are not negative
  struct Slot {
    uint64_t key = kFree;
    Value value{};
  };

  size_t home(uint64_t key) const { return mix64(key) & (slots_.size() - 1); }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (Slot& s : old) {
      if (s.key == kFree) continue;
      size_t i = home(s.key);
      while (slots_[i].key != kFree) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = std::move(s);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace hysparse
