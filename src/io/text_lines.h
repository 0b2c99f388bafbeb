// The lines of a text, as files of JSON lines have them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace hysparse {

// Calls see(line, number from 1) for every line that is not blank; where `see` returns bool, false ends it.
template <class See>
void for_each_line(std::string_view text, See&& see) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if constexpr (std::is_same_v<decltype(see(line, number)), bool>) {
      if (!see(line, number)) return;
    } else {
      see(line, number);
    }
  }
}

}  // namespace hysparse
