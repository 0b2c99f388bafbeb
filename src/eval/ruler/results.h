// The answers of a run, kept as they come: results.jsonl of its folder. The first line holds the settings
// that decide answers, every other one a sample. What is there is not computed again.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "eval/ruler/sample.h"
#include "eval/ruler/score.h"
#include "io/json_value.h"

namespace hysparse::ruler {

struct Record {
  std::string task;
  int64_t length = 0, index = 0;
  int64_t prompt_tokens = 0, answer_tokens = 0;  // answer_tokens: its budget
  int64_t drawn = 0;                             // tokens of the answer
  std::string finish;                            // eos, stop, length
  std::string answer;
  std::vector<std::string> references;
  std::string question;
  std::vector<double> depths;  // of the references, 0 to 1
  Score score;
  bool cut = false;        // the budget ended it
  bool truncated = false;  // it was not asked as it was made: never so in a sound run
  bool exhausted = false;  // the materials ended before the length
  std::string form;
};
Json record_json(const Record& record);
// Error(input) naming `where`.
Record record_of(const Json& json, const std::string& where);

class Results {
 public:
  using Key = std::tuple<std::string, int64_t, int64_t>;  // task, length, index

  // Kept in memory alone.
  Results() = default;
  // Of the folder, which is created. A line that was cut short by an interruption is dropped. Error(input)
  // where the folder's settings are others, naming the first that differs.
  Results(const std::filesystem::path& folder, const Json& settings);
  ~Results();
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  bool has(const Key& key) const { return records_.contains(key); }
  const std::map<Key, Record>& records() const { return records_; }
  bool kept() const { return file_ != nullptr; }  // in a folder
  int64_t found() const { return found_; }        // records that were there when it was opened
  // Puts it at the file's end at once. Error(failure) where it cannot be written.
  void add(Record record);

 private:
  size_t read(const Json& settings);
  void write_line(const Json& json);

  std::filesystem::path path_;
  std::map<Key, Record> records_;
  std::FILE* file_ = nullptr;
  int64_t found_ = 0;
};

}  // namespace hysparse::ruler
