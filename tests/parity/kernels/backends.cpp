// The one place that lists the backends under test.
#include "kernels/cpu/cpu.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> list = [] {
    std::vector<Backend> all{ref_backend()};
    const std::vector<std::string> levels = cpu_dispatch_levels();
    for (const std::string& level : levels)
      for (DType t : {DType::f32, DType::bf16})
        all.push_back(
            {"cpu_" + level + "_" + std::string(name_of(t)), &cpu_ops(), t, level, level == levels.front()});
    return all;
  }();
  return list;
}

void force_level(const std::string& level) {
  force_cpu_dispatch_level(level);
}

}  // namespace hysparse::test
