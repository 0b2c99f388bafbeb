// Mixture of experts on the GPU. Which rows are whose stays on the device: nothing here waits for it.
#pragma once

#include "kernels/cuda_ops/resident.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

void route(Runtime&, const RouteForward&);
void route_backward(Resident&, Runtime&, const RouteBackward&);
void expert_tables(Runtime&, const BuildExpertTables&);
void expert_gather(Runtime&, const ExpertGather&);
void expert_sum(Runtime&, const ExpertSum&);
void grouped_linear(Runtime&, const GroupedLinear&);
void grouped_linear_backward(Runtime&, const GroupedLinearBackward&);
void grouped_linear_pair(Runtime&, const GroupedLinearPair&);
void grouped_linear_pair_backward(Runtime&, const GroupedLinearPairBackward&);
// False: there is no kernel that does all of it for this shape.
bool expert_mlp(Runtime&, const ExpertMlp&);
void expert_swiglu(Runtime&, const ExpertSwiglu&);
void expert_swiglu_backward(Runtime&, const ExpertSwigluBackward&);

}  // namespace hysparse::cuda_calls
