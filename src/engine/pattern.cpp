#include "engine/pattern.h"

#include <memory>
#include <optional>

#include "base/error.h"
#include "io/json.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

constexpr int kMaxNesting = 100;
constexpr size_t kMaxBytes = 16'384;
constexpr int64_t kMaxRepeat = 100'000;  // what it makes is limited, too

struct Node {
  enum class Kind { characters, sequence, choice, repeat } kind = Kind::sequence;
  CodePointSet set;
  std::vector<std::unique_ptr<Node>> parts;
  int64_t least = 0, most = 0;
};
using NodePtr = std::unique_ptr<Node>;

const CodePointSet& digits() {
  static const CodePointSet set{{'0', '9'}};
  return set;
}
const CodePointSet& word_characters() {
  static const CodePointSet set{{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}};
  return set;
}
const CodePointSet& spaces() {
  static const CodePointSet set{{9, 13}, {' ', ' '}};
  return set;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {
    if (text.size() > kMaxBytes)
      throw input_error(where_,
                        fmt::format("a pattern of {} bytes is longer than {}", text.size(), kMaxBytes));
    if (utf8_valid_end(text, 0) != text.size()) throw input_error(where_, "the pattern is not UTF-8 text");
  }

  NodePtr run(bool& begins, bool& ends) {
    begins = take('^');
    NodePtr out = choice(0);
    if (at_ < text_.size() && text_[at_] == ')') refuse("a ) without its (");
    ends = ended_;
    // ^a|b$ anchors each half at one end only; nobody means that.
    if ((begins || ends) && out->kind == Node::Kind::choice)
      refuse("an anchor beside | at the outermost level", "write ^(?:a|b)$");
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view what, std::string hint = {}) const {
    throw input_error(where_, fmt::format("pattern {}: {} at offset {}", quote_text(text_), what, at_),
                      std::move(hint));
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  uint32_t character() {
    const Utf8Step step = utf8_step(text_, at_);
    at_ += step.length;
    return step.code_point;
  }

  NodePtr choice(int depth) {
    if (depth > kMaxNesting) refuse(fmt::format("groups nested deeper than {}", kMaxNesting));
    auto out = std::make_unique<Node>();
    out->kind = Node::Kind::choice;
    do out->parts.push_back(sequence(depth));
    while (take('|'));
    if (out->parts.size() == 1) return std::move(out->parts.front());
    return out;
  }

  NodePtr sequence(int depth) {
    auto out = std::make_unique<Node>();
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      if (text_[at_] == '$') {
        if (depth > 0 || at_ + 1 != text_.size()) refuse("the anchor $ inside the pattern");
        ++at_;
        ended_ = true;
        break;
      }
      out->parts.push_back(quantified(atom(depth)));
    }
    return out;
  }

  NodePtr quantified(NodePtr inner) {
    int64_t least = 0, most = 0;
    if (take('*')) {
      most = -1;
    } else if (take('+')) {
      least = 1, most = -1;
    } else if (take('?')) {
      most = 1;
    } else if (more() && text_[at_] == '{') {
      ++at_;
      least = count();
      most = least;
      if (take(',')) most = more() && text_[at_] != '}' ? count() : -1;
      if (!take('}')) refuse("a { that is no repetition {n}, {n,} or {n,m}", "escape it: \\{");
      if (most >= 0 && most < least) refuse("a repetition with its limits reversed");
    } else {
      return inner;
    }
    take('?');  // lazy: the same texts match
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?' || text_[at_] == '{'))
      refuse("a repetition of a repetition", "put the inner one into a group");
    auto out = std::make_unique<Node>();
    out->kind = Node::Kind::repeat;
    out->least = least;
    out->most = most;
    out->parts.push_back(std::move(inner));
    return out;
  }

  int64_t count() {
    int64_t n = 0;
    const size_t begin = at_;
    while (more() && text_[at_] >= '0' && text_[at_] <= '9') {
      n = n * 10 + (text_[at_++] - '0');
      if (n > kMaxRepeat) refuse(fmt::format("a repetition over {}", kMaxRepeat));
    }
    if (at_ == begin) refuse("a { that is no repetition {n}, {n,} or {n,m}", "escape it: \\{");
    return n;
  }

  static NodePtr characters(CodePointSet set) {
    auto out = std::make_unique<Node>();
    out->kind = Node::Kind::characters;
    out->set = std::move(set);
    return out;
  }

  NodePtr atom(int depth) {
    const char c = text_[at_];
    if (c == '(') return group(depth);
    if (c == '[') return characters(bracket());
    if (c == '\\') return characters(escape(false));
    if (c == '*' || c == '+' || c == '?' || c == '{') refuse("a repetition of nothing");
    if (c == '^') refuse("the anchor ^ inside the pattern");
    if (c == '.') {
      ++at_;
      return characters(CodePointSet{{'\n', '\n'}}.complement());
    }
    const uint32_t code = character();
    return characters({{code, code}});
  }

  NodePtr group(int depth) {
    ++at_;
    if (take('?')) {
      if (take('P') || (more() && text_[at_] == '<')) {
        if (!take('<') || !more() || text_[at_] == '=' || text_[at_] == '!') refuse("look-behind");
        while (more() && text_[at_] != '>') ++at_;
        if (!take('>')) refuse("a group's name without its end");
      } else if (!take(':')) {
        refuse("a group (?... other than (?:...) and (?<name>...): look-around and flags");
      }
    }
    NodePtr out = choice(depth + 1);
    if (!take(')')) refuse("a ( without its )");
    return out;
  }

  uint32_t hex(int digits) {
    uint32_t out = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = more() ? text_[at_] : '\0';
      const int v = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
      if (v < 0) refuse("an escape without its hexadecimal digits");
      out = out * 16 + static_cast<uint32_t>(v);
      ++at_;
    }
    return out;
  }

  CodePointSet escape(bool in_class) {
    ++at_;
    if (!more()) refuse("a \\ at the end");
    const uint32_t c = character();
    const auto one = [](uint32_t x) { return CodePointSet{{x, x}}; };
    switch (c) {
      case 'd':
        return digits();
      case 'D':
        return digits().complement();
      case 'w':
        return word_characters();
      case 'W':
        return word_characters().complement();
      case 's':
        return spaces();
      case 'S':
        return spaces().complement();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return one(hex(2));
      case 'u':
        return unicode();
      default:
        break;
    }
    if (in_class && c == 'b') return one('\b');
    if (c < 0x80 && (word_characters().contains(c) && c != '_'))
      refuse(fmt::format("the escape \\{}", static_cast<char>(c)),
             "back-references, word boundaries and properties are outside the subset");
    return one(c);
  }

  CodePointSet unicode() {
    const uint32_t high = hex(4);
    if (high < 0xd800 || high > 0xdfff) return {{high, high}};
    if (high > 0xdbff || !take('\\') || !take('u')) refuse("half a surrogate pair");
    const uint32_t low = hex(4);
    if (low < 0xdc00 || low > 0xdfff) refuse("half a surrogate pair");
    const uint32_t c = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return {{c, c}};
  }

  CodePointSet bracket() {
    ++at_;
    const bool negated = take('^');
    CodePointSet out;
    for (bool first = true;; first = false) {
      if (!more()) refuse("a [ without its ]");
      if (text_[at_] == ']' && !first) break;
      if (text_[at_] == '[' && at_ + 1 < text_.size() && text_[at_ + 1] == ':') refuse("a class [:name:]");
      const CodePointSet low = member();
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        const CodePointSet high = member();
        if (!single(low) || !single(high)) refuse("a range whose end is no character");
        if (low.ranges()[0].first > high.ranges()[0].first) refuse("a range with its ends reversed");
        out.add(low.ranges()[0].first, high.ranges()[0].first);
      } else {
        out.add(low);
      }
    }
    ++at_;
    return negated ? out.complement() : out;
  }
  static bool single(const CodePointSet& s) {
    return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].second;
  }
  CodePointSet member() {
    if (text_[at_] == '\\') return escape(true);
    const uint32_t c = character();
    return {{c, c}};
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  bool ended_ = false;
};

Fragment build(AutomatonBuilder& b, const Node& node, PatternUse use) {
  switch (node.kind) {
    case Node::Kind::characters:
      return use == PatternUse::json_string ? json_characters(b, node.set) : b.characters(node.set);
    case Node::Kind::choice: {
      std::vector<Fragment> options;
      for (const NodePtr& p : node.parts) options.push_back(build(b, *p, use));
      return b.either(options);
    }
    case Node::Kind::repeat:
      return b.repeat([&] { return build(b, *node.parts.front(), use); }, node.least, node.most);
    case Node::Kind::sequence:
      break;
  }
  Fragment out = b.empty();
  for (const NodePtr& p : node.parts) out = b.then(out, build(b, *p, use));
  return out;
}

}  // namespace

Fragment json_characters(AutomatonBuilder& b, const CodePointSet& set) {
  CodePointSet plain = set;
  plain.remove(0, 0x1f);
  plain.remove('"', '"');
  plain.remove('\\', '\\');
  std::vector<Fragment> options{b.characters(plain)};
  constexpr std::pair<char, std::string_view> kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"},
                                                          {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"},
                                                          {'\t', "\\t"}};
  for (const auto& [c, text] : kShort)
    if (set.contains(static_cast<uint32_t>(c))) options.push_back(b.literal(text));
  return b.either(options);
}

Fragment build_pattern(AutomatonBuilder& b, std::string_view pattern, PatternUse use) {
  bool begins = false, ends = false;
  const NodePtr root = Parser(pattern, b.where()).run(begins, ends);
  Fragment out = build(b, *root, use);
  if (use == PatternUse::whole) return out;
  const auto anything = [&] { return b.star(json_characters(b, CodePointSet{}.complement())); };
  if (!begins) out = b.then(anything(), out);
  if (!ends) out = b.then(out, anything());
  return out;
}

}  // namespace hysparse
