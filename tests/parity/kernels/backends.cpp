// The one place that lists the backends under test.
#include "kernels/cpu/cpu.h"
#include "kernels/cuda_ops/cuda_ops.h"
#include "kernels/cuda_ops/library.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> list = [] {
    std::vector<Backend> all;
    const auto add = [&](const std::string& name, const std::string& level, bool main) {
      for (DType t : {DType::f32, DType::bf16})
        all.push_back({name + "_" + std::string(name_of(t)), &cpu_ops(), t, level, main});
    };
    add("cpu", "", true);
    for (const std::string& level : cpu_dispatch_levels()) add("cpu_" + level, level, false);
    if (cuda_available())
      for (DType t : {DType::f32, DType::bf16})
        all.push_back({"cuda_" + std::string(name_of(t)), &cuda_ops(CudaMemoryKind::managed), t, "", false});
    return all;
  }();
  return list;
}

void force_level(const std::string& level) {
  force_cpu_dispatch_level(level);
}

}  // namespace hysparse::test
