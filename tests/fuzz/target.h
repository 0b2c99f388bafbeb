// A fuzz target: one reader of untrusted bytes. It may throw hysparse::Error and nothing else, and must keep
// what it promises of the inputs it accepts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hysparse::fuzz {

// Returns whether the input was accepted.
bool run_input(std::string_view input);
// Well-formed inputs to start from, and pieces worth inserting anywhere.
std::vector<std::string> seeds();
std::vector<std::string> dictionary();

// A broken promise: ends the process, as a sanitizer would.
inline void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Whether `read` came through; an Error must be the input's fault and no longer than a person reads.
template <class Read>
bool accepted(Read&& read) {
  try {
    read();
    return true;
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::input, "what is wrong is the input's fault");
    require(std::strlen(e.what()) < 4000, "messages are short");
    return false;
  }
}

}  // namespace hysparse::fuzz
