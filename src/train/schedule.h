// The learning rate as a function of the step alone, so that a resumed run continues it exactly.
#pragma once

#include <cstdint>

#include "train/run_config.h"

namespace hysparse {

// Rate of step `step`, 0 <= step < config.steps (0-based). Warm-up: lr (step + 1) / warmup_steps for the
// first warmup_steps. Then constant, a cosine from lr to min_lr, or (wsd) lr until the last decay_steps
// steps, in which it falls to min_lr. The first decaying step still has lr, the last one is one part above
// min_lr.
double learning_rate(const TrainConfig& config, int64_t step);

}  // namespace hysparse
