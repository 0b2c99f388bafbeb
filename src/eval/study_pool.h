// The runs of a study as processes side by side, until all are done or the time is up.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "eval/study_plan.h"

namespace hysparse {

struct StudyPoolOptions {
  // The program that makes one run; its arguments are `command` and then the run's id. It exits with 0 when
  // the run's result is there, with 130 when it was told to stop (SIGTERM) and has saved.
  std::vector<std::string> command;
  int jobs = 1;
  int gpus = 0;               // > 0: job i sees GPU i % gpus alone (CUDA_VISIBLE_DEVICES)
  double budget_seconds = 0;  // from now; 0: no limit
  double grace_seconds = 60;  // for saving, once told to stop
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> say;  // a line of progress
  std::vector<std::string> arms;                // make runs of these alone; empty: of all
};
struct StudyPoolOutcome {
  bool out_of_time = false, interrupted = false;
  std::vector<std::string> errors;  // of runs that failed: the last line each of them said
};

// What a run says goes to OUT/runs/ID/log.txt. A run that fails does not stop the others.
StudyPoolOutcome run_study_pool(const StudyPlan& plan, const std::filesystem::path& out,
                                const StudyPoolOptions& options);

}  // namespace hysparse
