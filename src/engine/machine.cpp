#include "engine/machine.h"

#include "base/error.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

namespace hysparse {
namespace {

DType check(const MachineOptions& o) {
  if (o.device == "cuda") throw input_error("device", "this version runs models on the CPU only", "use cpu");
  if (o.device != "cpu") throw expected_error("device", "cpu or cuda", o.device);
  if (o.threads < 0 || o.threads > Machine::kMaxThreads)
    throw expected_error("threads", fmt::format("0 to {}", Machine::kMaxThreads), std::to_string(o.threads));
  if (o.dtype == "f32") return DType::f32;
  if (o.dtype == "bf16") return DType::bf16;
  if (o.dtype == "f64") return DType::f64;
  throw expected_error("dtype", "f32, bf16 or f64", o.dtype);
}

}  // namespace

Machine::Machine(const MachineOptions& options, Log log)
    : compute_(check(options)),
      pool_(options.threads),
      scratch_(),
      runtime_{pool_, scratch_, compute_ == DType::f64 ? ref_ops() : cpu_ops(), host_memory(),
               std::move(log)} {}

}  // namespace hysparse
