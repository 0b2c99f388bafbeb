// What a training run takes of a device's memory, said before any of it is taken.
#pragma once

#include "kernels/ops.h"
#include "model/plan_report.h"
#include "train/run_config.h"

namespace hysparse {

struct MemoryPlan {
  TrainingMemory training;
  int64_t workspace = 0;  // of the attention kernels, products and the talk between ranks
  int64_t total = 0;      // under the run's recompute policy
};
// Of one of `ranks` processes with a GPU each.
MemoryPlan plan_memory(const RunConfig& config, const Ops& ops, int ranks = 1);

// One line an item, aligned, in GB (10^9 bytes).
std::string memory_table(const RunConfig& config, const MemoryPlan& plan, int ranks = 1);

WeightOptions weight_options(const TrainConfig& config, const Comm& comm = self_comm());

// On a device: logs the table; throws Error(input) naming the smallest changes of settings with which the run
// would fit, if it does not fit in what is available. On a CPU nothing happens: host memory is checked as it
// is taken.
void check_memory(const RunConfig& config, const Runtime& rt);

}  // namespace hysparse
