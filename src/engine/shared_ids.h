// Ids 0 .. size-1 of pages or slots: which are free, and how many hold each of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hysparse {

class SharedIds {
 public:
  int64_t size() const { return static_cast<int64_t>(holders_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return size() - free(); }
  int holders(int32_t id) const { return holders_[static_cast<size_t>(id)]; }
  bool valid(int32_t id) const { return id >= 0 && id < size(); }

  void grow(int64_t size);
  int32_t take();          // one that is free, the lowest first while nothing was given back; one holder
  void share(int32_t id);  // one holder more
  bool drop(int32_t id);   // one fewer; true when it is free now
  // Throws unless every id has exactly the holders counted in `expected` [size()].
  void check(const char* what, const std::vector<int>& expected) const;

 private:
  std::vector<int> holders_;
  std::vector<int32_t> free_;  // a stack
};

}  // namespace hysparse
