// How often a model finds what a row of a made task asks for: teacher-forced, the argmax at each answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "eval/recall_task.h"
#include "model/model.h"

namespace hysparse {

struct RecallScore {
  int64_t answers = 0, right = 0;
  double nats = 0;  // sum over the answers of -log p(answer)

  double accuracy() const;  // NaN without answers
  // Of the accuracy: sqrt(p (1 - p) / n), never below that of one error among n.
  double standard_error() const;
  double nats_per_answer() const;
  void add(bool is_right, double loss);
};

struct RecallResult {
  RecallScore all;
  std::map<int64_t, RecallScore> by_hops;
};

struct RecallOptions {
  int64_t rows = 256;  // samples
  int64_t batch = 0;   // rows a forward; 0: as many as fit in 16384 tokens, at least 1
  uint64_t seed = 42;
  std::function<void(int64_t rows_done)> progress;
};

// Rows kEvaluationRows (eval/recall_data.h) and on of the seed: never trained on. The result does not depend
// on the batch (on a GPU, to rounding).
RecallResult evaluate_recall(Runtime& rt, Model& model, const RecallTask& task, const RecallOptions& options);

}  // namespace hysparse
