// Folders that vanish with the test, and errors held to what they say.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "unit/support/temp_dir.h"

namespace hysparse::test {

using tests::TempDir;

inline void write(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

inline std::filesystem::path shipped_text(const std::string& name) {
  return std::filesystem::path(HYSPARSE_SOURCE_DIR) / "data" / name;
}

template <class Fn>
std::string error_of(Fn&& fn, ErrorKind kind = ErrorKind::input) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace hysparse::test
