#include "engine/text_stream.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace hysparse {

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& s : stops_) {
    if (s.empty()) throw expected_error("stop", "a text of at least one character", "an empty one");
    if (utf8_valid_end(s, 0) != s.size())
      throw expected_error("stop", "UTF-8 text", "bytes that are not UTF-8");
    longest_ = std::max(longest_, s.size());
  }
}

// Length of the longest tail of held_ that begins a stop string.
size_t TextStream::held_back() const {
  size_t best = 0;
  for (const std::string& s : stops_) {
    for (size_t n = std::min(s.size() - 1, held_.size()); n > best; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(s).substr(0, n)) {
        best = n;
        break;
      }
    }
  }
  return best;
}

std::string TextStream::match(std::string text) {
  if (stops_.empty()) return text;
  const size_t before = held_.size();
  held_ += text;
  for (size_t end = before + 1; end <= held_.size(); ++end) {
    size_t begin = std::string::npos;
    for (const std::string& s : stops_) {
      if (s.size() <= end && held_[end - 1] == s.back() && held_.compare(end - s.size(), s.size(), s) == 0)
        begin = std::min(begin, end - s.size());
    }
    if (begin == std::string::npos) continue;
    stopped_ = true;
    std::string out = held_.substr(0, begin);
    held_.clear();
    return out;
  }
  const size_t keep = held_back();
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  return match(utf8_.push(bytes));
}

std::string TextStream::finish() {
  if (stopped_) return {};
  std::string out = match(utf8_.flush());
  if (stopped_) return out;
  out += held_;
  held_.clear();
  return out;
}

}  // namespace hysparse
