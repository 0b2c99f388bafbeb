// hysparse plan: what a config costs, as a table or as JSON.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "common.h"
#include "model/plan_report.h"
#include "train/run_config.h"

namespace hysparse {
namespace {

struct Flags {
  std::string config, dtype = "bf16";
  int64_t context = 0, batch = 1;
  int ranks = 1;
  bool json = false;
  std::vector<std::string> sets;
};

// 131072 -> "131,072"
std::string grouped(int64_t n) {
  std::string s = std::to_string(n);
  for (size_t i = s.size(); i > 3; i -= 3) s.insert(i - 3, 1, ',');
  return s;
}

std::string bytes_text(int64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto x = static_cast<double>(bytes);
  int unit = 0;
  while (x >= 1000 && unit < 6) x /= 1000, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", x, units[unit]);
}

std::string count_text(double n) {
  const char* units[] = {"", "K", "M", "G", "T", "P", "E"};
  int unit = 0;
  while (n >= 1000 && unit < 6) n /= 1000, ++unit;
  return fmt::format("{:.4g}{}{}", n, unit ? " " : "", units[unit]);
}

// 79.8B the way people write parameter counts.
std::string parameters_text(int64_t n) {
  const char* units[] = {"", "K", "M", "B", "T"};
  auto x = static_cast<double>(n);
  int unit = 0;
  while (x >= 1000 && unit < 4) x /= 1000, ++unit;
  return fmt::format("{} ({:.3g}{})", grouped(n), x, units[unit]);
}

std::string layers_text(const ModelConfig& config, const LayerPlan& plan) {
  int64_t full = 0, sparse = 0, window = 0;
  for (const LayerPlanEntry& e : plan) {
    full += e.kind == LayerKind::full;
    sparse += e.kind == LayerKind::sparse;
    window += e.kind == LayerKind::window;
  }
  std::string text = fmt::format("{} layers: {} full", plan.size(), full);
  if (sparse) text += fmt::format(", {} sparse", sparse);
  if (window) text += fmt::format(", {} sliding-window", window);
  const auto kind = config.kind();
  return text + fmt::format(" (attention {})", kind ? enum_name(*kind) : "of a list");
}

void print_table(const ModelConfig& config, const PlanReport& r, const Flags& flags) {
  auto line = [](const std::string& text) { std::printf("%s\n", text.c_str()); };
  for (const std::string& note : r.notes) line("note: " + note);
  line(layers_text(config, build_layer_plan(config)));
  line(fmt::format("RoPE {}", describe_rope(config)));
  line("");
  line("parameters");
  line(fmt::format("  total                          {}", parameters_text(r.parameters.total)));
  line(fmt::format("  active, no embedding or head   {}", parameters_text(r.parameters.active)));
  line(fmt::format("  active with head               {}", parameters_text(r.parameters.active_with_head)));
  line(fmt::format("  embedding                      {}", parameters_text(r.parameters.embedding)));
  line(r.parameters.head
           ? fmt::format("  head                           {}", parameters_text(r.parameters.head))
           : "  head                           tied to the embedding");
  line("");
  line(fmt::format("KV cache in {}, {} tokens, batch {}", flags.dtype, grouped(r.context), r.batch));
  line(fmt::format("  {:<12} {:>11} {:>16} {:>14} {:>22} {:>9}", "attention", "full layers", "bytes a token",
                   "rings", "at the context", "smaller"));
  for (const KvReport& kv : r.kv)
    line(fmt::format("  {:<12} {:>11} {:>16} {:>14} {:>22} {:>8.2f}x", enum_name(kv.kind), kv.full_layers,
                     grouped(kv.bytes.per_token), bytes_text(kv.bytes.rings), bytes_text(kv.at_context),
                     kv.smaller));
  line(fmt::format("  {:<12} {:>11} {:>16} {:>14} {:>22} {:>8.2f}x", "this config", "",
                   grouped(r.own.per_token), bytes_text(r.own.rings), bytes_text(r.own_at_context),
                   r.own_smaller));
  line(fmt::format("  {:<12} {:>11} {:>16} {:>14} {:>22} {:>8.2f}x", "in int8, fp8", "",
                   grouped(r.own_8_bits.per_token), bytes_text(r.own_8_bits.rings),
                   bytes_text(r.own_8_bits_at_context),
                   static_cast<double>(r.kv[0].at_context) / static_cast<double>(r.own_8_bits_at_context)));
  line("");
  line(fmt::format("{:<26} {:>15} {:>18} {:>16} {:>18}", "forward FLOPs a token", "this config",
                   "of it attention", "full twin", "of it attention"));
  line(fmt::format("  prefill, mean            {:>15} {:>18} {:>16} {:>18}", count_text(r.flops.prefill),
                   count_text(r.flops.attention_prefill), count_text(r.flops_full.prefill),
                   count_text(r.flops_full.attention_prefill)));
  line(fmt::format("  decode after the context {:>15} {:>18} {:>16} {:>18}", count_text(r.flops.decode),
                   count_text(r.flops.attention_decode), count_text(r.flops_full.decode),
                   count_text(r.flops_full.attention_decode)));
  line("");
  line(fmt::format("training memory in {}{}, one micro-batch: {} x {} tokens", flags.dtype,
                   r.ranks == 1 ? "" : fmt::format(", each of {} ranks", r.ranks), r.batch,
                   grouped(r.context)));
  const TrainingMemory& m = r.training;
  line(fmt::format("  weights {}, gradients {}, AdamW moments {}", bytes_text(m.weights),
                   bytes_text(m.gradients), bytes_text(m.optimizer)));
  line(m.shared_gradients ? fmt::format("  shared dK, dV {}, stream and head {}",
                                        bytes_text(m.shared_gradients), bytes_text(m.head))
                          : fmt::format("  stream and head {}", bytes_text(m.head)));
  for (const auto& [policy, name] : EnumNames<Recompute>::list()) {
    const int i = static_cast<int>(policy);
    line(fmt::format("  recompute {:<11} activations {:>10}, one layer's backward {:>10}, total {:>10}", name,
                     bytes_text(m.activations[i]), bytes_text(m.working[i]), bytes_text(m.total(i))));
  }
}

void run(const Flags& flags) {
  const RunConfig run = load_run_config(flags.config, flags.sets);
  const DType dtype = flags.dtype == "bf16" ? DType::bf16 : DType::f32;
  const PlanReport report = make_plan_report(run.model, flags.context, flags.batch, dtype,
                                             static_cast<int>(size_of(dtype)), flags.ranks);
  if (flags.json)
    std::fputs(plan_report_json(run.model, report, dtype).c_str(), stdout);
  else
    print_table(run.model, report, flags);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand(
      "plan", "parameters, KV cache, FLOPs and training memory of a config; no weights needed");
  c.add_option("--config", flags->config, "run file or config.json, or a model directory")->required();
  c.add_option("--context", flags->context, "tokens a sequence")->required();
  c.add_option("--batch", flags->batch, "sequences")->capture_default_str();
  c.add_option("--ranks", flags->ranks,
               "processes that train together: each keeps its share of masters and moments")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  c.add_flag("--json", flags->json, "print JSON");
  c.add_option("--dtype", flags->dtype, "of the KV cache and of training: bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  c.add_option("--set", flags->sets, "key=value over the config; may be given again and again");
  c.footer("Example: hysparse plan --config configs/hysparse-80b-a3b.json --context 131072");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
