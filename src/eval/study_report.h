// What the finished runs of a study say: means and intervals over seeds, and a verdict on each claim by rules
// that were written before (docs/study-howto.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/statistics.h"
#include "eval/study_plan.h"
#include "eval/study_run.h"

namespace hysparse {

enum class TestOutcome { holds, opposite, open, not_learned, too_few };
// A test decides by the paired differences arm - other over the seeds that both have finished:
//   not_learned  the gate's arm does not exceed gate_above on this evaluation, in the mean over its seeds
//   too_few      fewer than 3 such seeds, or none yet of the gate's arm
//   beats        holds where the 95 % t interval of the mean difference lies above 0, opposite below 0
//   matches      holds where it lies above -margin, opposite below -margin; all else is open
TestOutcome judge_test(const StudyTest& test, const Interval& difference, std::optional<double> gate,
                       double gate_above);

enum class Verdict { reproduced, partly, not_shown, contradicted, not_learned, too_few };
// Of the tests that could decide (not those not learned or with too few seeds): all hold: reproduced; some
// hold: partly; none holds and at least one is opposite: contradicted; else not shown. Where none could
// decide: not learned if the gate kept one from it, else too few seeds.
Verdict judge_claim(const std::vector<TestOutcome>& tests);
std::string_view name_of(TestOutcome outcome);
std::string_view name_of(Verdict verdict);

struct StudyTestResult {
  StudyTest test;  // of one size
  Interval difference;
  TestOutcome outcome = TestOutcome::open;
};
struct StudyClaimResult {
  std::string claim;
  std::vector<StudyTestResult> tests;
  Verdict verdict = Verdict::too_few;
};

// One arm of one size.
struct StudyCell {
  size_t size = 0, arm = 0;
  std::optional<double> lr;  // chosen; absent while the search is not over
  std::vector<StudyResult> search, runs;
  std::vector<Interval> accuracy;  // an evaluation
};
struct StudySummary {
  std::vector<StudyCell> cells;
  std::vector<StudyClaimResult> claims;
  std::vector<StudyRun> left;  // that are still to be made, as far as they are known
  int64_t runs_wanted = 0;     // the search's and the seeds'
  int64_t runs_done = 0;
};

// The rate that a finished search chose: the smallest mean nats an answer, over the evaluations; equal: the
// lower rate. Nothing while a run of it is missing.
std::optional<double> chosen_rate(const StudyPlan& plan, const std::vector<StudyResult>& search);

StudySummary summarise_study(const StudyPlan& plan, const std::filesystem::path& out);

// The three faces of a report.
std::string study_json(const StudyPlan& plan, const StudySummary& summary);
std::string study_markdown(const StudyPlan& plan, const StudySummary& summary);
std::string study_html(const StudyPlan& plan, const StudySummary& summary);  // self-contained

}  // namespace hysparse
