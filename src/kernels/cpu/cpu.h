// SIMD kernels with run-time dispatch; f32 and bf16.
#pragma once

#include <string>
#include <vector>

#include "kernels/ops.h"

namespace hysparse {

const Ops& cpu_ops();

// Dispatch levels usable on this machine, best first ("AVX3", "AVX2", ..., "EMU128").
std::vector<std::string> cpu_dispatch_levels();
// Forces one level for the whole process (tests, HYSPARSE_CPU_LEVEL in apps); "" restores the best. Throws on
// an unknown one.
void force_cpu_dispatch_level(const std::string& level);

}  // namespace hysparse
