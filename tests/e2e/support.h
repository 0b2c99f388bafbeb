// The program run as a user runs it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace hysparse::e2e {

namespace fs = std::filesystem;

struct Result {
  int code;            // exit code; 128 + signal where one ended it
  std::string output;  // stdout and stderr
};

// `before`: environment and wrappers in front of the program.
inline Result run(const std::string& arguments, const std::string& before = "") {
  const std::string command = "exec " + before + HYSPARSE_BINARY + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Result r{-1, {}};
  if (!pipe) return r;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) r.output.append(buffer, n);
  const int status = pclose(pipe);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return r;
}

inline void expect_ok(const std::string& arguments) {
  const Result r = run(arguments);
  ASSERT_EQ(r.code, 0) << arguments << "\n" << r.output;
}
inline void expect_bad(const std::string& arguments, const std::string& message,
                       const std::string& before = "") {
  const Result r = run(arguments, before);
  EXPECT_EQ(r.code, 2) << arguments << "\n" << r.output;
  EXPECT_NE(r.output.find(message), std::string::npos) << arguments << "\nexpected: " << message << "\n"
                                                       << r.output;
}

inline void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Where syncing to disk costs nothing, for tests that start the program many times; else the usual place.
inline fs::path fast_place() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path();
}

// A folder that goes away with its owner.
class Folder {
 public:
  explicit Folder(const fs::path& place = fs::temp_directory_path()) {
    std::string pattern = (place / "hysparse-e2e-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Text, tokenizer, prepared data and a config of a model that trains in a blink, below `root`.
inline void make_small_run(const Folder& root, const std::string& train_settings) {
  std::string text;
  for (int i = 0; i < 1500; ++i)
    text += "Line " + std::to_string(i * 7919 % 1000) + ": the quick brown fox jumps over the lazy dog.\n";
  write_text(root / "text.txt", text);
  write_text(root / "config.json", R"({
      "num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "intermediate_size": 48, "vocab_size": 320, "max_position_embeddings": 512, "attention": "hysparse",
      "full_attention_interval": 3, "sliding_window": 8, "hysparse_block_size": 8, "hysparse_topk_tokens": 16,
      "tie_word_embeddings": true, "train": )" +
                                       train_settings + "}");
  expect_ok("tokenizer train --input " + root / "text.txt" + " --vocab-size 320 --out " + root / "tok");
  expect_ok("data prepare --tokenizer " + root / "tok" + " --input " + root / "text.txt" + " --out " +
            root / "data" + " --holdout 0.1");
}

}  // namespace hysparse::e2e
