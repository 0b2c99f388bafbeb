// Backends without experts: every operation says so.
#include "base/error.h"
#include "kernels/ops.h"

namespace hysparse {
namespace {

[[noreturn]] void no_experts(const Ops& ops) {
  throw input_error("n_routed_experts",
                    fmt::format("mixture-of-experts layers do not run on {} in this version", ops.name()),
                    "run them with device cpu");
}

}  // namespace

void Ops::route(Runtime&, const RouteForward&) const {
  no_experts(*this);
}
void Ops::route_backward(Runtime&, const RouteBackward&) const {
  no_experts(*this);
}
void Ops::expert_tables(Runtime&, const BuildExpertTables&) const {
  no_experts(*this);
}
void Ops::expert_gather(Runtime&, const ExpertGather&) const {
  no_experts(*this);
}
void Ops::expert_sum(Runtime&, const ExpertSum&) const {
  no_experts(*this);
}
void Ops::grouped_linear(Runtime&, const GroupedLinear&) const {
  no_experts(*this);
}
void Ops::grouped_linear_backward(Runtime&, const GroupedLinearBackward&) const {
  no_experts(*this);
}
void Ops::expert_swiglu(Runtime&, const ExpertSwiglu&) const {
  no_experts(*this);
}
void Ops::expert_swiglu_backward(Runtime&, const ExpertSwigluBackward&) const {
  no_experts(*this);
}

}  // namespace hysparse
