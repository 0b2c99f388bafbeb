// Shared by the io tests: a folder that goes away, and errors held to what they say.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "unit/support/temp_dir.h"

namespace hysparse::testing_io {

using tests::TempDir;

inline void put(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string get(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// `run` must throw an Error of this kind whose text holds every one of `parts`.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& parts,
                         const std::function<void()>& run, const std::string& context = {}) {
  try {
    run();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << context << ": " << e.what();
    const std::string what = e.what();
    for (const std::string& p : parts)
      EXPECT_NE(what.find(p), std::string::npos) << context << ": \"" << p << "\" is not in: " << what;
    return;
  } catch (const std::exception& e) {
    ADD_FAILURE() << context << ": not an Error: " << e.what();
    return;
  }
  ADD_FAILURE() << context
                << ": nothing was thrown; expected an error with: " << (parts.empty() ? "" : parts[0]);
}

inline void expect_input_error(const std::vector<std::string>& parts, const std::function<void()>& run,
                               const std::string& context = {}) {
  expect_error(ErrorKind::input, parts, run, context);
}

// Runs `body` in a process of its own (limits and privileges given up there stay there); its failures are
// ours.
inline void in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& e) {
      ADD_FAILURE() << "exception: " << e.what();
    }
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// For in_child: no more root, so that permissions count.
inline void become_nobody() {
  if (::geteuid() == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
}

}  // namespace hysparse::testing_io
