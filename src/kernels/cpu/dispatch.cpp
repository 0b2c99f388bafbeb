#include "kernels/cpu/dispatch.h"

#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/error.h"
#include "kernels/cpu/attn_kernels.h"

namespace hysparse {
namespace {

std::atomic<bool> forced{false};

// Levels that this binary holds and this machine runs, best first (Highway numbers better levels lower),
// whatever is forced at the moment.
std::vector<int64_t> usable_levels() {
  static const std::vector<int64_t> levels = hwy::SupportedAndGeneratedTargets();
  return levels;
}

}  // namespace

std::vector<std::string> cpu_dispatch_levels() {
  std::vector<std::string> names;
  for (const int64_t level : usable_levels()) names.emplace_back(hwy::TargetName(level));
  return names;
}

void force_cpu_dispatch_level(const std::string& level) {
  const std::vector<int64_t> usable = usable_levels();
  if (level.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    forced = false;
    return;
  }
  for (const int64_t target : usable) {
    if (level != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    forced = true;
    return;
  }
  std::string list;
  for (const int64_t target : usable)
    list += (list.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  throw expected_error("CPU dispatch level", "one of " + list, "'" + level + "'",
                       "levels are those that this machine and this build support");
}

std::string cpu_dispatch_level() {
  usable_levels();  // before anything is forced
  return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

bool cpu_dispatch_forced() {
  return forced;
}

double measure_cpu_peak(ThreadPool& pool) {
  constexpr int64_t kRounds = 2'000'000;
  const attn::Kernels kernels = attn::kernels();
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> done(static_cast<size_t>(pool.threads()));
    std::vector<float> sinks(done.size());
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(pool.threads(), [&](int64_t i, int) {
      float sink = 0;
      done[size_t(i)] = kernels.multiply_adds(kRounds, &sink);
      sinks[size_t(i)] = sink;
    });
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    double all = 0;
    for (double x : done) all += x;
    best = std::max(best, 2 * all / time.count());
  }
  return best;
}

}  // namespace hysparse
