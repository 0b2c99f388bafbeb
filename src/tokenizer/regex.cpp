#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace hysparse {
namespace {

// Backtracking steps a match may take. A legitimate pre-tokenizer needs a few a character; this many take
// well under a second.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kJitStackBytes = size_t(32) << 20;

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Rewrites an expression meant for Oniguruma (Ruby syntax) so that PCRE2 reads it the same way, and refuses
// what the two engines read differently.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\' && at_ + 1 < in_.size())
        escape();
      else if (in_class_)
        class_member(c);
      else
        outside(c);
    }
    return std::move(out_);
  }

 private:
  // PCRE2's \s also takes U+180E, which is no white space any more; White_Space is \p{Z}, TAB..CR, U+0085.
  static constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
  static constexpr std::string_view kDiffering = "wWbBhHRXKGNOQEyYAzZkgu";

  [[noreturn]] void refuse(const std::string& what) const {
    throw input_error(where_, fmt::format("the expression uses {}, which is not supported", what));
  }

  void copy(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  void escape() {
    const char e = in_[at_ + 1];
    if (e == 's' || (e == 'S' && !in_class_)) {
      if (in_class_)
        out_ += kSpace;
      else
        out_ += fmt::format("[{}{}]", e == 'S' ? "^" : "", kSpace);
      at_ += 2;
    } else if (e == 'S') {
      refuse("\\S inside a class");
    } else if (kDiffering.find(e) != std::string_view::npos) {
      refuse(fmt::format("\\{}", e));
    } else if ((e == 'p' || e == 'P' || e == 'x') && in_.substr(at_ + 2, 1) == "{") {
      const size_t close = in_.find('}', at_);
      copy(close == std::string_view::npos ? 2 : close + 1 - at_);
    } else {
      copy(2);
    }
  }

  void class_member(char c) {
    if (c == '[') refuse("a class inside a class (write \\[ for the bracket itself)");
    if (in_.substr(at_, 2) == "&&") refuse("an intersection of classes (&&)");
    if (c == ']' && at_ != class_first_) in_class_ = false;
    copy(1);
  }

  void outside(char c) {
    if (c == '[') {
      in_class_ = true;
      class_first_ = at_ + (in_.substr(at_ + 1, 1) == "^" ? 2 : 1);
      copy(class_first_ - at_);
      return;
    }
    if (c == '(' && in_.substr(at_ + 1, 1) == "?") {
      const size_t end =
          in_.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-", at_ + 2);
      const std::string_view flags = in_.substr(at_ + 2, end == std::string_view::npos ? end : end - at_ - 2);
      if (!flags.empty() && flags != "i" && flags != "-i") refuse(fmt::format("(?{}", flags));
    }
    if (c == '}' && in_.substr(at_ + 1, 1) == "+") refuse("a possessive {n,m}+");
    copy(1);
  }

  std::string_view in_;
  const std::string& where_;
  size_t at_ = 0, class_first_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string where;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, bool literal, std::string where) : code_(std::make_unique<Code>()) {
  const std::string text = literal ? std::string(pattern) : Translator(pattern, where).run();
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error,
                              &offset, nullptr);
  if (code_->code == nullptr)
    throw input_error(where, fmt::format("bad regular expression {}: {} at offset {}", quote_text(text),
                                         pcre_message(error), offset));
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // without JIT the interpreter takes over
  code_->where = std::move(where);
}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

struct Regex::Matcher::State {
  const Code* code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  explicit State(const Code* c) : code(c) {
    data = pcre2_match_data_create(1, nullptr);
    context = pcre2_match_context_create(nullptr);
    if (data == nullptr || context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Regex::Matcher::Matcher(const Regex& regex) : state_(std::make_unique<State>(regex.code_.get())) {}
Regex::Matcher::Matcher(Matcher&&) noexcept = default;
Regex::Matcher::~Matcher() = default;

bool Regex::Matcher::next(std::string_view text, size_t from, size_t& begin, size_t& end) {
  State& s = *state_;
  while (from < text.size()) {
    const int rc = pcre2_match(s.code->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                               PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s.data, s.context);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && s.stack == nullptr) {
      // The 32 KiB of machine stack did not do: retry with a growing one.
      s.stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
      if (s.stack == nullptr) throw std::bad_alloc();
      pcre2_jit_stack_assign(s.context, nullptr, s.stack);
      continue;
    }
    if (rc < 0)
      throw input_error(
          s.code->where,
          fmt::format("the pre-tokenizer's expression gave up at byte {}: {}", from, pcre_message(rc)),
          "it backtracks too much on this text");
    const PCRE2_SIZE* at = pcre2_get_ovector_pointer(s.data);
    begin = at[0], end = at[1];
    if (end > begin) return true;
    from = end + 1;  // only \K could do this, and it is refused
  }
  return false;
}

}  // namespace hysparse
