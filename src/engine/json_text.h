// Internal to the engine: the parts of JSON text as automata (see json_schema.h for what is written).
#pragma once

#include <optional>
#include <string_view>

#include "engine/automaton.h"

namespace hysparse {

// The pattern of a `format` of JSON Schema; empty where it is not supported.
std::string_view format_pattern(std::string_view name);

class JsonText {
 public:
  explicit JsonText(AutomatonBuilder& builder) : b_(builder) {}

  Fragment space();  // nothing, a space, or a line feed and up to 12 spaces
  Fragment comma() { return b_.then(b_.literal(","), space()); }
  Fragment colon() { return b_.then(b_.literal(":"), space()); }
  Fragment character();  // one code point of a string's text, escaped where it must or may be
  Fragment quoted(Fragment content) { return b_.then(b_.literal("\""), b_.then(content, b_.literal("\""))); }
  Fragment string() { return quoted(b_.star(character())); }
  Fragment number();
  // Within [lo, hi] where given: at most 15 digits.
  Fragment integer(std::optional<int64_t> lo, std::optional<int64_t> hi);
  // Items between brackets, separated by commas; most < 0: any number.
  template <class Make>
  Fragment list(char open, char close, const Make& make, int64_t least, int64_t most) {
    const Fragment out{b_.state(), b_.state()};
    const Fragment begin = b_.then(b_.literal({&open, 1}), space());
    const Fragment end = b_.then(space(), b_.literal({&close, 1}));
    b_.join(out.begin, begin.begin);
    b_.join(end.end, out.end);
    if (least == 0) b_.join(begin.end, end.begin);
    if (most == 0) return out;
    int32_t at = begin.end;
    const int64_t copies = most < 0 ? std::max<int64_t>(least, 1) : most;
    for (int64_t i = 1; i <= copies; ++i) {
      const Fragment item = make();
      b_.join(at, item.begin);
      if (i >= least) b_.join(item.end, end.begin);
      const bool loops = most < 0 && i == copies;
      if (i == copies && !loops) break;
      const Fragment between = comma();
      b_.join(item.end, between.begin);
      at = between.end;
      if (loops) b_.join(at, item.begin);
    }
    return out;
  }
  // Any value; containers nest `depth` levels.
  Fragment free_value(int depth);
  Fragment free_object(int depth);

 private:
  Fragment digits(std::string_view lo, std::string_view hi);  // all numbers between, of one length
  Fragment natural(int64_t lo, int64_t hi);

  AutomatonBuilder& b_;
};

}  // namespace hysparse
