// A declared comparison: arms x seeds (x sizes), one training recipe, one set of measurements, and the claims
// they are to decide. One JSON file (docs/study-howto.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "eval/recall_data.h"
#include "eval/recall_task.h"
#include "train/run_config.h"

namespace hysparse {

struct StudyArm {
  std::string name, about;
};

// A stage of training, on data of its own; each starts from the weights of the one before.
struct StudyPhase {
  std::string name;
  std::vector<RecallShare> tasks;
  int64_t rows = 0, held_out_rows = 0;
};

struct StudyEvaluation {
  std::string name;
  RecallTask task;
  int64_t samples = 1024;       // rows, of every finished run
  int64_t curve_samples = 128;  // rows, of a model in training
};

// beats: arm - other > 0. matches: arm - other > -margin, accuracy.
enum class StudyRelation { beats, matches };
struct StudyTest {
  std::string evaluation, arm, other, size;  // size "": every size
  StudyRelation relation = StudyRelation::beats;
  double margin = 0.02;  // of matches
};
struct StudyClaim {
  std::string claim;
  std::vector<StudyTest> tests;
};

// One training run: what it is, and the config of each phase.
struct StudyRun {
  std::string id;  // folder under OUT/runs
  size_t size = 0, arm = 0;
  double lr = 0;
  int64_t seed = 0;
  bool search = false;  // decides the arm's learning rate and nothing else
};

struct StudyPlan {
  std::string name, about, where;
  std::vector<std::string> sizes;  // {""} where the file names none
  std::vector<StudyArm> arms;
  std::vector<int64_t> seeds;
  int64_t search_seed = 0;
  std::vector<double> learning_rates;
  int64_t data_seed = 0;
  std::vector<StudyPhase> phases;
  std::vector<StudyEvaluation> evaluations;
  std::string gate_arm;     // "": no gate
  double gate_above = 0.9;  // accuracy that it must exceed
  std::vector<StudyClaim> claims;
  // [size][arm][phase]; lr and seed are those of the run, not of these.
  std::vector<std::vector<std::vector<RunConfig>>> configs;

  bool searches() const { return learning_rates.size() > 1; }
  RunConfig config_of(const StudyRun& run, size_t phase) const;
  StudyRun make_run(size_t size, size_t arm, double lr, int64_t seed, bool search) const;
  // Of the rates' search: an arm's runs, by rate.
  std::vector<StudyRun> search_runs() const;
  int64_t steps() const;  // of all phases together, of the first size's first arm
};

// Throws Error(input) that names the file, the arm or phase, and the key: unknown keys and arms, claims on
// what nobody measures, settings that contradict each other.
StudyPlan load_study(const std::filesystem::path& file);
StudyPlan parse_study(const std::string& json_text, const std::string& where);

// Everything a run's numbers depend on, as text: a run that was made from another is not this one.
std::string run_description(const StudyPlan& plan, const StudyRun& run);

}  // namespace hysparse
