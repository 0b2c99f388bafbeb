// Cuts text into the pieces that merges never cross.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/regex.h"

namespace hysparse {

struct SplitRule {
  std::string pattern;
  bool literal = false;  // plain text, not an expression
};

// What of a tokenizer.json decides the pieces.
struct PreTokenizerRules {
  std::vector<SplitRule> splits;        // each cuts what the one before left: matches and gaps become pieces
  bool add_prefix_space = false;        // a piece that does not begin with a space gets one...
  std::optional<SplitRule> last_split;  // ...and is then cut by this
};

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// What our own trainer writes: contractions in any case, marks with their letters, digits by threes, line
// ends by themselves.
inline constexpr std::string_view kOwnPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  PreTokenizer(PreTokenizerRules rules, const std::string& where);
  const PreTokenizerRules& rules() const { return rules_; }

  // Buffers of one thread.
  struct State {
    explicit State(const PreTokenizer& owner);
    std::vector<Regex::Matcher> matchers;
    std::string prefixed;
  };

  // Calls sink(piece) in order. `text` is valid UTF-8; the pieces concatenate to it (but for prefix spaces).
  // Pieces live until sink returns.
  template <class Sink>
  void run(std::string_view text, State& state, Sink&& sink) const {
    cut(0, text, state, sink);
  }

  // A position p >= from where `text` may be cut so that the pieces of both parts are the pieces of the
  // whole; text.size() when there is none. Only for rules that are known to allow it (see the .cpp).
  size_t next_cut(std::string_view text, size_t from) const;

 private:
  template <class Sink>
  void cut(size_t step, std::string_view text, State& state, Sink& sink) const {
    if (step == prefix_step_) {
      if (!text.starts_with(' ')) {
        state.prefixed.assign(1, ' ').append(text);
        text = state.prefixed;
      }
    }
    if (step == regexes_.size()) {
      sink(text);
      return;
    }
    size_t at = 0;
    for (size_t begin = 0, end = 0; at < text.size(); at = end) {
      if (!state.matchers[step].next(text, at, begin, end)) break;
      if (begin > at) cut(step + 1, text.substr(at, begin - at), state, sink);
      cut(step + 1, text.substr(begin, end - begin), state, sink);
    }
    if (at < text.size()) cut(step + 1, text.substr(at), state, sink);
  }

  PreTokenizerRules rules_;
  std::vector<Regex> regexes_;
  size_t prefix_step_ = ~size_t(0);  // before this regex
  enum class Cuts { nowhere, between_lines, gpt2 } cuts_ = Cuts::nowhere;
};

}  // namespace hysparse
