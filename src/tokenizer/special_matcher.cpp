#include "tokenizer/special_matcher.h"

#include <algorithm>

namespace hysparse {

void SpecialMatcher::add(std::string content, int32_t id) {
  empty_ = false;
  by_first_byte_[static_cast<uint8_t>(content[0])].emplace_back(std::move(content), id);
}

void SpecialMatcher::finish() {
  for (auto& list : by_first_byte_)
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.first.size() != b.first.size() ? a.first.size() > b.first.size() : a.first < b.first;
    });
}

bool SpecialMatcher::any_contains(char c) const {
  for (const auto& list : by_first_byte_)
    for (const auto& [content, id] : list)
      if (content.find(c) != std::string::npos) return true;
  return false;
}

SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from) const {
  if (!empty_)
    for (size_t i = from; i < text.size(); ++i)
      for (const auto& [content, id] : by_first_byte_[static_cast<uint8_t>(text[i])])
        if (text.compare(i, content.size(), content) == 0) return {i, content.size(), id};
  return {text.size(), 0, -1};
}

}  // namespace hysparse
