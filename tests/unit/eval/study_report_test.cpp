#include "eval/study_report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json_value.h"
#include "unit/eval/study_examples.h"
#include "unit/eval/tiny.h"

namespace hysparse {
namespace {

using O = TestOutcome;

StudyTest beats() {
  return {"e", "a", "b", "", StudyRelation::beats, 0};
}
StudyTest matches(double margin) {
  return {"e", "a", "b", "", StudyRelation::matches, margin};
}

TEST(StudyVerdict, ATestFollowsTheIntervalTheGateAndTheSeeds) {
  const Interval above{5, 0.3, 0.1, 0.5}, below{5, -0.3, -0.5, -0.1}, across{5, 0.1, -0.1, 0.3};
  EXPECT_EQ(judge_test(beats(), above, 0.95, 0.9), O::holds);
  EXPECT_EQ(judge_test(beats(), below, 0.95, 0.9), O::opposite);
  EXPECT_EQ(judge_test(beats(), across, 0.95, 0.9), O::open);
  EXPECT_EQ(judge_test(beats(), above, {}, 0.9), O::holds);
  EXPECT_EQ(judge_test(beats(), above, 0.9, 0.9), O::not_learned);  // exceeds, not reaches
  EXPECT_EQ(judge_test(beats(), above, NAN, 0.9), O::too_few);      // no run of the gate's arm yet
  EXPECT_EQ(judge_test(beats(), {2, 0.3, 0.1, 0.5}, 0.95, 0.9), O::too_few);
  EXPECT_EQ(judge_test(beats(), {5, 0, 0, 0}, 0.95, 0.9), O::open);

  EXPECT_EQ(judge_test(matches(0.2), across, 0.95, 0.9), O::holds);
  EXPECT_EQ(judge_test(matches(0.05), across, 0.95, 0.9), O::open);
  EXPECT_EQ(judge_test(matches(0.05), below, 0.95, 0.9), O::opposite);
}

TEST(StudyVerdict, AClaimFollowsItsTests) {
  EXPECT_EQ(judge_claim({O::holds, O::holds}), Verdict::reproduced);
  EXPECT_EQ(judge_claim({O::holds, O::open}), Verdict::partly);
  EXPECT_EQ(judge_claim({O::holds, O::opposite}), Verdict::partly);
  EXPECT_EQ(judge_claim({O::open, O::opposite}), Verdict::contradicted);
  EXPECT_EQ(judge_claim({O::open, O::open}), Verdict::not_shown);
  EXPECT_EQ(judge_claim({O::not_learned, O::not_learned}), Verdict::not_learned);
  EXPECT_EQ(judge_claim({O::not_learned, O::holds}), Verdict::reproduced);
  EXPECT_EQ(judge_claim({O::too_few, O::too_few}), Verdict::too_few);
  EXPECT_EQ(judge_claim({O::too_few, O::open}), Verdict::not_shown);
  EXPECT_EQ(judge_claim({O::too_few, O::not_learned}), Verdict::not_learned);
  EXPECT_EQ(judge_claim({}), Verdict::too_few);
}

// A finished run as it lies in a study's folder, with these accuracies.
void put_run(const StudyPlan& plan, const StudyRun& run, const std::filesystem::path& out,
             const std::vector<double>& accuracies, double nats = 1) {
  const auto dir = study_run_folder(out, run);
  std::filesystem::create_directories(dir);
  write_file_atomic(dir / "run.json", run_description(plan, run));
  Json j;
  for (size_t e = 0; e < plan.evaluations.size(); ++e)
    j["scores"][plan.evaluations[e].name] = {
        {"answers", 100}, {"accuracy", accuracies[e]}, {"standard_error", 0.01}, {"nats", nats}};
  for (const char* key : {"tokens", "parameters", "kv_bytes_per_token", "kv_ring_bytes"}) j[key] = 1000;
  j["seconds"] = 2.0;
  j["heldout_nats"] = 1.0;
  j["device"] = "made up";
  write_file_atomic(dir / "result.json", dump_json(j));
}

// full, swa, sparse x seeds 1 2 3 x rates 0.001 and 0.01, evaluations "one" and "two".
TEST(StudyReport, MadeUpRunsBecomeTheVerdictsThatTheRulesSay) {
  const StudyPlan plan = parse_study(tests::small_study(), "made up");
  const tests::TempDir dir;
  StudySummary s = summarise_study(plan, dir.path());
  EXPECT_EQ(s.runs_wanted, 3 * (2 + 3));
  EXPECT_EQ(s.left.size(), 6u);  // the search comes first
  EXPECT_FALSE(s.cells[0].lr);

  for (const StudyRun& run : plan.search_runs())
    put_run(plan, run, dir.path(), {0.5, 0.5}, run.lr == 0.01 && run.arm != 1 ? 0.5 : 0.7);
  s = summarise_study(plan, dir.path());
  EXPECT_EQ(s.cells[0].lr, 0.01);
  EXPECT_EQ(s.cells[1].lr, 0.001);  // equal: the lower one
  ASSERT_EQ(s.left.size(), 9u);
  EXPECT_EQ(s.left[0].seed, 1);
  EXPECT_EQ(s.left[1].arm, 1u);  // a seed of every arm before the next seed

  // "one" ties; on "two" swa is far below, sparse in between.
  for (const StudyCell& c : s.cells)
    for (const int64_t seed : plan.seeds) {
      const double noise = 0.002 * double(seed - 2);
      const double two[] = {0.98, 0.3, 0.7};
      put_run(plan, plan.make_run(0, c.arm, *c.lr, seed, false), dir.path(),
              {0.99 + (c.arm == 1 ? noise : -noise), two[c.arm] + noise});
    }
  s = summarise_study(plan, dir.path());
  EXPECT_EQ(s.runs_done, s.runs_wanted);
  EXPECT_TRUE(s.left.empty());
  ASSERT_EQ(s.claims.size(), 3u);
  EXPECT_EQ(s.claims[0].verdict, Verdict::reproduced);  // full beats swa on two
  EXPECT_EQ(s.claims[1].verdict, Verdict::partly);      // sparse beats swa, does not match full
  EXPECT_EQ(s.claims[2].verdict, Verdict::reproduced);  // all match on one
  EXPECT_NEAR(s.claims[0].tests[0].difference.mean, 0.68, 1e-12);

  const Json json = parse_json(study_json(plan, s), "report");
  EXPECT_EQ(json.at("claims").at(1).at("verdict"), "partly");
  EXPECT_EQ(json.at("arms").at(0).at("runs").size(), 3u);
  const std::string markdown = study_markdown(plan, s);
  EXPECT_NE(markdown.find("0.300 ["), std::string::npos);
  EXPECT_NE(markdown.find("| swa full-less | 0.700"), std::string::npos) << markdown;
  const std::string html = study_html(plan, s);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);  // self-contained
}

TEST(StudyReport, AnArmThatDidNotLearnIsNoTest) {
  const StudyPlan plan = parse_study(tests::small_study(), "made up");
  const tests::TempDir dir;
  for (const StudyRun& run : plan.search_runs()) put_run(plan, run, dir.path(), {0.5, 0.5});
  for (size_t arm = 0; arm < 3; ++arm)
    for (const int64_t seed : plan.seeds)
      put_run(plan, plan.make_run(0, arm, 0.001, seed, false), dir.path(), {0.95, arm == 2 ? 0.8 : 0.1});
  const StudySummary s = summarise_study(plan, dir.path());
  EXPECT_EQ(s.claims[0].verdict, Verdict::not_learned);
  EXPECT_EQ(s.claims[1].verdict, Verdict::not_learned);
  EXPECT_EQ(s.claims[2].verdict, Verdict::reproduced);
}

TEST(StudyReport, RunsOfAnotherStudyAreRefused) {
  const StudyPlan plan = parse_study(tests::small_study(), "made up");
  std::string text = tests::small_study();
  text.replace(text.find("\"weight_decay\": 0.1"), 19, "\"weight_decay\": 0.2");
  const StudyPlan other = parse_study(text, "other");
  const tests::TempDir dir;
  const StudyRun run = plan.search_runs()[0];
  put_run(plan, run, dir.path(), {0.5, 0.5});
  EXPECT_NO_THROW(summarise_study(plan, dir.path()));
  EXPECT_THROW(summarise_study(other, dir.path()), Error);
}

}  // namespace
}  // namespace hysparse
