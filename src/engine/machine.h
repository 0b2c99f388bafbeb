// What a model runs on, chosen by names as flags and callers give them.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace hysparse {

struct MachineOptions {
  std::string device = "cpu";
  int threads = 0;             // 0: all CPUs this process may use
  std::string dtype = "f32";   // f32 | bf16 | f64 (the float64 reference, on the CPU)
  bool deterministic = false;  // cuda: equal inputs give equal bits, at some cost; the CPU always does
};

// Owns what a Runtime points to.
class Machine {
 public:
  static constexpr int kMaxThreads = 4096;

  // Throws Error(input) naming the option that is wrong, Error(failure) where there is no GPU to run on.
  explicit Machine(const MachineOptions& options, Log log = {});
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  Runtime& runtime() { return runtime_; }
  DType compute() const { return compute_; }

 private:
  DType compute_;
  const Ops& ops_;
  ThreadPool pool_;
  Arena scratch_;
  Runtime runtime_;
};

}  // namespace hysparse
