// What a run leaves for people and plots: log.jsonl and TensorBoard event files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/plan.h"
#include "train/event_file.h"

namespace hysparse {

// A logged optimiser step. Steps count completed ones: the first is 1.
struct TrainRecord {
  int64_t step = 0;
  int64_t tokens = 0;  // read since the run began, this step included
  double loss = 0;     // nats a target token, this step
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double tokens_per_second = 0;
  // A layer; NaN (null in the file) where the layer has no such thing. Sinks: mean over heads.
  std::vector<double> sparse_gate_mean, window_gate_mean, selection_overlap, sparse_sink_mean,
      window_sink_mean;
  // Models with experts: a layer, NaN where it has none. Loads are tokens of an expert in the step: the
  // largest and the smallest over the mean, how many experts had none, and the entropy of the shares (1:
  // even). Of the scores of a token: their mean entropy; and the router's losses.
  std::vector<double> expert_load_max, expert_load_min, experts_idle, expert_load_entropy, router_entropy,
      router_balance_loss, router_z_loss;
};
struct EvalRecord {
  int64_t step = 0;
  int64_t tokens = 0;   // trained on so far
  int64_t targets = 0;  // held-out tokens scored
  double nats_per_token = 0;
  double bits_per_byte = 0;
};

class TrainLog {
 public:
  // Appends to out/log.jsonl and a new file in out/tensorboard. Lines of steps after `completed_steps` (a run
  // that was resumed from before them) and a cut last line are removed first.
  TrainLog(const std::filesystem::path& out, int64_t completed_steps);
  ~TrainLog();

  void start(int64_t completed_steps, int64_t steps, int threads, const std::string& kernels);
  void train(const TrainRecord& record);
  void eval(const EvalRecord& record);
  void sample(int64_t step, const std::string& prompt, const std::string& text);
  void skip(int64_t step, const std::string& reason, double loss, double grad_norm);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Held-out points of a log, in order of steps; what `demo` and plots read.
std::vector<EvalRecord> read_eval_records(const std::filesystem::path& out);

}  // namespace hysparse
