#include "train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hysparse {
namespace {

TrainConfig base() {
  TrainConfig c;
  c.steps = 100;
  c.lr = 1.0;
  c.min_lr = 0.1;
  c.warmup_steps = 10;
  c.decay_steps = 20;
  return c;
}

TEST(Schedule, WarmsUpLinearlyFromTheFirstStep) {
  for (Schedule s : {Schedule::wsd, Schedule::cosine, Schedule::constant}) {
    TrainConfig c = base();
    c.schedule = s;
    for (int64_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(learning_rate(c, i), 0.1 * static_cast<double>(i + 1));
    EXPECT_DOUBLE_EQ(learning_rate(c, 10), 1.0);
  }
}

TEST(Schedule, WsdHoldsThenFallsToTheMinimum) {
  TrainConfig c = base();
  for (int64_t i = 10; i <= 80; ++i) EXPECT_DOUBLE_EQ(learning_rate(c, i), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 90), 0.1 + 0.9 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(c, 99), 0.1 + 0.9 / 20);
  c.decay_shape = DecayShape::sqrt;
  EXPECT_DOUBLE_EQ(learning_rate(c, 80), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 85), 0.1 + 0.9 * 0.5);
}

TEST(Schedule, CosineFallsOverEverythingAfterTheWarmUp) {
  TrainConfig c = base();
  c.schedule = Schedule::cosine;
  c.decay_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(c, 55), 0.1 + 0.9 * 0.5);
  EXPECT_NEAR(learning_rate(c, 99), 0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * 89.0 / 90.0)), 1e-15);
  EXPECT_GT(learning_rate(c, 99), 0.1);
}

TEST(Schedule, ConstantStays) {
  TrainConfig c = base();
  c.schedule = Schedule::constant;
  c.decay_steps = 0;
  for (int64_t i = 10; i < 100; ++i) EXPECT_EQ(learning_rate(c, i), 1.0);
}

TEST(Schedule, DecayNeverReachesIntoTheWarmUp) {
  TrainConfig c = base();
  c.steps = 25;
  EXPECT_DOUBLE_EQ(learning_rate(c, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 10), 1.0);
  EXPECT_LT(learning_rate(c, 11), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(c, 24), 0.1 + 0.9 / 15);
}

}  // namespace
}  // namespace hysparse
