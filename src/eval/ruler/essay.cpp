#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "eval/ruler/materials.h"
#include "io/files.h"
#include "io/json_value.h"

namespace hysparse::ruler {
namespace {

// Whether a sentence ends with `word`, of which the next begins with `next`.
bool ends_sentence(std::string_view word, char next) {
  while (!word.empty() && std::string_view("\"')]").find(word.back()) != std::string_view::npos)
    word.remove_suffix(1);
  if (word.empty() || std::string_view(".!?").find(word.back()) == std::string_view::npos) return false;
  constexpr std::array<std::string_view, 8> kShort{"Mr.", "Mrs.", "Ms.", "Dr.", "St.", "vs.", "etc.", "No."};
  if (std::find(kShort.begin(), kShort.end(), word) != kShort.end()) return false;
  if (word.size() == 2 && word[0] >= 'A' && word[0] <= 'Z' && word[1] == '.') return false;  // an initial
  return !(next >= 'a' && next <= 'z');
}

}  // namespace

Essay::Essay(std::string_view text, std::string source) : source_(std::move(source)) {
  text_.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto space = [&](size_t i) { return static_cast<unsigned char>(text[i]) <= ' '; };
    if (space(at)) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && !space(end)) ++end;
    if (!text_.empty()) text_ += ' ';
    starts_.push_back(static_cast<uint32_t>(text_.size()));
    text_ += text.substr(at, end - at);
    at = end;
  }
  if (text_.size() > UINT32_MAX) throw input_error(source_, "texts of more than 4 GiB", "name fewer files");
  for (size_t i = 0; i < starts_.size(); ++i) {
    const size_t begin = i == 0 ? 0 : starts_[i - 1];
    if (i == 0 ||
        ends_sentence(std::string_view(text_).substr(begin, starts_[i] - 1 - begin), text_[starts_[i]]))
      sentences_.push_back(static_cast<int64_t>(i));
  }
  if (sentences_.size() < 2)
    throw expected_error(source_, "running text of at least 2 sentences", fmt::format("{} words", words()));
  for (const char c : text_) fingerprint_ = mix64(fingerprint_ ^ static_cast<unsigned char>(c));
}

void Essay::append(std::string& out, int64_t from, int64_t to) const {
  while (from < to) {
    const int64_t first = from % words(), count = std::min(to - from, words() - first);
    if (!out.empty() && out.back() != ' ' && out.back() != '\n') out += ' ';
    const size_t begin = starts_[static_cast<size_t>(first)];
    const size_t end =
        first + count == words() ? text_.size() : starts_[static_cast<size_t>(first + count)] - 1;
    out.append(text_, begin, end - begin);
    from += count;
  }
}

std::vector<int64_t> Essay::borders(int64_t from, int64_t to) const {
  std::vector<int64_t> out{from};
  for (int64_t round = from / words() * words(); round < to; round += words()) {
    auto at = std::upper_bound(sentences_.begin(), sentences_.end(), std::max<int64_t>(-1, from - round));
    for (; at != sentences_.end() && round + *at < to; ++at) out.push_back(round + *at);
  }
  if (to > from) out.push_back(to);
  return out;
}

Essay read_essays(const std::vector<std::string>& files, const std::string& source) {
  std::string all;
  for (const std::string& path : files) {
    std::string text = read_file(path);
    if (path.ends_with(".json")) {
      const Json json = parse_json(text, path);
      if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
        throw expected_error(path, "an object with a string \"text\"", json.type_name());
      text = json["text"].get<std::string>();
    }
    all += text;
    all += '\n';
  }
  return Essay(all, source);
}

}  // namespace hysparse::ruler
