#include "eval/ruler/score.h"

#include <utf8proc.h>

#include <algorithm>

namespace hysparse::ruler {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
// Of a word: ASCII letters and digits, and all beyond ASCII.
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string_view trim(std::string_view text) {
  const auto space = [](char c) { return static_cast<unsigned char>(c) <= ' '; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// "1,234,567" as "1234567": groups of exactly three behind one to three digits.
std::string without_grouping(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i])) {
      out += text[i++];
      continue;
    }
    size_t end = i;
    while (end < text.size() && is_digit(text[end])) ++end;
    out += text.substr(i, end - i);
    if (end - i <= 3) {
      const auto group = [&](size_t at) {
        if (at + 4 > text.size() || (text[at] != ',' && text[at] != '\'' && text[at] != '_')) return false;
        for (size_t d = at + 1; d < at + 4; ++d)
          if (!is_digit(text[d])) return false;
        return at + 4 == text.size() || !is_digit(text[at + 4]);
      };
      for (; group(end); end += 4) out += text.substr(end + 1, 3);
    }
    i = end;
  }
  return out;
}

// `part` at [at, at + size) stands for itself: no word, number or compound goes on beside it.
bool stands_alone(std::string_view text, size_t at, std::string_view part) {
  const size_t end = at + part.size();
  const auto joins = [&](char mark, char inner, char outer) {
    // A point within a number, a hyphen within a compound.
    return (mark == '.' && is_digit(inner) && is_digit(outer)) ||
           (mark == '-' && is_word(inner) && is_word(outer));
  };
  if (at > 0 && is_word(part.front())) {
    if (is_word(text[at - 1])) return false;
    if (at > 1 && joins(text[at - 1], part.front(), text[at - 2])) return false;
  }
  if (end < text.size() && is_word(part.back())) {
    if (is_word(text[end])) return false;
    if (end + 1 < text.size() && joins(text[end], part.back(), text[end + 1])) return false;
  }
  return true;
}

bool contains_itself(std::string_view text, std::string_view part) {
  if (part.empty()) return false;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1))
    if (stands_alone(text, at, part)) return true;
  return false;
}

// Words without punctuation and articles, one space between.
std::string squad_words(std::string_view text) {
  std::string out, word;
  const auto end = [&] {
    if (!word.empty() && word != "a" && word != "an" && word != "the") {
      if (!out.empty()) out += ' ';
      out += word;
    }
    word.clear();
  };
  for (const char c : text)
    if (is_word(c))
      word += c;
    else if (static_cast<unsigned char>(c) <= ' ')
      end();
  end();
  return out;
}

void erase_all(std::string& text, std::string_view part) {
  if (part.empty()) return;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    text.replace(at, part.size(), 1, ' ');
}

double share_of(const std::vector<uint8_t>& found, bool any) {
  const auto n = std::count(found.begin(), found.end(), uint8_t(1));
  if (found.empty()) return 0;
  return any ? double(n > 0) : static_cast<double>(n) / static_cast<double>(found.size());
}

}  // namespace

std::string fold_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t code = -1;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                    static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (n <= 0) {
      out += text[at++];
      continue;
    }
    utf8proc_uint8_t bytes[4];
    const auto written = utf8proc_encode_char(utf8proc_tolower(code), bytes);
    out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(written));
    at += static_cast<size_t>(n);
  }
  return out;
}

Score score_answer(const std::vector<std::string>& references, bool any, std::string_view question,
                   std::string_view answer) {
  Score s;
  const std::string folded = fold_case(trim(answer));
  s.empty = folded.empty();
  std::string said = folded;
  erase_all(said, fold_case(question));
  constexpr std::string_view kAsks = "Question: ";
  if (question.starts_with(kAsks)) erase_all(said, fold_case(question.substr(kAsks.size())));
  const std::string plain = without_grouping(said), words = any ? squad_words(said) : std::string();
  std::vector<uint8_t> strict;
  for (const std::string& reference : references) {
    const std::string wanted = fold_case(reference);
    s.found.push_back(!wanted.empty() && folded.find(wanted) != std::string::npos);
    bool itself = contains_itself(said, wanted) || contains_itself(plain, wanted);
    if (any) itself = itself || contains_itself(words, squad_words(wanted));
    strict.push_back(itself);
  }
  s.share = share_of(s.found, any);
  s.strict = share_of(strict, any);
  return s;
}

}  // namespace hysparse::ruler
