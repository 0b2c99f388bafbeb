// A fuzz target: one reader of untrusted bytes. It may throw hysparse::Error and nothing else, and must keep
// what it promises of the inputs it accepts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace hysparse::fuzz
