#include "engine/shared_ids.h"

#include "base/error.h"

namespace hysparse {

void SharedIds::grow(int64_t size) {
  const int64_t before = this->size();
  if (size <= before) return;
  std::vector<int32_t> stack;
  for (int64_t id = size - 1; id >= before; --id) stack.push_back(static_cast<int32_t>(id));
  stack.insert(stack.end(), free_.begin(), free_.end());
  free_ = std::move(stack);
  holders_.resize(static_cast<size_t>(size), 0);
}

int32_t SharedIds::take() {
  HYSPARSE_CHECK(!free_.empty(), "none of {} ids is free", size());
  const int32_t id = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(id)] = 1;
  return id;
}

void SharedIds::share(int32_t id) {
  HYSPARSE_CHECK(valid(id) && holders(id) > 0, "id {} of {} is not held", id, size());
  ++holders_[static_cast<size_t>(id)];
}

bool SharedIds::drop(int32_t id) {
  HYSPARSE_CHECK(valid(id) && holders(id) > 0, "id {} of {} is not held", id, size());
  if (--holders_[static_cast<size_t>(id)] > 0) return false;
  free_.push_back(id);
  return true;
}

void SharedIds::check(const char* what, const std::vector<int>& expected) const {
  HYSPARSE_CHECK(expected.size() == holders_.size(), "{}: {} counted, {} exist", what, expected.size(),
                 size());
  std::vector<bool> is_free(holders_.size());
  for (const int32_t id : free_) {
    HYSPARSE_CHECK(valid(id) && !is_free[static_cast<size_t>(id)], "{} {} is free twice", what, id);
    is_free[static_cast<size_t>(id)] = true;
  }
  for (size_t id = 0; id < holders_.size(); ++id) {
    HYSPARSE_CHECK(holders_[id] == expected[id], "{} {} says {} holders, {} hold it", what, id, holders_[id],
                   expected[id]);
    HYSPARSE_CHECK(is_free[id] == (holders_[id] == 0), "{} {} with {} holders is {}", what, id, holders_[id],
                   is_free[id] ? "free" : "lost");
  }
}

}  // namespace hysparse
