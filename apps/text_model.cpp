#include "text_model.h"

#include <charconv>

#include "base/error.h"
#include "io/json.h"

namespace hysparse {

Log warnings_only(const Log& log) {
  return [log](LogLevel level, const std::string& message) {
    if (level == LogLevel::warning) hysparse::log(log, level, message);
  };
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& where) {
  const std::string_view space = " \t\r\n";
  const auto trim = [&](std::string_view s) {
    const size_t first = s.find_first_not_of(space);
    return first == std::string_view::npos ? std::string_view{}
                                           : s.substr(first, s.find_last_not_of(space) - first + 1);
  };
  std::string_view list = trim(text);
  if (!list.empty() && list.front() == '[' && list.back() == ']')
    list = trim(list.substr(1, list.size() - 2));
  std::vector<int32_t> ids;
  while (!list.empty()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), id);
    std::string_view rest = list.substr(static_cast<size_t>(end - list.data()));
    const bool ends =
        rest.empty() || rest.front() == ',' || space.find(rest.front()) != std::string_view::npos;
    if (error != std::errc() || !ends || id < 0)
      throw expected_error(where, "token ids such as \"1 2 3\" or \"[1, 2, 3]\"", quote_text(list, 20),
                           ids.empty() ? "" : fmt::format("behind {} ids", ids.size()));
    ids.push_back(id);
    rest = trim(rest);
    if (!rest.empty() && rest.front() == ',') {
      rest = trim(rest.substr(1));
      if (rest.empty()) throw expected_error(where, "a token id behind every comma", "the end");
    }
    list = rest;
  }
  return ids;
}

}  // namespace hysparse
