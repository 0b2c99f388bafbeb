// Rows of made tasks (eval/recall_task.h) as a folder of data that training reads, answers alone learned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "eval/recall_task.h"

namespace hysparse {

struct RecallShare {
  RecallTask task;
  int64_t weight = 1;  // of every `sum of weights` rows, so many are of this task
};

// Training rows carry numbers from 0, the held-out ones from here: no row is in both. Evaluations draw from
// kEvaluationRows on.
inline constexpr uint64_t kHeldOutRows = uint64_t(1) << 40, kEvaluationRows = uint64_t(1) << 41;

// Publishes `dir`: train.tokens and holdout.tokens in the format of packed conversations (docs/formats.md),
// with meta.json and without a tokenizer. All tasks have the same length, which train.seq_len must equal. The
// files depend on the tasks, `seed` and the counts alone. Error(input) naming `where`.
void write_recall_data(const std::filesystem::path& dir, const std::vector<RecallShare>& tasks, int64_t rows,
                       int64_t held_out_rows, uint64_t seed, ThreadPool& pool, const std::string& where);

// Whether `dir` holds just what write_recall_data would write there.
bool holds_recall_data(const std::filesystem::path& dir, const std::vector<RecallShare>& tasks, int64_t rows,
                       int64_t held_out_rows, uint64_t seed);

}  // namespace hysparse
