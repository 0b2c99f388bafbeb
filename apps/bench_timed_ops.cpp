#include "bench_timed_ops.h"

#include <chrono>

namespace hysparse {

double TimedOps::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hysparse
