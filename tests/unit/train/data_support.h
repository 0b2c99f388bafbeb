// Shared by the tests of prepared data.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/data.h"
#include "train/token_file.h"
#include "unit/support/temp_dir.h"

namespace hysparse::test_data {

using tests::TempDir;

inline void write(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

inline std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// <dir>/train.tokens of documents of these lengths, EOS (id 0) counted: token i of the file is 1 + i % (vocab
// - 1) where no document ends.
inline TokenData documents(const std::filesystem::path& dir, const std::vector<int64_t>& lengths,
                           int32_t vocab = 1000) {
  std::filesystem::remove(dir / "train.tokens");
  TokenFileHeader header;
  header.vocab_size = vocab;
  header.eos_id = 0;
  header.fingerprint = std::string(32, 'f');
  TokenFileWriter writer(dir / "train.tokens", header);
  int32_t at = 0;
  for (const int64_t n : lengths) {
    for (int64_t i = 0; i + 1 < n; ++i, ++at) {
      const int32_t id = 1 + at % (vocab - 1);
      writer.add_tokens(&id, 1);
    }
    writer.end_document(3 * (n - 1));
    ++at;
  }
  writer.finish();
  return TokenData(dir, "train");
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

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace hysparse::test_data
