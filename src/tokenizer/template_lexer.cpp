#include "tokenizer/template_lexer.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace hysparse::chat {
namespace {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
bool name_begins(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool in_name(char c) {
  return name_begins(c) || std::isdigit(static_cast<unsigned char>(c)) != 0;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& where) : s_(source), where_(where) {
    if (s_.ends_with('\n')) s_.remove_suffix(1);
    if (s_.ends_with('\r')) s_.remove_suffix(1);
  }

  std::vector<Lexeme> run() {
    while (at_ < s_.size()) {
      const size_t open = next_tag();
      text(open);
      if (open == s_.size()) break;
      at_ = open;
      tag();
    }
    out_.push_back({Lexeme::Kind::end, "", line_});
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw input_error(fmt::format("{}: line {}", where_, line_), what);
  }

  size_t next_tag() const {
    for (size_t i = at_; (i = s_.find('{', i)) != std::string_view::npos; ++i)
      if (i + 1 < s_.size() && (s_[i + 1] == '{' || s_[i + 1] == '%' || s_[i + 1] == '#')) return i;
    return s_.size();
  }

  void text(size_t open) {
    std::string_view t = s_.substr(at_, open - at_);
    const int lines = static_cast<int>(std::count(t.begin(), t.end(), '\n'));
    bool line_began = at_ == 0 || s_[at_ - 1] == '\n';
    if (trim_all_) {
      size_t k = 0;
      while (k < t.size() && is_space(t[k])) ++k;
      line_began = line_began || t.substr(0, k).find('\n') != std::string_view::npos;
      t.remove_prefix(k);
    } else if (trim_line_ && t.starts_with("\r\n")) {
      t.remove_prefix(2), line_began = true;
    } else if (trim_line_ && t.starts_with('\n')) {
      t.remove_prefix(1), line_began = true;
    }
    trim_all_ = trim_line_ = false;
    if (open < s_.size()) {
      const char mark = open + 2 < s_.size() ? s_[open + 2] : '\0';
      if (mark == '-') {
        while (!t.empty() && is_space(t.back())) t.remove_suffix(1);
      } else if (s_[open + 1] != '{' && mark != '+') {
        size_t k = t.size();
        while (k > 0 && (t[k - 1] == ' ' || t[k - 1] == '\t')) --k;
        if (k == 0 ? line_began : t[k - 1] == '\n') t = t.substr(0, k);
      }
    }
    if (!t.empty()) out_.push_back({Lexeme::Kind::text, std::string(t), line_});
    line_ += lines;
  }

  void tag() {
    const char kind = s_[at_ + 1];
    at_ += 2;
    if (at_ < s_.size() && (s_[at_] == '-' || (s_[at_] == '+' && kind != '{'))) ++at_;
    if (kind == '#') {
      const size_t end = s_.find("#}", at_);
      if (end == std::string_view::npos) refuse("a comment without its end");
      line_ += static_cast<int>(std::count(s_.begin() + static_cast<std::ptrdiff_t>(at_),
                                           s_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      trim_all_ = end > at_ && s_[end - 1] == '-';
      trim_line_ = true;
      at_ = end + 2;
      return;
    }
    const bool output = kind == '{';
    out_.push_back({output ? Lexeme::Kind::output_begin : Lexeme::Kind::tag_begin, "", line_});
    const std::string_view close = output ? "}}" : "%}";
    int open_braces = 0;
    while (true) {
      while (at_ < s_.size() && is_space(s_[at_])) line_ += s_[at_++] == '\n';
      if (at_ >= s_.size()) refuse("a tag without its end");
      const std::string_view rest = s_.substr(at_);
      const bool marked = rest[0] == '-' || rest[0] == '+';
      if (open_braces == 0 && (rest.starts_with(close) || (marked && rest.substr(1).starts_with(close)))) {
        trim_all_ = marked && rest[0] == '-';
        trim_line_ = !output && !(marked && rest[0] == '+');
        at_ += close.size() + (marked ? 1 : 0);
        out_.push_back({output ? Lexeme::Kind::output_end : Lexeme::Kind::tag_end, "", line_});
        return;
      }
      token(open_braces);
    }
  }

  void token(int& open_braces) {
    const char c = s_[at_];
    if (name_begins(c)) {
      const size_t begin = at_;
      while (at_ < s_.size() && in_name(s_[at_])) ++at_;
      out_.push_back({Lexeme::Kind::name, std::string(s_.substr(begin, at_ - begin)), line_});
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      const size_t begin = at_;
      bool real = false;
      while (at_ < s_.size() && (std::isdigit(static_cast<unsigned char>(s_[at_])) != 0 ||
                                 (!real && s_[at_] == '.' && at_ + 1 < s_.size() &&
                                  std::isdigit(static_cast<unsigned char>(s_[at_ + 1])) != 0)))
        real |= s_[at_++] == '.';
      if (at_ - begin > 15) refuse("a number of more than 15 digits");
      out_.push_back({real ? Lexeme::Kind::real : Lexeme::Kind::integer,
                      std::string(s_.substr(begin, at_ - begin)), line_});
    } else if (c == '"' || c == '\'') {
      string(c);
    } else {
      for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"})
        if (s_.substr(at_).starts_with(two)) {
          out_.push_back({Lexeme::Kind::sign, std::string(two), line_});
          at_ += 2;
          return;
        }
      if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos)
        refuse(fmt::format("the character '{}' in a tag", c));
      if (c == '{') ++open_braces;
      if (c == '}' && --open_braces < 0) refuse("a } without its {");
      out_.push_back({Lexeme::Kind::sign, std::string(1, c), line_});
      ++at_;
    }
  }

  void string(char quote) {
    std::string text;
    for (++at_; at_ < s_.size() && s_[at_] != quote; ++at_) {
      if (s_[at_] == '\n') ++line_;
      if (s_[at_] != '\\') {
        text += s_[at_];
        continue;
      }
      if (++at_ >= s_.size()) break;
      switch (s_[at_]) {
        case 'n':
          text += '\n';
          break;
        case 't':
          text += '\t';
          break;
        case 'r':
          text += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          text += s_[at_];
          break;
        case 'u': {
          uint32_t code = 0;
          for (int i = 0; i < 4; ++i) {
            const char h = ++at_ < s_.size() ? s_[at_] : '\0';
            if (std::isxdigit(static_cast<unsigned char>(h)) == 0)
              refuse("an escape \\u without four hexadecimal digits");
            code = code * 16 + static_cast<uint32_t>(h <= '9' ? h - '0' : (h | 32) - 'a' + 10);
          }
          if (code >= 0xd800 && code <= 0xdfff) refuse("a surrogate in \\u");
          append_utf8(text, code);
          break;
        }
        default:
          refuse(fmt::format("the escape \\{} in a text", s_[at_]));
      }
    }
    if (at_ >= s_.size()) refuse("a text without its end quote");
    ++at_;
    out_.push_back({Lexeme::Kind::string, std::move(text), line_});
  }

  std::string_view s_;
  const std::string& where_;
  size_t at_ = 0;
  int line_ = 1;
  bool trim_all_ = false, trim_line_ = false;
  std::vector<Lexeme> out_;
};

}  // namespace

std::vector<Lexeme> lex_template(std::string_view source, const std::string& where) {
  return Lexer(source, where).run();
}

}  // namespace hysparse::chat
