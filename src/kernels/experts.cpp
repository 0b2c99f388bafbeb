// Mixture of experts: the default composites; and backends without experts, where every operation says so.
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

void Ops::grouped_linear_pair(Runtime& rt, const GroupedLinearPair& a) const {
  rt.ops.grouped_linear(rt, {a.x, a.tables, a.first, a.y_first});
  rt.ops.grouped_linear(rt, {a.x, a.tables, a.second, a.y_second});
}
void Ops::grouped_linear_pair_backward(Runtime& rt, const GroupedLinearPairBackward& a) const {
  rt.ops.grouped_linear_backward(rt, {a.x, a.tables, a.first, a.dy_first, a.dx, false});
  rt.ops.grouped_linear_backward(rt, {a.x, a.tables, a.second, a.dy_second, a.dx, true});
}
void Ops::expert_mlp(Runtime& rt, const ExpertMlp& a) const {
  const ArenaScope temporaries(rt.scratch);
  const DType t = a.x.dtype;
  const int64_t rows = a.tables.slot.numel(), hidden = a.x.dim(1), f = a.gate[0].value.dim(0);
  const TensorView x = rt.scratch.alloc(t, {rows, hidden}), gate = rt.scratch.alloc(t, {rows, f}),
                   up = rt.scratch.alloc(t, {rows, f});
  rt.ops.expert_gather(rt, {a.x, a.tables, x});
  rt.ops.grouped_linear_pair(rt, {x, a.tables, a.gate, a.up, gate, up});
  rt.ops.expert_swiglu(rt, {gate, up, a.tables, a.weights, gate});
  rt.ops.grouped_linear(rt, {gate, a.tables, a.down, x});
  rt.ops.expert_sum(rt, {x, a.tables, a.y, false});
}

}  // namespace hysparse
