// The training loop: data order -> micro-batches -> gradient -> AdamW -> log, evaluation, checkpoints.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"
#include "train/run_config.h"
#include "train/train_log.h"

namespace hysparse {

// After every step; what a progress line shows.
struct TrainProgress {
  int64_t step = 0, steps = 0;
  double loss = 0.0;           // this step, nats a token
  double smoothed_loss = 0.0;  // exponential mean over about 20 steps
  double lr = 0.0, grad_norm = 0.0;
  double tokens_per_second = 0.0;  // over the last steps, without evaluation and saving
  double eta_seconds = 0.0;
  std::optional<EvalRecord> held_out;  // the latest
  bool evaluated = false;              // `held_out` is of this step
  bool skipped = false;
};

struct TrainRequest {
  RunConfig config;
  std::filesystem::path data;  // a prepared directory, or one of made token ids (eval/recall_data.h)
  std::filesystem::path out;
  bool resume = false;
  std::filesystem::path from;               // start from these weights alone; empty: random ones
  const std::atomic<bool>* stop = nullptr;  // Ctrl-C
  std::function<void(const TrainProgress&)> progress;
  // A continuation of `prompt` by the model as it is; empty: no samples.
  std::function<std::string(Runtime&, Model&, const Tokenizer&, const std::string& prompt, int64_t tokens)>
      sample;
  // Looks at the model as it is, whenever a held-out evaluation is due; rank 0 alone.
  std::function<void(Runtime&, Model&, int64_t step)> probe;
};

struct TrainResult {
  int64_t steps = 0;      // completed
  bool finished = false;  // false: the time limit came first
  int64_t tokens = 0;
  double seconds = 0.0;            // of the whole run, earlier parts included
  double tokens_per_second = 0.0;  // of this part, evaluation and saving included
  int64_t parameters = 0;
  std::vector<EvalRecord> evals;  // of the whole run
  std::vector<std::string> samples;
};

// Trains until train.steps and leaves OUT/log.jsonl, OUT/tensorboard, OUT/checkpoints and OUT/model.
// Where rt.comm has several ranks, all of them call this with the same request and see the same folders: each
// computes its share of every step's rows, and rank 0 alone writes, reports and makes samples. One rank's
// `stop` stops all; an error of one leaves the others with the error that it is gone.
//   Error(input)        the request cannot be met: an existing run without `resume`, other data, ...
//   Error(interrupted)  `stop` was set: the state is saved, the step under way was dropped
//   Error(failure)      max_nonfinite_steps in a row: the last good weights are saved
TrainResult train(Runtime& rt, const TrainRequest& request);

}  // namespace hysparse
