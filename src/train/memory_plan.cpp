#include "train/memory_plan.h"

#include "base/error.h"

namespace hysparse {
namespace {

DType compute_of(const TrainConfig& t) {
  return t.dtype == TrainDType::bf16 ? DType::bf16 : t.dtype == TrainDType::f32 ? DType::f32 : DType::f64;
}

std::string gigabytes(int64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

// The settings that take less, from the least change of speed on.
std::vector<std::pair<std::string, RunConfig>> smaller(const RunConfig& config, int ranks) {
  std::vector<std::pair<std::string, RunConfig>> list;
  RunConfig c = config;
  std::string said;
  const auto change = [&](const std::string& what) {
    said += (said.empty() ? "" : " and ") + what;
    list.emplace_back(said, c);
  };
  if (c.train.state_dtype == StateDType::f32 && c.train.dtype == TrainDType::bf16) {
    c.train.state_dtype = StateDType::bf16;
    change("train.state_dtype=bf16");
  }
  const std::string before = said;
  for (const auto& [policy, name] : EnumNames<Recompute>::list()) {
    if (policy <= c.train.recompute) continue;
    c.train.recompute = policy;
    said = before;
    change(fmt::format("train.recompute={}", name));
  }
  if (c.train.micro_rows() > 1 && c.train.global_batch_size > ranks) {
    c.train.micro_batch_size = 1;
    change("train.micro_batch_size=1");
  }
  return list;
}

}  // namespace

WeightOptions weight_options(const TrainConfig& config, const Comm& comm) {
  return {.compute = compute_of(config),
          .training = true,
          .narrow_gradients = config.state_dtype == StateDType::bf16,
          .rank = comm.rank(),
          .ranks = comm.size()};
}

MemoryPlan plan_memory(const RunConfig& config, const Ops& ops, int ranks) {
  const TrainConfig& t = config.train;
  const ModelConfig& m = config.model;
  const int64_t rows = (t.global_batch_size + ranks - 1) / ranks;  // of the rank that has most
  const int64_t tokens = std::min(t.micro_rows(), rows) * t.seq_len;
  MemoryPlan plan;
  plan.training = training_memory(
      m, tokens, {compute_of(t), weight_options(t).narrow_gradients, ops.chunk_bytes(), ranks});
  if (ops.memory().device() != DeviceKind::cpu) {
    // dQ in f32, block scores of a chunk of queries, index lists of selections, products.
    plan.workspace = tokens * m.num_attention_heads * m.d() * 4 + ops.chunk_bytes() + (int64_t(512) << 20);
    if (ranks > 1) plan.workspace += int64_t(512) << 20;  // NCCL's buffers
    for (const LayerPlanEntry& e : build_layer_plan(m))
      if (e.emits_scores) plan.workspace += tokens * m.kv_heads() * m.entries() * (4 + 3 * 8);
  }
  plan.total = plan.training.total(static_cast<int>(t.recompute)) + plan.workspace;
  return plan;
}

std::string memory_table(const RunConfig& config, const MemoryPlan& plan, int ranks) {
  const auto policy = static_cast<int>(config.train.recompute);
  const TrainingMemory& m = plan.training;
  std::string out = ranks == 1 ? "memory of the run:" : fmt::format("memory of each of {} ranks:", ranks);
  const auto line = [&](std::string_view name, int64_t bytes) {
    out += fmt::format("\n  {:<34}{:>12}", name, gigabytes(bytes));
  };
  line(ranks == 1 ? "weights and masters" : "weights, share of the masters", m.weights);
  line("gradients", m.gradients);
  line(ranks == 1 ? "AdamW moments" : "share of the AdamW moments", m.optimizer);
  line(fmt::format("activations (recompute {})", enum_name(config.train.recompute)), m.activations[policy]);
  line("a layer's backward", m.working[policy] + m.shared_gradients);
  line("residual stream, head", m.head);
  line("workspace", plan.workspace);
  line("all", plan.total);
  return out;
}

void check_memory(const RunConfig& config, const Runtime& rt) {
  if (rt.memory.device() == DeviceKind::cpu) return;
  const int ranks = rt.comm.size();
  const MemoryPlan plan = plan_memory(config, rt.ops, ranks);
  const auto available = static_cast<int64_t>(std::min<size_t>(rt.memory.available(), INT64_MAX));
  log(rt.log, LogLevel::info,
      memory_table(config, plan, ranks) + fmt::format(" of {}", gigabytes(available)));
  if (plan.total <= available) return;
  std::string hint = "take a shorter train.seq_len or a smaller model";
  for (const auto& [what, c] : smaller(config, ranks)) {
    const int64_t total = plan_memory(c, rt.ops, ranks).total;
    if (total > available) continue;
    hint = fmt::format("set {}: that takes {}", what, gigabytes(total));
    break;
  }
  throw input_error(
      "train",
      fmt::format("the run takes {} of GPU memory, {} are free", gigabytes(plan.total), gigabytes(available)),
      hint);
}

}  // namespace hysparse
