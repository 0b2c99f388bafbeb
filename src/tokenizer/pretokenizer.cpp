#include "tokenizer/pretokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

// Expressions for which a line end right before a letter always ends a piece, whatever stands around it:
// white space up to a last line end is one match of \s*[\r\n]+ with or without what follows; no alternative
// lets a line end and a letter share a match; none looks back.
constexpr std::array kCutBetweenLines = {kOwnPattern, kLlama3Pattern, kQwen2Pattern, kQwen35Pattern};

bool is_letter(uint32_t c) {
  if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  const utf8proc_category_t k = utf8proc_category(static_cast<int32_t>(c));
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  const utf8proc_category_t k = utf8proc_category(static_cast<int32_t>(c));
  return c == 0x85 || (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

enum class Before { blank, solid, unknown };

// The character that ends right before `end`; unknown: none, or not UTF-8.
Before before(std::string_view text, size_t end) {
  for (size_t n = 1; n <= std::min<size_t>(4, end); ++n) {
    const Utf8Step step = utf8_step(text, end - n);
    if (step.kind == Utf8Kind::valid && step.length == n)
      return is_space(step.code_point) ? Before::blank : Before::solid;
  }
  return Before::unknown;
}

}  // namespace

PreTokenizer::PreTokenizer(PreTokenizerRules rules, const std::string& where) : rules_(std::move(rules)) {
  for (const SplitRule& r : rules_.splits) regexes_.emplace_back(r.pattern, r.literal, where);
  if (rules_.add_prefix_space) prefix_step_ = regexes_.size();
  if (rules_.last_split) regexes_.emplace_back(rules_.last_split->pattern, rules_.last_split->literal, where);

  // Digits' rules touch neither line ends nor letters, so they may stand before a known expression.
  if (rules_.add_prefix_space) return;
  std::vector<std::string_view> patterns;
  for (const SplitRule& r : rules_.splits) patterns.push_back(r.literal ? "" : std::string_view(r.pattern));
  if (rules_.last_split) patterns.push_back(rules_.last_split->pattern);
  std::erase_if(patterns, [](std::string_view p) { return p == R"(\p{N})" || p == R"(\p{N}+)"; });
  if (patterns.size() != 1) return;
  if (patterns[0] == kGpt2Pattern)
    cuts_ = Cuts::gpt2;
  else if (std::find(kCutBetweenLines.begin(), kCutBetweenLines.end(), patterns[0]) != kCutBetweenLines.end())
    cuts_ = Cuts::between_lines;
}

PreTokenizer::State::State(const PreTokenizer& owner) {
  for (const Regex& r : owner.regexes_) matchers.emplace_back(r);
}

size_t PreTokenizer::next_cut(std::string_view text, size_t from) const {
  if (cuts_ == Cuts::nowhere) return text.size();
  for (size_t at = std::max<size_t>(from, 2);; ++at) {
    at = text.find('\n', at - 1);
    if (at == std::string_view::npos || ++at >= text.size()) return text.size();
    const Utf8Step after = utf8_step(text, at);
    if (after.kind != Utf8Kind::valid || !is_letter(after.code_point)) continue;
    if (cuts_ == Cuts::between_lines || before(text, at - 1) == Before::solid) return at;
    // GPT-2's \s+(?!\S) leaves the last of several blanks before a letter to itself: cut before that one.
    if (at - 1 >= from && before(text, at - 1) == Before::blank) return at - 1;
  }
}

}  // namespace hysparse
