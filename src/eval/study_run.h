// One run of a study, from random weights to its measurements, and what it leaves in its folder:
//   OUT/data/PHASE/        rows of a phase, the same for every run
//   OUT/runs/ID/run.json   what the run is (run_description)
//   OUT/runs/ID/N-PHASE/   the training run of a phase; done.json once it is complete
//   OUT/runs/ID/curve.jsonl  accuracies on the way
//   OUT/runs/ID/result.json  once everything is done
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/study_plan.h"
#include "kernels/ops.h"

namespace hysparse {

struct StudyScore {
  int64_t answers = 0;
  double accuracy = 0, standard_error = 0, nats = 0;
};
struct StudyPoint {  // of a curve; `step` counts through all phases
  int64_t step = 0;
  std::map<std::string, double> accuracy;  // by evaluation
};
struct StudyResult {
  StudyRun run;
  std::vector<StudyScore> scores;  // of the plan's evaluations, in their order
  std::vector<StudyPoint> curve;
  double train_nats = 0;  // held-out, at the end
  int64_t tokens = 0, parameters = 0;
  double seconds = 0, tokens_per_second = 0;  // training alone, beside whatever else the machine did
  int64_t kv_bytes_per_token = 0, kv_ring_bytes = 0;
  std::string device;

  double mean_nats() const;  // over the evaluations: what the search for a learning rate minimises
};

// The data of all phases; what is there already stays.
void write_study_data(const StudyPlan& plan, const std::filesystem::path& out, ThreadPool& pool);

// Goes on where an earlier call was interrupted: at a phase, or at a checkpoint inside one. Throws
// Error(interrupted) once `stop` is set and the state is saved; Error(input) where the folder holds another
// run of this name.
StudyResult run_study_run(Runtime& rt, const StudyPlan& plan, const StudyRun& run,
                          const std::filesystem::path& out, const std::atomic<bool>* stop);

// Nothing where the run is not finished. Error(input) where it was made from another description.
std::optional<StudyResult> read_study_result(const StudyPlan& plan, const StudyRun& run,
                                             const std::filesystem::path& out);
std::filesystem::path study_run_folder(const std::filesystem::path& out, const StudyRun& run);

}  // namespace hysparse
