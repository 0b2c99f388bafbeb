#include "engine/machine.h"

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda_ops/cuda_ops.h"
#include "kernels/ref/ref.h"

namespace hysparse {
namespace {

DType check(const MachineOptions& o) {
  if (o.device != "cpu" && o.device != "cuda") throw expected_error("device", "cpu or cuda", o.device);
  if (o.threads < 0 || o.threads > Machine::kMaxThreads)
    throw expected_error("threads", fmt::format("0 to {}", Machine::kMaxThreads), std::to_string(o.threads));
  if (o.dtype == "f32") return DType::f32;
  if (o.dtype == "bf16") return DType::bf16;
  if (o.dtype == "f64" && o.device == "cuda")
    throw input_error("dtype", "f64 is the reference on the CPU", "use f32 or bf16 with device cuda");
  if (o.dtype == "f64") return DType::f64;
  throw expected_error("dtype", "f32, bf16 or f64", o.dtype);
}

const Ops& choose(const MachineOptions& o, DType compute) {
  if (o.device == "cuda") return cuda_ops(CudaMemoryKind::device, o.deterministic);
  return compute == DType::f64 ? ref_ops() : cpu_ops();
}

}  // namespace

Machine::Machine(const MachineOptions& options, Log log)
    : compute_(check(options)),
      ops_(choose(options, compute_)),
      pool_(options.threads),
      scratch_(ops_.memory()),
      runtime_{pool_, scratch_, ops_, ops_.memory(), std::move(log)} {}

}  // namespace hysparse
