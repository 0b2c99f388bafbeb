#include "io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace hysparse {
namespace {

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Edits (insert, delete, replace, swap of neighbours) from a to b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// Length of the UTF-8 character at s[i], 0 when the bytes there are not one.
size_t utf8_length(std::string_view s, size_t i) {
  const auto byte = [&](size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
  const unsigned b = byte(i);
  if (b < 0x80) return 1;
  const size_t n = b >= 0xf0 && b <= 0xf4 ? 4 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xc2 && b < 0xe0 ? 2 : 0;
  for (size_t k = 1; k < n; ++k)
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  const unsigned second = byte(i + 1);
  if ((b == 0xe0 && second < 0xa0) || (b == 0xed && second > 0x9f) || (b == 0xf0 && second < 0x90) ||
      (b == 0xf4 && second > 0x8f))
    return 0;
  return n;
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& valid) {
  const std::string wanted = lower(name);
  std::string best;
  size_t best_distance = std::max<size_t>(2, wanted.size() / 3) + 1;  // nearer than this or nothing
  const auto offer = [&](std::string_view candidate, const std::string& full, size_t handicap) {
    const size_t gap = candidate.size() > wanted.size() ? candidate.size() - wanted.size()
                                                        : wanted.size() - candidate.size();
    if (gap + handicap >= best_distance) return;  // also keeps a huge name from costing anything
    const size_t d = edit_distance(wanted, lower(candidate)) + handicap;
    if (d < best_distance && d < std::max(wanted.size(), candidate.size())) {
      best_distance = d;
      best = full;
    }
  };
  for (const std::string& v : valid) {
    offer(v, v, 0);
    const size_t dot = v.rfind('.');
    if (dot != std::string::npos && name.find('.') == std::string_view::npos)
      offer(std::string_view(v).substr(dot + 1), v, 1);
  }
  return best;
}

std::string quote_text(std::string_view text, size_t limit) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    if (out.size() > limit) return out + "...\"";
    const size_t n = utf8_length(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    if (n == 0 || c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
      ++i;
    } else {
      out += text.substr(i, n);
      i += n;
    }
  }
  return out + '"';
}

}  // namespace hysparse
