// Which SIMD level runs. Kernels are compiled once a level by Highway (HWY_DYNAMIC_DISPATCH picks at run
// time); this is the one place that may override the choice.
#pragma once

#include <string>

#include "kernels/cpu/cpu.h"

namespace hysparse {

// The level in use now, as in cpu_dispatch_levels().
std::string cpu_dispatch_level();

// True while force_cpu_dispatch_level() holds a level (then no other library may pick a better one).
bool cpu_dispatch_forced();

}  // namespace hysparse
