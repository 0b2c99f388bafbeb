#include "eval/recall_data.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "eval/recall.h"
#include "io/files.h"
#include "train/data.h"
#include "unit/eval/tiny.h"

namespace hysparse {
namespace {

std::vector<RecallShare> mixture() {
  RecallTask walk, copy;
  walk.length = copy.length = 48;
  walk.pairs = 8;
  copy.task = RecallKind::copy;
  return {{walk, 2}, {copy, 1}};
}

TEST(RecallData, TrainingReadsTheRowsAndLearnsTheAnswersAlone) {
  const tests::TempDir dir;
  ThreadPool pool(2);
  write_recall_data(dir / "data", mixture(), 100, 10, 3, pool, "test");
  const TokenData data(dir / "data", "train");
  ASSERT_EQ(data.tokens(), 100 * 48 + 1);
  EXPECT_EQ(data.row_tokens(), 48);
  EXPECT_EQ(data.documents(), 100);
  const SampleOrder order(100, 1, false);
  const TrainBatch batch = make_train_batch(data, order, 0, 100, 48, true);
  ASSERT_EQ(batch.batch.sequences(), 100);  // a row is a sequence
  int64_t answers = 0;
  for (int64_t r = 0; r < 100; ++r) {
    const RecallRow row = make_recall_row(mixture()[r % 3 < 2 ? 0 : 1].task, 3, uint64_t(r));
    std::vector<int32_t> labels(48, kIgnoreLabel);
    for (const RecallAnswer& a : row.answers) labels[size_t(a.at) - 1] = row.tokens[size_t(a.at)];
    answers += std::ssize(row.answers);
    for (size_t i = 0; i < 48; ++i) {
      ASSERT_EQ(batch.tokens[size_t(r) * 48 + i], row.tokens[i]) << r << " " << i;
      ASSERT_EQ(batch.labels[size_t(r) * 48 + i], labels[i]) << r << " " << i;
    }
  }
  EXPECT_EQ(batch.targets, answers);
  EXPECT_EQ(TokenData(dir / "data", "holdout").documents(), 10);
}

TEST(RecallData, HeldOutRowsAndEvaluationsAreNotTrainedOn) {
  const tests::TempDir dir;
  ThreadPool pool(1);
  write_recall_data(dir / "data", mixture(), 30, 30, 3, pool, "test");
  EXPECT_NE(read_file(dir / "data/train.tokens"), read_file(dir / "data/holdout.tokens"));
  const TokenData held_out(dir / "data", "holdout");
  const RecallRow row = make_recall_row(mixture()[0].task, 3, kHeldOutRows);
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(held_out.at(i), row.tokens[size_t(i)]);
}

TEST(RecallData, IsTheSameForAnyNumberOfThreadsAndKnowsWhatItIs) {
  const tests::TempDir dir;
  ThreadPool one(1), three(3);
  write_recall_data(dir / "a", mixture(), 5000, 10, 3, one, "test");
  write_recall_data(dir / "b", mixture(), 5000, 10, 3, three, "test");
  EXPECT_EQ(read_file(dir / "a/train.tokens"), read_file(dir / "b/train.tokens"));
  EXPECT_EQ(read_file(dir / "a/train.flags.tokens"), read_file(dir / "b/train.flags.tokens"));
  EXPECT_TRUE(holds_recall_data(dir / "a", mixture(), 5000, 10, 3));
  EXPECT_FALSE(holds_recall_data(dir / "a", mixture(), 5000, 10, 4));
  EXPECT_FALSE(holds_recall_data(dir / "a", mixture(), 5001, 10, 3));
  EXPECT_FALSE(holds_recall_data(dir / "c", mixture(), 5000, 10, 3));
  auto other = mixture();
  other[0].task.pairs = 7;
  EXPECT_FALSE(holds_recall_data(dir / "a", other, 5000, 10, 3));
}

TEST(RecallData, TasksOfDifferentLengthsAreRefused) {
  const tests::TempDir dir;
  ThreadPool pool(1);
  auto tasks = mixture();
  tasks[1].task.length = 50;
  EXPECT_THROW(write_recall_data(dir / "data", tasks, 10, 10, 3, pool, "test"), Error);
  EXPECT_THROW(write_recall_data(dir / "data", {}, 10, 10, 3, pool, "test"), Error);
  EXPECT_THROW(write_recall_data(dir / "data", mixture(), 0, 10, 3, pool, "test"), Error);
  EXPECT_FALSE(file_exists(dir / "data"));
}

TEST(Recall, ScoresAreTheArgmaxAtTheAnswersWhateverTheBatch) {
  tests::TinyModel m(AttentionKind::hysparse);
  const RecallTask task = mixture()[0].task;
  RecallOptions o;
  o.rows = 12;
  o.batch = 1;
  const RecallResult alone = evaluate_recall(m.rt, m.model, task, o);
  o.batch = 5;
  const RecallResult together = evaluate_recall(m.rt, m.model, task, o);
  EXPECT_EQ(alone.all.answers, 12 * 4);
  EXPECT_EQ(alone.all.right, together.all.right);
  EXPECT_DOUBLE_EQ(alone.all.nats, together.all.nats);
  // Against the logits of every position, looked at one by one.
  int64_t right = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const RecallRow row = make_recall_row(task, o.seed, kEvaluationRows + uint64_t(i));
    const std::vector<double> logits = m.logits(row.tokens);
    for (const RecallAnswer& a : row.answers) {
      const auto begin = logits.begin() + (a.at - 1) * 256;
      right += std::max_element(begin, begin + 256) - begin == row.tokens[size_t(a.at)];
    }
  }
  EXPECT_EQ(alone.all.right, right);
  // A model that always says the same is right just where that is the answer.
  m.prefer(recall::kSymbol + 3);
  const RecallResult fixed = evaluate_recall(m.rt, m.model, task, o);
  int64_t is_that = 0;
  for (int64_t i = 0; i < 12; ++i) {
    const RecallRow row = make_recall_row(task, o.seed, kEvaluationRows + uint64_t(i));
    for (const RecallAnswer& a : row.answers) is_that += row.tokens[size_t(a.at)] == recall::kSymbol + 3;
  }
  EXPECT_EQ(fixed.all.right, is_that);
}

TEST(Recall, CountsByHops) {
  tests::TinyModel m(AttentionKind::full);
  RecallTask task = mixture()[0].task;
  task.hops = {1, 3};
  const RecallResult r = evaluate_recall(m.rt, m.model, task, {.rows = 20});
  ASSERT_EQ(r.by_hops.size(), 2u);
  EXPECT_EQ(r.by_hops.at(1).answers + r.by_hops.at(3).answers, 80);
  EXPECT_GT(r.by_hops.at(1).answers, 20);
  EXPECT_GT(r.all.standard_error(), 0);
}

TEST(Recall, ModelsOfOtherVocabulariesAreRefused) {
  tests::TinyModel m(AttentionKind::full, 97);
  EXPECT_THROW(evaluate_recall(m.rt, m.model, mixture()[0].task, {}), Error);
  tests::TinyModel good(AttentionKind::full);
  RecallTask longer = mixture()[0].task;
  longer.length = 1000;
  EXPECT_THROW(evaluate_recall(good.rt, good.model, longer, {}), Error);
}

}  // namespace
}  // namespace hysparse
