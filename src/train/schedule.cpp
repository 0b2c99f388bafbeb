#include "train/schedule.h"

#include <algorithm>
#include <cmath>

namespace hysparse {

double learning_rate(const TrainConfig& c, int64_t step) {
  if (step < c.warmup_steps)
    return c.lr * static_cast<double>(step + 1) / static_cast<double>(c.warmup_steps);
  const int64_t decay_begin =
      c.schedule == Schedule::cosine ? c.warmup_steps : std::max(c.warmup_steps, c.steps - c.decay_steps);
  if (c.schedule == Schedule::constant || step < decay_begin) return c.lr;
  const double progress = std::min(1.0, static_cast<double>(step - decay_begin) /
                                            static_cast<double>(std::max<int64_t>(1, c.steps - decay_begin)));
  double share = 1.0 - progress;
  if (c.schedule == Schedule::cosine) share = 0.5 * (1.0 + std::cos(3.14159265358979323846 * progress));
  if (c.schedule == Schedule::wsd && c.decay_shape == DecayShape::sqrt) share = 1.0 - std::sqrt(progress);
  return c.min_lr + (c.lr - c.min_lr) * share;
}

}  // namespace hysparse
