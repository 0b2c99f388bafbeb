#include "engine/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace hysparse {
namespace {

constexpr int64_t kDefaultSequences = 16;
constexpr double kShareOfAvailable = 0.9;  // the rest is for what nobody counts

std::string amount(int64_t bytes) {
  const auto x = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.2f} GB", x / 1e9) : fmt::format("{:.2f} MB", x / 1e6);
}

}  // namespace

KvPlan plan_kv(const ModelConfig& config, const LayerPlan& plan, DType dtype, int64_t context,
               const KvPlanOptions& options, int64_t available, int64_t workspace_bytes) {
  if (options.kv_bytes < 0)
    throw expected_error("kv_memory", "a number of bytes (0: what is left)",
                         std::to_string(options.kv_bytes));
  if (options.max_sequences < 0 || options.max_sequences > INT32_MAX)
    throw expected_error("max_sequences", "a number of sequences (0: the default)",
                         std::to_string(options.max_sequences));
  if (!(options.snapshot_share >= 0 && options.snapshot_share <= 0.9))
    throw expected_error("snapshot_share", "a share from 0 to 0.9",
                         fmt::format("{}", options.snapshot_share));
  KvPlan out;
  out.kv_dtype = options.kv_dtype;
  out.available = available;
  out.workspace_bytes = workspace_bytes;
  const int64_t block = config.hysparse_block_size;
  out.page_size =
      options.page_size > 0 ? options.page_size : (std::max<int64_t>(64, block) + block - 1) / block * block;
  const KvBytes bytes = kv_bytes(config, plan, static_cast<int>(size_of(dtype)), options.kv_dtype);
  out.page_bytes = checked_product(bytes.per_token, out.page_size, "a page of the KV cache");
  out.slot_bytes = bytes.rings;
  out.max_sequences = options.max_sequences > 0 ? options.max_sequences : kDefaultSequences;

  const int64_t left =
      static_cast<int64_t>(static_cast<double>(available) * kShareOfAvailable) - workspace_bytes;
  const int64_t budget = options.kv_bytes > 0 ? options.kv_bytes : std::max<int64_t>(0, left);
  const int64_t smallest = out.slot_bytes + out.page_bytes;  // a sequence of one page
  if (budget < smallest)
    throw input_error(
        "kv_memory",
        fmt::format("{} for the KV cache hold not even one sequence of {} tokens, which takes {}",
                    amount(budget), out.page_size, amount(smallest)),
        options.kv_bytes > 0
            ? "give more"
            : fmt::format("{} are free, {} are for workspace", amount(available), amount(workspace_bytes)));
  out.max_sequences = std::min(out.max_sequences, budget / smallest);
  const int64_t of_sequences = out.max_sequences * out.slot_bytes;
  int64_t snapshots = 0;
  if (out.slot_bytes > 0)
    snapshots = std::min(static_cast<int64_t>(static_cast<double>(budget) * options.snapshot_share),
                         budget - of_sequences - out.max_sequences * out.page_bytes) /
                out.slot_bytes;
  if (out.page_bytes > 0) {
    out.pages = (budget - of_sequences - snapshots * out.slot_bytes) / out.page_bytes;
    if (options.kv_bytes == 0)  // as much as can be of use: every sequence full, and as much again cached
      out.pages =
          std::min(out.pages, 2 * out.max_sequences * ((context + out.page_size - 1) / out.page_size));
    out.pages = std::min<int64_t>(out.pages, INT32_MAX);
    snapshots = std::min(snapshots, out.pages);
    out.context = std::min(context, out.pages * out.page_size);
  } else {
    if (options.kv_bytes == 0) snapshots = std::min(snapshots, 16 * out.max_sequences);
    out.context = context;
  }
  if (out.slot_bytes > 0) out.slots = std::min<int64_t>(out.max_sequences + snapshots, INT32_MAX);
  return out;
}

std::string KvPlan::table() const {
  const int64_t snapshots = slots > 0 ? slots - max_sequences : 0;
  std::string out = "memory of the engine:";
  const auto row = [&](const char* name, int64_t bytes, const std::string& holds) {
    out += fmt::format("\n  {:<12}{:>12}  {}", name, amount(bytes), holds);
  };
  row("weights", weight_bytes, "");
  row("pages", pages * page_bytes,
      fmt::format("{} of {} tokens: {} tokens of full layers{}", pages, page_size, pages * page_size,
                  kv_dtype == KvDtype::compute ? "" : fmt::format(", in {}", enum_name(kv_dtype))));
  row("rings", slots > 0 ? max_sequences * slot_bytes : 0,
      fmt::format("of {} sequences, each up to {} tokens", max_sequences, context));
  row("snapshots", snapshots * slot_bytes, fmt::format("{} of {}", snapshots, amount(slot_bytes)));
  row("workspace", workspace_bytes, "of a step, about");
  row("all", weight_bytes + bytes() + workspace_bytes,
      fmt::format("{} were free for all but the weights", amount(available)));
  return out;
}

}  // namespace hysparse
