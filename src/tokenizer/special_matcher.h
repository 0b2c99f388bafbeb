// Finds the texts of added tokens: leftmost first, the longest of those that begin there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hysparse {

class SpecialMatcher {
 public:
  void add(std::string content, int32_t id);  // content is not empty
  void finish();                              // once, after the last add()
  bool empty() const { return empty_; }
  bool any_contains(char c) const;

  struct Match {
    size_t begin, length;  // length 0: none
    int32_t id;
  };
  Match find(std::string_view text, size_t from) const;

 private:
  std::array<std::vector<std::pair<std::string, int32_t>>, 256> by_first_byte_;  // longest first
  bool empty_ = true;
};

}  // namespace hysparse
