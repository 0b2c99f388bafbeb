// Small tokenizers made for a test, and folders that vanish with it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json_value.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::test {

class TempDir {
 public:
  TempDir() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("hysparse_tok_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

inline std::filesystem::path shipped_text(const std::string& name) {
  return std::filesystem::path(__FILE__).parent_path() / "../../../data" / name;
}

// A tokenizer.json: the 256 bytes at ids 0-255 (id = byte), then a token for every merge given as {left,
// right} in bytes, then "<|end|>" (special).
inline Json tokenizer_json(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object(), list = Json::array();
  for (int b = 0; b < 256; ++b) vocab[to_alphabet(std::string(1, static_cast<char>(b)))] = b;
  int next = 256;
  for (const auto& [left, right] : merges) {
    vocab[to_alphabet(left + right)] = next++;
    list.push_back(Json::array({to_alphabet(left), to_alphabet(right)}));
  }
  Json file;
  file["added_tokens"] = Json::array({{{"id", next}, {"content", "<|end|>"}, {"special", true}}});
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  file["decoder"] = {{"type", "ByteLevel"}};
  file["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}};
  return file;
}

inline Tokenizer load(const Json& file, const Json& config = nullptr) {
  TempDir dir;
  write(dir / "tokenizer.json", dump_json(file));
  if (!config.is_null()) write(dir / "tokenizer_config.json", dump_json(config));
  return Tokenizer::load(dir.path());
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
