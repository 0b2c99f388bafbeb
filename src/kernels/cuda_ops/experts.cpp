#include "kernels/cuda_ops/experts.h"

#include <optional>

#include "kernels/checks.h"
#include "kernels/cuda_ops/call.h"

namespace hysparse::cuda_calls {
namespace {

// The same tensor of every expert of a group as one [E, out, in], where they stand at equal distances, as
// those of Weights do.
template <class W>
std::optional<TensorView> all_of(std::span<W> weights, TensorView Weight::*which) {
  TensorView all = weights[0].*which;
  const auto element = static_cast<ptrdiff_t>(size_of(all.dtype));
  const auto place = [&](size_t e) { return static_cast<const std::byte*>((weights[e].*which).data); };
  const ptrdiff_t distance = weights.size() > 1 ? place(1) - place(0) : all.numel() * element;
  if (distance <= 0 || distance % element != 0) return {};
  for (size_t e = 0; e < weights.size(); ++e) {
    const TensorView& one = weights[e].*which;
    if (!one || one.stride[0] != all.stride[0] || one.dtype != all.dtype ||
        place(e) - place(0) != ptrdiff_t(e) * distance)
      return {};
  }
  all.rank = 3;
  all.shape = {std::ssize(weights), all.shape[0], all.shape[1], 0};
  all.stride = {distance / element, all.stride[0], all.stride[1], 0};
  return all;
}

// run(offset, experts' weights) once for all experts; or once for each, where they stand anywhere.
template <class W, class Run>
void for_experts(const ExpertTables& tables, std::span<W> weights, TensorView Weight::*which,
                 const Run& run) {
  if (all_of(weights, which)) return run(tables.offset, weights);
  for (size_t e = 0; e < weights.size(); ++e) {
    const auto from = static_cast<int64_t>(e);
    if (weights[e].*which) run(tables.offset.rows(from, from + 2), weights.subspan(e, 1));
  }
}

// The values that products read: those of the weights, or what 8 bits say of the experts that have rows.
TensorView wide_weights(Runtime& rt, const TensorView& offset, std::span<const Weight> weights, DType t) {
  const TensorView values = *all_of(weights, &Weight::value);
  if (!weights[0].scales) return values;
  const std::optional<TensorView> scales = all_of(weights, &Weight::scales);
  HYSPARSE_CHECK(scales, "grouped_linear: scales of experts at unequal distances");
  const TensorView wide = scratch_of(rt).alloc(t, {values.dim(0), values.dim(1), values.dim(2)});
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.widen_experts(View(values), View(*scales), View(offset), View(wide), cuda_stream()),
             "grouped_linear");
  return wide;
}

}  // namespace

void route(Runtime&, const RouteForward& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.route(View(a.logits), View(a.bias), a.normalise, a.scale, a.pinned, View(a.experts),
                        View(a.weights), cuda_stream()),
             "route");
}

void route_backward(Resident& resident, Runtime& rt, const RouteBackward& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  const ArenaScope scope(scratch_of(rt));
  hysparse_cuda_route_backward_params p{};
  p.logits = View(a.logits).value();
  p.experts = View(a.experts).value();
  p.normalise = a.normalise;
  p.scale = a.scale;
  p.dweights = View(a.dweights).value();
  p.labels = View(a.labels).value();
  p.balance = a.balance;
  p.z = a.z;
  p.dlogits = View(a.dlogits).value();
  size_t bytes = 0;
  if (a.balance != 0) {
    p.cu_q = resident.tables.on_device(a.batch.cu_q);
    p.sequences = a.batch.sequences();
    bytes = cuda.route_backward_workspace(p.sequences, a.logits.dim(1));
  }
  cuda.check(cuda.route_backward(&p, workspace(rt, bytes), bytes, cuda_stream()), "route_backward");
}

void expert_tables(Runtime& rt, const BuildExpertTables& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  const ArenaScope scope(scratch_of(rt));
  const size_t bytes = cuda.expert_tables_workspace(a.experts.numel(), a.tables.experts());
  cuda.check(
      cuda.expert_tables(View(a.experts), View(a.labels), View(a.tables.offset), View(a.tables.source),
                         View(a.tables.slot), View(a.load), workspace(rt, bytes), bytes, cuda_stream()),
      "expert_tables");
}

void expert_gather(Runtime&, const ExpertGather& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(
      cuda.expert_gather(View(a.x), View(a.tables.source), a.tables.active(), View(a.y), cuda_stream()),
      "expert_gather");
}

void expert_sum(Runtime&, const ExpertSum& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.expert_sum(View(a.x), View(a.tables.slot), View(a.y), a.accumulate, cuda_stream()),
             "expert_sum");
}

void grouped_linear(Runtime& rt, const GroupedLinear& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  for_experts(a.tables, a.weights, &Weight::value,
              [&](const TensorView& offset, std::span<const Weight> weights) {
                const ArenaScope scope(scratch_of(rt));
                const TensorView w = wide_weights(rt, offset, weights, a.x.dtype);
                cuda.check(cuda.grouped_linear(View(a.x), View(offset), View(w), View(a.y), cuda_stream()),
                           "grouped_linear");
              });
}

void grouped_linear_backward(Runtime&, const GroupedLinearBackward& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  if (a.dx)
    for_experts(a.tables, a.weights, &Weight::value,
                [&](const TensorView& offset, std::span<Weight> weights) {
                  const TensorView w = *all_of(weights, &Weight::value);
                  cuda.check(cuda.grouped_linear_dx(View(a.dy), View(offset), View(w), View(a.dx),
                                                    a.accumulate, cuda_stream()),
                             "grouped_linear_backward");
                });
  for_experts(a.tables, a.weights, &Weight::grad, [&](const TensorView& offset, std::span<Weight> weights) {
    const TensorView grad = *all_of(weights, &Weight::grad);
    cuda.check(cuda.grouped_linear_dw(View(a.dy), View(a.x), View(offset), View(grad), cuda_stream()),
               "grouped_linear_backward");
  });
}

void grouped_linear_pair(Runtime& rt, const GroupedLinearPair& a) {
  const GroupedLinear first{a.x, a.tables, a.first, a.y_first}, second{a.x, a.tables, a.second, a.y_second};
  const auto one = all_of(a.first, &Weight::value), other = all_of(a.second, &Weight::value);
  if (!one || !other || a.first[0].scales || a.second[0].scales) {
    grouped_linear(rt, first);
    return grouped_linear(rt, second);
  }
  check_args(first);
  check_args(second);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.grouped_linear_pair(View(a.x), View(a.tables.offset), View(*one), View(*other),
                                      View(a.y_first), View(a.y_second), cuda_stream()),
             "grouped_linear_pair");
}

void grouped_linear_pair_backward(Runtime& rt, const GroupedLinearPairBackward& a) {
  GroupedLinearBackward first{a.x, a.tables, a.first, a.dy_first, a.dx, false},
      second{a.x, a.tables, a.second, a.dy_second, a.dx, true};
  const auto one = all_of(a.first, &Weight::value), other = all_of(a.second, &Weight::value);
  if (a.dx && one && other) {
    check_args(first);
    check_args(second);
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.grouped_linear_pair_dx(View(a.dy_first), View(a.dy_second), View(a.tables.offset),
                                           View(*one), View(*other), View(a.dx), cuda_stream()),
               "grouped_linear_pair_backward");
    first.dx = second.dx = {};
  }
  grouped_linear_backward(rt, first);
  grouped_linear_backward(rt, second);
}

bool expert_mlp(Runtime& rt, const ExpertMlp& a) {
  hysparse_cuda_expert_mlp_params p{};
  const auto put = [](std::span<const Weight> weights, TensorView Weight::*which, hysparse_cuda_view& out) {
    if (!(weights[0].*which)) return true;
    const std::optional<TensorView> all = all_of(weights, which);
    if (all) out = View(*all).value();
    return bool(all);
  };
  if (!put(a.gate, &Weight::value, p.gate) || !put(a.up, &Weight::value, p.up) ||
      !put(a.down, &Weight::value, p.down) || !put(a.gate, &Weight::scales, p.gate_scales) ||
      !put(a.up, &Weight::scales, p.up_scales) || !put(a.down, &Weight::scales, p.down_scales))
    return false;
  p.x = View(a.x).value();
  p.y = View(a.y).value();
  p.offset = View(a.tables.offset).value();
  p.source = View(a.tables.source).value();
  p.slot = View(a.tables.slot).value();
  p.weights = View(a.weights).value();
  const CudaLibrary& cuda = cuda_library();
  const ArenaScope scope(scratch_of(rt));
  const size_t bytes = cuda.expert_mlp_workspace(a.tables.slot.numel(), a.gate[0].value.dim(0));
  const int code = cuda.expert_mlp(&p, workspace(rt, bytes), bytes, cuda_stream());
  if (code == HYSPARSE_UNSUPPORTED) return false;
  cuda.check(code, "expert_mlp");
  return true;
}

void expert_swiglu(Runtime&, const ExpertSwiglu& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.expert_swiglu(View(a.gate), View(a.up), View(a.tables.source), View(a.weights), View(a.h),
                                cuda_stream()),
             "expert_swiglu");
}

void expert_swiglu_backward(Runtime&, const ExpertSwigluBackward& a) {
  check_args(a);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(
      cuda.expert_swiglu_backward(View(a.gate), View(a.up), View(a.tables.source), View(a.weights),
                                  View(a.dh), View(a.dgate), View(a.dup), View(a.dweights), cuda_stream()),
      "expert_swiglu_backward");
}

}  // namespace hysparse::cuda_calls
