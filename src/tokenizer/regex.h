// Regular expressions over UTF-8 text (PCRE2, JIT-compiled where the machine allows), with Unicode classes
// and with limits: an expression that backtracks without end is an error, never a hang.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace hysparse {

class Regex {
 public:
  // The syntax of Hugging Face files (Oniguruma's) as far as it means the same here: \s and \S are Unicode
  // white space; escapes whose meaning differs between the engines (\w, \b, \h, ...) are Error(input).
  // `literal`: the pattern is plain text. `where` names it in errors.
  Regex(std::string_view pattern, bool literal, std::string where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Scratch space for matching; one a thread.
  class Matcher {
   public:
    explicit Matcher(const Regex& regex);
    Matcher(Matcher&&) noexcept;
    ~Matcher();
    // The first non-empty match that begins at or after `from`; `text` must be valid UTF-8. False: none.
    bool next(std::string_view text, size_t from, size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace hysparse
