// The executable definition of every operation: plain float64 loops, never optimised.
#pragma once

#include "kernels/ops.h"

namespace hysparse {

const Ops& ref_ops();  // all activations and weights f64

}  // namespace hysparse
