#include "engine/json_text.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "engine/pattern.h"

namespace hysparse {
namespace {

constexpr int kIndent = 12;
constexpr int64_t kDigits = 15;  // a double holds them exactly
constexpr int64_t kLargest = 999'999'999'999'999;

#define HYSPARSE_DATE \
  R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))))"
#define HYSPARSE_TIME R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", "^" HYSPARSE_DATE "$"},
    {"time", "^" HYSPARSE_TIME "$"},
    {"date-time", "^" HYSPARSE_DATE "T" HYSPARSE_TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", R"(^(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$)"}};
#undef HYSPARSE_DATE
#undef HYSPARSE_TIME

}  // namespace

std::string_view format_pattern(std::string_view name) {
  for (const auto& [n, pattern] : kFormats)
    if (n == name) return pattern;
  return {};
}

Fragment JsonText::space() {
  return b_.either({b_.empty(), b_.literal(" "),
                    b_.then(b_.literal("\n"), b_.repeat([&] { return b_.literal(" "); }, 0, kIndent))});
}

Fragment JsonText::character() {
  const CodePointSet hex{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  const auto one = [&](CodePointSet set) { return b_.characters(set); };
  const auto hexes = [&](int n) { return b_.repeat([&] { return b_.characters(hex); }, n, n); };
  const CodePointSet d{{'D', 'D'}, {'d', 'd'}}, low{{'0', '7'}},
      surrogate{{'8', '9'}, {'A', 'F'}, {'a', 'f'}};
  CodePointSet not_d = hex;
  not_d.remove('D', 'D');
  not_d.remove('d', 'd');
  const CodePointSet high_half{{'8', '9'}, {'A', 'B'}, {'a', 'b'}}, low_half{{'C', 'F'}, {'c', 'f'}};
  CodePointSet plain = CodePointSet{}.complement();
  plain.remove(0, 0x1f);
  plain.remove('"', '"');
  plain.remove('\\', '\\');
  const CodePointSet shorts{{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                            {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
  const Fragment scalar =  // \uXXXX that is no surrogate
      b_.either({b_.then(one(not_d), hexes(3)), b_.then(one(d), b_.then(one(low), hexes(2)))});
  const Fragment pair =
      b_.then(b_.then(one(d), b_.then(one(high_half), hexes(2))),
              b_.then(b_.literal("\\u"), b_.then(one(d), b_.then(one(low_half), hexes(2)))));
  const Fragment escape = b_.then(
      b_.literal("\\"), b_.either({one(shorts), b_.then(b_.literal("u"), b_.either({scalar, pair}))}));
  return b_.either({one(plain), escape});
}

Fragment JsonText::number() {
  const auto digit = [&] { return b_.characters({{'0', '9'}}); };
  const auto sign = [&](CodePointSet set) { return b_.optional(b_.characters(set)); };
  const Fragment whole =
      b_.either({b_.literal("0"), b_.then(b_.characters({{'1', '9'}}), b_.repeat(digit, 0, kDigits - 1))});
  const Fragment fraction = b_.optional(b_.then(b_.literal("."), b_.repeat(digit, 1, kDigits)));
  const Fragment exponent =
      b_.optional(b_.then(b_.characters({{'E', 'E'}, {'e', 'e'}}),
                          b_.then(sign({{'+', '+'}, {'-', '-'}}), b_.repeat(digit, 1, 2))));
  return b_.then(sign({{'-', '-'}}), b_.then(whole, b_.then(fraction, exponent)));
}

// The common head, then: the first digit of lo with what follows it up to 99.., those between with anything,
// the first digit of hi with what follows it from 00...
Fragment JsonText::digits(std::string_view lo, std::string_view hi) {
  if (lo.empty()) return b_.empty();
  const auto one = [&](char a, char b) {
    return b_.characters({{static_cast<uint32_t>(a), static_cast<uint32_t>(b)}});
  };
  if (lo[0] == hi[0]) return b_.then(one(lo[0], hi[0]), digits(lo.substr(1), hi.substr(1)));
  const std::string nines(lo.size() - 1, '9'), zeros(lo.size() - 1, '0');
  const auto rest = static_cast<int64_t>(lo.size()) - 1;
  if (lo.substr(1) == zeros && hi.substr(1) == nines)
    return b_.then(one(lo[0], hi[0]), b_.repeat([&] { return one('0', '9'); }, rest, rest));
  std::vector<Fragment> options{b_.then(one(lo[0], lo[0]), digits(lo.substr(1), nines)),
                                b_.then(one(hi[0], hi[0]), digits(zeros, hi.substr(1)))};
  if (lo[0] + 1 < hi[0])
    options.push_back(b_.then(one(static_cast<char>(lo[0] + 1), static_cast<char>(hi[0] - 1)),
                              b_.repeat([&] { return one('0', '9'); }, rest, rest)));
  return b_.either(options);
}

Fragment JsonText::natural(int64_t lo, int64_t hi) {  // 0 <= lo <= hi
  std::vector<Fragment> options;
  while (true) {
    const std::string a = std::to_string(lo);
    const int64_t last = std::stoll(std::string(a.size(), '9'));
    options.push_back(digits(a, std::to_string(std::min(hi, last))));
    if (hi <= last) return b_.either(options);
    lo = last + 1;
  }
}

Fragment JsonText::integer(std::optional<int64_t> lo, std::optional<int64_t> hi) {
  const int64_t low = std::max(lo.value_or(-kLargest), -kLargest),
                high = std::min(hi.value_or(kLargest), kLargest);
  std::vector<Fragment> options;
  if (high >= 0) options.push_back(natural(std::max<int64_t>(low, 0), high));
  if (low < 0) options.push_back(b_.then(b_.literal("-"), natural(std::max<int64_t>(1, -high), -low)));
  return b_.either(options);
}

Fragment JsonText::free_value(int depth) {
  std::vector<Fragment> options{string(), number(), b_.literal("true"), b_.literal("false"),
                                b_.literal("null")};
  if (depth > 0) {
    options.push_back(free_object(depth));
    options.push_back(list(
        '[', ']', [&] { return free_value(depth - 1); }, 0, -1));
  }
  return b_.either(options);
}

Fragment JsonText::free_object(int depth) {
  return list(
      '{', '}', [&] { return b_.then(string(), b_.then(colon(), free_value(depth - 1))); }, 0, -1);
}

}  // namespace hysparse
