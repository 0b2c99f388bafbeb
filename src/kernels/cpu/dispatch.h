// Which SIMD level runs. Kernels are compiled once a level by Highway (HWY_DYNAMIC_DISPATCH picks at run
// time); this is the one place that may override the choice.
#pragma once

#include <string>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "tensor/tensor.h"

namespace hysparse {

// The level in use now, as in cpu_dispatch_levels().
std::string cpu_dispatch_level();

// True while force_cpu_dispatch_level() holds a level (then no other library may pick a better one).
bool cpu_dispatch_forced();

// f32 operations a second (two a multiply-add) that the level in use reaches on all threads of the pool with
// everything in registers: the ceiling of the kernels. Best of five runs of some ten milliseconds.
double measure_cpu_peak(ThreadPool& pool);

// Bytes a second that all threads of the pool together read from memory, in order, from huge pages where the
// system has them: one pass over a buffer larger than the caches.
class ReadSpeed {
 public:
  explicit ReadSpeed(ThreadPool& pool);
  double measure() const;

 private:
  static constexpr int64_t kBytes = int64_t(256) << 20;
  ThreadPool& pool_;
  Tensor buffer_;
};

}  // namespace hysparse
