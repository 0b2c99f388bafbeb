// The one exception type of the library. Library code throws it and never prints or exits;
// apps/ turns the kind into an exit code.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace hysparse {

enum class ErrorKind {
  input,        // the user's flag, file or data is wrong: exit 2
  failure,      // the machine failed us (disk full, no memory, a bug): exit 1
  interrupted,  // stopped on request after the state was saved: exit 130
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string hint = {})
      : std::runtime_error(hint.empty() ? message : message + " (" + hint + ")"), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return kind_ == ErrorKind::input ? 2 : kind_ == ErrorKind::interrupted ? 130 : 1; }

 private:
  ErrorKind kind_;
};

// `where` names the file, tensor, field or flag: "config.json: head_dim".
inline Error input_error(std::string_view where, std::string_view what, std::string hint = {}) {
  return Error(ErrorKind::input, fmt::format("{}: {}", where, what), std::move(hint));
}
inline Error expected_error(std::string_view where, std::string_view expected, std::string_view got,
                            std::string hint = {}) {
  return Error(ErrorKind::input, fmt::format("{}: expected {}, got {}", where, expected, got),
               std::move(hint));
}
inline Error failure(std::string_view where, std::string_view what, std::string hint = {}) {
  return Error(ErrorKind::failure, fmt::format("{}: {}", where, what), std::move(hint));
}

// A precondition of a library call; a broken one is a bug of the caller, never of a user's file.
#define HYSPARSE_CHECK(condition, ...)                                                       \
  do {                                                                                       \
    if (!(condition)) throw ::hysparse::failure("internal check", fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace hysparse
