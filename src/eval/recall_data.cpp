#include "eval/recall_data.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "io/files.h"
#include "io/json_fields.h"
#include "io/json_value.h"
#include "train/chat_data.h"
#include "train/token_file.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

// Ids of made tasks have no tokenizer; the fingerprint tells vocabularies apart.
std::string vocabulary_fingerprint() {
  const uint64_t h = hash_words({uint64_t(recall::kVocabulary), uint64_t(recall::kSymbol), 1});
  return fmt::format("{:016x}{:016x}", h, mix64(h));
}

Json recall_meta(const std::vector<RecallShare>& tasks, int64_t rows, int64_t held_out_rows, uint64_t seed) {
  Json m;
  m["tasks"] = Json::array();
  for (const RecallShare& share : tasks) {
    Json task = write_fields(share.task);
    task["weight"] = share.weight;
    m["tasks"].push_back(std::move(task));
  }
  m["rows"] = rows;
  m["held_out_rows"] = held_out_rows;
  m["seed"] = seed;
  return m;
}

// Which task row i is of: weights in turn.
const RecallTask& task_of(const std::vector<RecallShare>& tasks, int64_t row) {
  int64_t total = 0;
  for (const RecallShare& s : tasks) total += s.weight;
  int64_t at = row % total;
  for (const RecallShare& s : tasks) {
    if (at < s.weight) return s.task;
    at -= s.weight;
  }
  return tasks.back().task;
}

void write_split(const fs::path& dir, const std::string& split, const std::vector<RecallShare>& tasks,
                 int64_t rows, uint64_t first, uint64_t seed, ThreadPool& pool) {
  TokenFileHeader header;
  header.vocab_size = recall::kVocabulary;
  header.eos_id = recall::kEnd;
  header.row_tokens = tasks[0].task.length;
  header.fingerprint = vocabulary_fingerprint();
  TokenFileWriter tokens(dir / (split + ".tokens"), header);
  header.vocab_size = 1 + (kLearned | kDocumentEnd);
  header.eos_id = kDocumentEnd;
  TokenFileWriter flags(dir / (split + ".flags.tokens"), header);
  constexpr int64_t kMostRows = 4096, kMostTokens = int64_t(1) << 23, kPiece = 64;  // at once
  const int64_t batch = std::clamp<int64_t>(kMostTokens / header.row_tokens, 1, kMostRows);
  const auto length = static_cast<size_t>(header.row_tokens);
  std::vector<int32_t> ids, marks;
  for (int64_t begin = 0; begin < rows; begin += batch) {
    const int64_t count = std::min(batch, rows - begin);
    ids.assign(static_cast<size_t>(count) * length, 0);
    marks.assign(ids.size(), 0);
    pool.parallel_for((count + kPiece - 1) / kPiece, [&](int64_t piece, int) {
      for (int64_t r = piece * kPiece; r < std::min(count, (piece + 1) * kPiece); ++r) {
        const size_t at = static_cast<size_t>(r) * length;
        const RecallRow row =
            make_recall_row(task_of(tasks, begin + r), seed, first + static_cast<uint64_t>(begin + r));
        std::copy(row.tokens.begin(), row.tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(at));
        for (const RecallAnswer& a : row.answers) marks[at + static_cast<size_t>(a.at)] |= kLearned;
        marks[at + length - 1] |= kDocumentEnd;
      }
    });
    tokens.add_tokens(ids.data(), ids.size());
    flags.add_tokens(marks.data(), marks.size());
    for (int64_t r = 0; r < count; ++r) tokens.count_document(0), flags.count_document(0);
  }
  const int32_t end = recall::kEnd, end_flag = kDocumentEnd;  // the label behind the last row
  tokens.add_tokens(&end, 1);
  flags.add_tokens(&end_flag, 1);
  tokens.finish();
  flags.finish();
}

}  // namespace

void write_recall_data(const fs::path& dir, const std::vector<RecallShare>& tasks, int64_t rows,
                       int64_t held_out_rows, uint64_t seed, ThreadPool& pool, const std::string& where) {
  if (tasks.empty()) throw expected_error(where, "at least one task", "none");
  for (const RecallShare& s : tasks) {
    validate_recall_task(s.task, where);
    if (s.weight < 1) throw expected_error(where, "a weight of at least 1", std::to_string(s.weight));
    if (s.task.length != tasks[0].task.length)
      throw expected_error(where, fmt::format("tasks of one length ({})", tasks[0].task.length),
                           std::to_string(s.task.length));
  }
  if (rows < 1 || held_out_rows < 1)
    throw expected_error(where, "at least one row to train on and one to hold out",
                         fmt::format("{} and {}", rows, held_out_rows));
  publish_directory(dir, [&](const fs::path& temp) {
    write_split(temp, "train", tasks, rows, 0, seed, pool);
    write_split(temp, "holdout", tasks, held_out_rows, kHeldOutRows, seed, pool);
    Json m;
    m["format"] = "hysparse-token-data";
    m["version"] = kTokenFileVersion;
    m["vocab_size"] = recall::kVocabulary;
    m["eos_token_id"] = recall::kEnd;
    m["tokenizer_fingerprint"] = vocabulary_fingerprint();
    m["dtype"] = "u16";
    m["recall"] = recall_meta(tasks, rows, held_out_rows, seed);
    for (const char* split : {"train", "holdout"}) {
      Json& j = m["splits"][split];
      const int64_t n = split[0] == 't' ? rows : held_out_rows;
      j["file"] = std::string(split) + ".tokens";
      j["tokens"] = n * tasks[0].task.length + 1;
      j["text_bytes"] = 0;
      j["documents"] = n;
    }
    write_file_atomic(temp / "meta.json", dump_json(m));
  });
}

bool holds_recall_data(const fs::path& dir, const std::vector<RecallShare>& tasks, int64_t rows,
                       int64_t held_out_rows, uint64_t seed) {
  if (!file_exists(dir / "meta.json")) return false;
  const Json m = read_json_file(dir / "meta.json");
  return m.is_object() && m.contains("recall") &&
         m.at("recall") == recall_meta(tasks, rows, held_out_rows, seed);
}

}  // namespace hysparse
