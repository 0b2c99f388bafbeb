#include "eval/study_plan.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "eval/study_run.h"
#include "model/plan.h"
#include "unit/eval/study_examples.h"
#include "unit/eval/tiny.h"

namespace hysparse {
namespace {

std::string changed(const std::string& from, const std::string& to) {
  std::string text = tests::small_study();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(StudyPlan, EveryRunHasItsConfig) {
  const StudyPlan plan = parse_study(tests::small_study(), "small.json");
  EXPECT_EQ(plan.arms.size(), 3u);
  EXPECT_EQ(plan.steps(), 7);
  EXPECT_EQ(plan.search_runs().size(), 6u);
  EXPECT_EQ(plan.phases[0].rows, 16);  // as many as are drawn
  const StudyRun run = plan.make_run(0, 2, 0.01, 3, false);
  EXPECT_EQ(run.id, "sparse-lr0.01-seed3");
  const RunConfig c = plan.config_of(run, 1);
  EXPECT_EQ(c.train.steps, 3);
  EXPECT_EQ(c.train.seq_len, 48);
  EXPECT_EQ(c.train.lr, 0.01);
  EXPECT_EQ(c.train.seed, 3);
  EXPECT_EQ(c.train.weight_decay, 0.1);
  EXPECT_EQ(c.model.vocab_size, recall::kVocabulary);
  EXPECT_EQ(c.model.kind(), AttentionKind::hysparse);
  EXPECT_EQ(plan.configs[0][0][0].model.kind(), AttentionKind::full);
  EXPECT_EQ(plan.configs[0][0][0].model.hidden_size, c.model.hidden_size);
  std::set<std::string> ids;
  for (size_t arm = 0; arm < 3; ++arm)
    for (const double lr : plan.learning_rates)
      for (const int64_t seed : plan.seeds) ids.insert(plan.make_run(0, arm, lr, seed, false).id);
  EXPECT_EQ(ids.size(), 18u);
}

TEST(StudyPlan, SharedTensorsBeginTheSameInEveryArm) {
  const StudyPlan plan = parse_study(tests::small_study(), "small.json");
  std::vector<std::unique_ptr<Weights>> weights;
  for (size_t arm = 0; arm < 3; ++arm) {
    const ModelConfig& c = plan.configs[0][arm][0].model;
    const LayerPlan layers = build_layer_plan(c);
    weights.push_back(std::make_unique<Weights>(c, layers, WeightOptions{}, host_memory()));
    weights.back()->init_random(c, layers, 9);
  }
  int shared = 0, own = 0;
  for (const WeightSpec& spec :
       weight_specs(plan.configs[0][2][0].model, build_layer_plan(plan.configs[0][2][0].model))) {
    const Weight *a = weights[2]->find(spec.name), *b = weights[0]->find(spec.name);
    if (!b) {
      ++own;
      continue;
    }
    ++shared;
    ASSERT_EQ(a->value.numel(), b->value.numel()) << spec.name;
    for (int64_t i = 0; i < a->value.numel(); ++i)
      ASSERT_EQ(a->value.as<float>()[i], b->value.as<float>()[i]) << spec.name;
  }
  EXPECT_GT(shared, 20);
  EXPECT_GT(own, 0);  // gates and sinks
}

TEST(StudyPlan, SizesMultiplyTheArms) {
  const StudyPlan plan = parse_study(
      changed("\"arms\":",
              R"("sizes": [{"name": "a"}, {"name": "b", "model": {"hidden_size": 48}}], "arms":)"),
      "small.json");
  EXPECT_EQ(plan.search_runs().size(), 12u);
  EXPECT_EQ(plan.configs[1][0][0].model.hidden_size, 48);
  EXPECT_EQ(plan.make_run(1, 0, 0.01, 3, false).id, "b-full-lr0.01-seed3");
}

TEST(StudyPlan, RowsOfHugeRunsAreBounded) {
  const StudyPlan plan = parse_study(changed("\"steps\": 4, \"global_batch_size\": 4",
                                             "\"steps\": 1099511627776, \"global_batch_size\": 16777216"),
                                     "small.json");
  EXPECT_EQ(plan.phases[0].rows, int64_t(1) << 18);
}

TEST(StudyPlan, BadFilesAreNamed) {
  const auto refused = [](const std::string& text, const std::string& what) {
    try {
      parse_study(text, "small.json");
      ADD_FAILURE() << "accepted, expected: " << what;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find("small.json"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what() << "\nexpected: " << what;
    }
  };
  refused(changed("\"beats\": \"swa full-less\"", "\"beats\": \"swa ful-less\""),
          "did you mean \"swa full-less\"");
  refused(changed("\"arm\": \"full\", \"above\"", "\"arm\": \"fool\", \"above\""),
          "no arm is named \"fool\"");
  refused(changed("\"evaluation\": \"two\", \"arm\": \"full\"", "\"evaluation\": \"to\", \"arm\": \"full\""),
          "no evaluation is named \"to\"");
  refused(changed("\"seeds\": [1, 2, 3]", "\"seeds\": [1, 1]"), "twice");
  refused(changed("\"seeds\": [1, 2, 3]", "\"seeds\": [1, 1000]"), "must not be judged");
  refused(changed("[0.001, 0.01]", "[0.001, 0.001]"), "twice");
  refused(changed("[0.001, 0.01]", "[1e-300, 0.01]"), "1e-12");
  refused(changed("\"seeds\": [1, 2, 3]", "\"seeds\": []"), "a list that is not empty");
  refused(changed("\"seeds\"", "\"seedz\""), "did you mean \"seeds\"");
  refused(changed("{\"attention\": \"hysparse\"}", "{\"attention\": \"hysparse\", \"hidden_sise\": 4}"),
          "did you mean \"hidden_size\"");
  refused(
      changed("{\"attention\": \"hysparse\"}", "{\"attention\": \"hysparse\", \"hysparse_topk_tokens\": 6}"),
      "arm \"sparse\"");
  refused(changed("{\"attention\": \"hysparse\"}",
                  "{\"attention\": \"full\", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                  "\"full_attention\"]}"),
          "arm \"sparse\"");
  refused(changed("\"weight_decay\": 0.1", "\"seed\": 3"), "train.seed is the study's to set");
  refused(changed("\"weight_decay\": 0.1", "\"lr\": 3"), "learning_rates");
  refused(changed("\"weight_decay\": 0.1", "\"seq_len\": 64"), "train.seq_len");
  refused(changed("{\"steps\": 3}", "{\"stebs\": 3}"), "stebs");
  refused(changed("\"length\": 48, \"weight\": 2", "\"length\": 50, \"weight\": 2"), "length 48");
  refused(changed("\"pairs\": 6, \"queries\": 2", "\"pairs\": 15, \"queries\": 2"), "no room");
  refused(changed("\"task\": \"copy\"", "\"task\": \"cop\""), "cop");
  refused(changed("\"name\": \"long\"", "\"name\": \"short\""), "two phases");
  refused(changed("\"name\": \"long\"", "\"name\": \"a/b\""), "a name of letters");
  refused(changed("\"name\": \"two\", \"task\"", "\"name\": \"one\", \"task\""), "two evaluations");
  refused(changed("\"name\": \"sparse\"", "\"name\": \"full\""), "twice");
  refused(changed("\"name\": \"sparse\"", "\"name\": \"swa_full-less\""), "share a folder");
  refused(changed("\"matches\": \"full\"}]},", "\"matches\": \"full\", \"margin\": -0.1}]},"),
          "margin: expected an accuracy from 0");
  refused(changed("\"matches\": \"full\"}]}\n  ]", "\"matches\": \"full\", \"beats\": \"sparse\"}]}\n  ]"),
          "one of \"beats\" and \"matches\"");
  refused(changed("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 40"),
          "max_position_embeddings");
  refused("[]", "an object");
}

TEST(StudyPlan, ADescriptionTellsRunsApart) {
  const StudyPlan plan = parse_study(tests::small_study(), "small.json");
  const StudyRun run = plan.make_run(0, 2, 0.01, 3, false);
  EXPECT_EQ(run_description(plan, run), run_description(plan, run));
  EXPECT_NE(run_description(plan, run), run_description(plan, plan.make_run(0, 2, 0.01, 2, false)));
  EXPECT_NE(run_description(plan, run), run_description(plan, plan.make_run(0, 1, 0.01, 3, false)));
  const StudyPlan other = parse_study(changed("\"samples\": 16", "\"samples\": 17"), "small.json");
  EXPECT_NE(run_description(plan, run), run_description(other, run));
  // What a run is does not depend on which seeds, arms and claims stand beside it.
  const StudyPlan more =
      parse_study(changed("\"seeds\": [1, 2, 3]", "\"seeds\": [1, 2, 3, 4]"), "small.json");
  EXPECT_EQ(run_description(plan, run), run_description(more, run));
}

TEST(StudyPlan, TheFilesThatShipAreStudiesWhoseControlMeansSomething) {
  for (const char* name : {"tiny", "walk", "curriculum"}) {
    const StudyPlan plan = load_study(fmt::format("{}/examples/study/{}.json", HYSPARSE_SOURCE_DIR, name));
    EXPECT_EQ(plan.name, name);
    EXPECT_FALSE(plan.claims.empty());
    EXPECT_EQ(plan.gate_arm, "full");
    const int64_t length = plan.evaluations[0].task.length;
    for (size_t size = 0; size < plan.sizes.size(); ++size)
      for (size_t arm = 0; arm < plan.arms.size(); ++arm)
        EXPECT_LE(plan.configs[size][arm][0].model.hysparse_topk_tokens, length / 16) << name;
  }
}

// Training itself: a run that is stopped in the middle of a phase goes on, and ends as one that was not.
TEST(StudyRun, GoesOnWhereItStoppedToTheSameResult) {
  const StudyPlan plan = parse_study(tests::small_study(), "small.json");
  const tests::TempDir dir;
  tests::TinyModel machine(AttentionKind::full);  // for its runtime
  machine.rt.batch_invariant = false;
  const StudyRun run = plan.make_run(0, 2, 0.01, 3, false);
  write_study_data(plan, dir / "whole", machine.pool);
  write_study_data(plan, dir / "cut", machine.pool);
  const StudyResult whole = run_study_run(machine.rt, plan, run, dir / "whole", nullptr);
  EXPECT_FALSE(read_study_result(plan, run, dir / "cut"));
  const std::atomic<bool> stop = true;
  EXPECT_THROW(run_study_run(machine.rt, plan, run, dir / "cut", &stop), Error);
  const StudyResult cut = run_study_run(machine.rt, plan, run, dir / "cut", nullptr);
  EXPECT_EQ(cut.tokens, whole.tokens);
  EXPECT_EQ(whole.tokens, 4 * 4 * 32 + 3 * 4 * 48);
  for (size_t e = 0; e < 2; ++e) {
    EXPECT_EQ(cut.scores[e].accuracy, whole.scores[e].accuracy);
    EXPECT_EQ(cut.scores[e].nats, whole.scores[e].nats);
    EXPECT_EQ(cut.scores[e].answers, 32);
  }
  ASSERT_EQ(whole.curve.size(), 4u);  // steps 2 and 4, then 2 and 3 of the next phase
  EXPECT_EQ(whole.curve[3].step, 7);
  EXPECT_EQ(cut.curve.size(), whole.curve.size());
  EXPECT_EQ(
      whole.kv_bytes_per_token,
      kv_bytes(plan.configs[0][2][0].model, build_layer_plan(plan.configs[0][2][0].model), 2).per_token);
  // What is done is not done again.
  EXPECT_EQ(run_study_run(machine.rt, plan, run, dir / "whole", &stop).tokens, whole.tokens);
}

}  // namespace
}  // namespace hysparse
