// hysparse bench --list-kernels: what the shapes of a config take.
#include <cstdio>

#include "base/error.h"
#include "bench_parts.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda_ops/library.h"

namespace hysparse {
namespace {

void on_gpu(const ModelConfig& c, bool bf16, int capability) {
  const CudaLibrary& cuda = capability > 0 ? cuda_library_alone() : cuda_library();
  const hysparse_cuda_shape shape{static_cast<int32_t>(c.num_attention_heads),
                                  static_cast<int32_t>(c.kv_heads()),
                                  static_cast<int32_t>(c.d()),
                                  static_cast<int32_t>(c.dv()),
                                  static_cast<int32_t>(c.hysparse_block_size),
                                  static_cast<int32_t>(c.entries()),
                                  bf16};
  for (const char* op : {"attention", "attention_select", "attention_backward", "sparse_attention",
                         "sparse_attention_backward", "window_attention", "window_attention_backward",
                         "decode", "decode_sparse_layer"})
    std::printf("  %-28s%s\n", op, cuda.kernel_name(op, &shape, capability));
  std::printf("  %-28s%s\n", "products", "cuBLASLt; up to 4 rows of bf16: own kernel");
  if (c.n_routed_experts > 0)
    std::printf(
        "  %-28s%s\n", "experts",
        bf16 ? "grouped products, on Hopper by wgmma; up to 64 rows (fp8: 128): own kernels" : "plain");
}

}  // namespace

void list_kernels(const BenchModel& model, const std::string& device, DType compute, int capability) {
  const ModelConfig& c = model.config.model;
  std::printf("%s: heads %lld/%lld, head dim %lld/%lld, block %lld, %lld entries, %s\n", model.name.c_str(),
              static_cast<long long>(c.num_attention_heads), static_cast<long long>(c.kv_heads()),
              static_cast<long long>(c.d()), static_cast<long long>(c.dv()),
              static_cast<long long>(c.hysparse_block_size), static_cast<long long>(c.entries()),
              std::string(name_of(compute)).c_str());
  if (device == "cuda") return on_gpu(c, compute == DType::bf16, capability);
  if (compute == DType::f64)
    std::printf("  every operation: float64 reference loops\n");
  else
    std::printf("  every operation: %s (of %s)\n", cpu_ops().name().c_str(),
                fmt::format("{}", fmt::join(cpu_dispatch_levels(), ", ")).c_str());
}

}  // namespace hysparse
