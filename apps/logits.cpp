// hysparse logits: logits, hidden states, block scores and selections of a list of token ids, by any of the
// paths.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands.h"
#include "common.h"
#include "engine/paged_kv.h"
#include "io/json_value.h"
#include "io/safetensors.h"
#include "model/checkpoint.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, tokens, out, mode = "train", selection;
  int64_t chunk = 64;
  bool layers = false;
  CLI::Option* chunk_option = nullptr;
  std::string weights = "dtype";
  DeviceFlags device;
};

std::vector<int32_t> read_tokens(const std::string& path, int64_t vocab) {
  const Json json = read_json_file(path);
  if (!json.is_array()) throw expected_error(path, "a JSON list of token ids", "something else");
  if (json.empty()) throw expected_error(path, "at least one token id", "an empty list");
  std::vector<int32_t> out;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string where = fmt::format("{}: token {}", path, i);
    if (!json[i].is_number_integer()) throw expected_error(where, "a whole number", json[i].dump());
    const bool huge = json[i].is_number_unsigned() && json[i].get<uint64_t>() > uint64_t(1) << 32;
    const int64_t id = huge ? -1 : json[i].get<int64_t>();
    if (id < 0 || id >= vocab)
      throw expected_error(where, fmt::format("an id from 0 to {}", vocab - 1), json[i].dump());
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

// Row t of group g of [T, groups, width] to [groups, T, width].
template <class From, class To>
void transpose_into(const TensorView& from, int64_t first, const TensorView& to) {
  const int64_t groups = from.dim(1), width = from.dim(2), total = to.dim(1), wide = to.dim(2);
  const From* source = from.as<From>();
  To* target = to.as<To>();
  for (int64_t t = 0; t < from.dim(0); ++t)
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t j = 0; j < width; ++j)
        target[(g * total + first + t) * wide + j] = static_cast<To>(source[(t * groups + g) * width + j]);
}

// Numbers of the computation, wherever they live, as f32 of the host.
void as_f32(Runtime& rt, const TensorView& from, const TensorView& to) {
  const HostCopy host(from, rt.memory);
  const int64_t n = from.numel();
  float* out = to.as<float>();
  if (from.dtype == DType::f32) std::copy_n(host.view().as<float>(), n, out);
  if (from.dtype == DType::f64)
    std::transform(host.view().as<double>(), host.view().as<double>() + n, out,
                   [](double x) { return static_cast<float>(x); });
  if (from.dtype == DType::bf16)
    std::transform(host.view().as<bf16>(), host.view().as<bf16>() + n, out,
                   [](bf16 x) { return static_cast<float>(x); });
}

// Everything that is written, filled step by step.
class Results {
 public:
  Results(const ModelConfig& config, const LayerPlan& plan, int64_t tokens, bool layers) {
    logits_ = &add("logits", DType::f32, {tokens, config.vocab_size});
    if (!layers) return;
    const int64_t blocks = (tokens + config.hysparse_block_size - 1) / config.hysparse_block_size;
    for (size_t i = 0; i < plan.size(); ++i)
      hidden_.push_back(&add(fmt::format("hidden.{}", i), DType::f32, {tokens, config.hidden_size}));
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!plan[i].emits_scores) continue;
      const int layer = static_cast<int>(i);
      const TensorView& scores =
          add(fmt::format("block_scores.{}", i), DType::f32, {config.kv_heads(), tokens, blocks});
      std::fill_n(scores.as<float>(), scores.numel(), -std::numeric_limits<float>::infinity());
      scores_[layer] = &scores;
      selection_[layer] =
          &add(fmt::format("selection.{}", i), DType::i32, {config.kv_heads(), tokens, config.entries()});
      std::fill_n(selection_[layer]->as<int32_t>(), selection_[layer]->numel(), -1);
    }
  }
  void take(Runtime& rt, int64_t first, const TensorView& logits, const Trace& trace) {
    const int64_t n = logits.dim(0);
    as_f32(rt, logits, logits_->rows(first, first + n));
    for (size_t i = 0; i < hidden_.size(); ++i)
      as_f32(rt, trace.hidden[i], hidden_[i]->rows(first, first + n));
    for (const auto& [layer, scores] : scores_) {
      const HostCopy from(trace.block_scores.at(layer), rt.memory);
      if (from.view().dtype == DType::f64)
        transpose_into<double, float>(from.view(), first, *scores);
      else
        transpose_into<float, float>(from.view(), first, *scores);
    }
    for (const auto& [layer, selection] : selection_)
      transpose_into<int32_t, int32_t>(HostCopy(trace.selection.at(layer), rt.memory).view(), first,
                                       *selection);
  }
  void write(const std::string& path, const std::string& mode, const std::string& dtype) const {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, tensor] : items_) tensors.push_back({name, tensor->view(), tensor->view().dtype});
    write_safetensors(path, tensors, {{"mode", mode}, {"compute_dtype", dtype}});
  }

 private:
  const TensorView& add(const std::string& name, DType dtype, std::initializer_list<int64_t> dims) {
    items_.emplace_back(name, std::make_unique<Tensor>(dtype, dims));
    return items_.back().second->view();
  }
  std::vector<std::pair<std::string, std::unique_ptr<Tensor>>> items_;
  const TensorView* logits_ = nullptr;
  std::vector<const TensorView*> hidden_;
  std::map<int, const TensorView*> scores_, selection_;
};

// Blocks ascend and end at the query's own; what is left of the row is -1.
void check_row(const int32_t* row, int64_t entries, int64_t own, const std::string& where) {
  for (int64_t e = 0, last = -1; e < entries; last = row[e++]) {
    const bool padding = row[e] == -1;
    const bool ascends = row[e] > last && row[e] <= own && (e == 0 || last >= 0);
    if (!padding && !ascends)
      throw expected_error(where, fmt::format("blocks from 0 to {}, ascending, padded with -1 behind", own),
                           fmt::format("{} at place {}", row[e], e));
  }
}

// Selections of an earlier output, [T, Hkv, entries] again.
class PinnedSelections {
 public:
  // In `memory`.
  PinnedSelections(const std::string& path, const ModelConfig& config, const LayerPlan& plan, int64_t tokens,
                   Memory& memory) {
    const SafetensorsFile file(path);
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!plan[i].emits_scores) continue;
      const std::string name = fmt::format("selection.{}", i);
      const SafetensorsEntry& e = file.entry(name);
      const int64_t heads = config.kv_heads(), entries = config.entries();
      if (e.dtype != "I32" || e.shape != std::vector<int64_t>{heads, tokens, entries})
        throw expected_error(path + ": " + name, fmt::format("I32 [{}, {}, {}]", heads, tokens, entries),
                             fmt::format("{} [{}]", e.dtype, fmt::join(e.shape, ", ")),
                             "it must come from the same config and as many tokens");
      const Tensor stored(DType::i32, {heads, tokens, entries});
      file.read(name, stored);
      const Tensor ordered(DType::i32, {tokens, heads, entries});
      for (int64_t g = 0; g < heads; ++g)
        for (int64_t t = 0; t < tokens; ++t) {
          check_row(stored.view().as<int32_t>() + (g * tokens + t) * entries, entries,
                    t / config.hysparse_block_size, fmt::format("{}: {}[{}, {}]", path, name, g, t));
          std::copy_n(stored.view().as<int32_t>() + (g * tokens + t) * entries, entries,
                      ordered.view().as<int32_t>() + (t * heads + g) * entries);
        }
      tensors_.emplace_back(DType::i32, std::initializer_list<int64_t>{tokens, heads, entries}, memory);
      memory.from_host(tensors_.back().view().data, ordered.view().data, ordered.view().bytes());
      all_[static_cast<int>(i)] = tensors_.back().view();
    }
  }
  SelectionMap rows(int64_t begin, int64_t end) const {
    SelectionMap part;
    for (const auto& [layer, idx] : all_) part[layer] = idx.rows(begin, end);
    return part;
  }

 private:
  std::vector<Tensor> tensors_;
  SelectionMap all_;
};

void check_flags(const Flags& flags) {
  if (flags.chunk_option->count() > 0 && flags.mode != "chunked")
    throw input_error("--chunk", "only --mode chunked goes in chunks", "add --mode chunked");
  const auto keep = [&](const char* flag, const std::string& input) {
    std::error_code error;  // of a path that does not exist: not the same file
    if (!input.empty() && (input == flags.out || std::filesystem::equivalent(input, flags.out, error)))
      throw input_error("--out",
                        fmt::format("{} is what {} reads and would be overwritten", flags.out, flag));
  };
  keep("--tokens", flags.tokens);
  keep("--selection", flags.selection);
}

void run(const Flags& flags) {
  check_flags(flags);
  const bool cached = flags.mode != "train";
  CommandMachine machine(flags.device);
  Runtime& rt = machine.runtime();
  LoadOptions load;
  load.weights = {.compute = machine.compute(), .format = weight_format_of(flags.weights)};
  load.memory = &rt.memory;
  load.log = rt.log;
  LoadedModel loaded = load_model_dir(flags.model, load);
  loaded.weights->pack(rt);
  const ModelConfig& config = loaded.config;
  const LayerPlan& plan = loaded.model->plan();
  const std::vector<int32_t> ids = read_tokens(flags.tokens, config.vocab_size);
  const auto total = static_cast<int64_t>(ids.size());
  if (total > config.max_position_embeddings)
    throw expected_error(
        flags.tokens,
        fmt::format("at most {} tokens (max_position_embeddings)", config.max_position_embeddings),
        std::to_string(total));
  const int64_t step = flags.mode == "decode" ? 1 : flags.mode == "chunked" ? flags.chunk : total;

  std::unique_ptr<PinnedSelections> pinned;
  if (!flags.selection.empty())
    pinned = std::make_unique<PinnedSelections>(flags.selection, config, plan, total, rt.memory);
  std::unique_ptr<PagedKv> cache;
  if (cached) {
    PagedKvOptions options;
    options.max_tokens = total;
    options.dtype = machine.compute();
    cache = std::make_unique<PagedKv>(config, plan, options, rt.memory);
  }
  Results results(config, plan, total, flags.layers);
  Tensor tokens(DType::i32, {total}, rt.memory);
  rt.memory.from_host(tokens.view().data, ids.data(), ids.size() * sizeof(int32_t));
  Arena trace_arena(rt.memory);
  for (int64_t first = 0; first < total; first += step) {
    const int64_t n = std::min(step, total - first);
    RaggedBatch batch;
    batch.add_sequence(n, first);
    batch.logit_rows.resize(static_cast<size_t>(n));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    trace_arena.reset();
    const TensorView logits =
        trace_arena.alloc(accumulation_dtype(machine.compute()), {n, config.vocab_size});
    Trace trace;
    trace.arena = &trace_arena;
    trace.want_hidden = trace.want_scores = trace.want_selection = flags.layers;
    ForwardOptions options;
    options.trace = &trace;
    options.as_training = !cached;
    const SelectionMap part = pinned ? pinned->rows(first, first + n) : SelectionMap{};
    if (pinned) options.pinned = &part;
    TrainKv direct;
    if (cached) cache->begin_step({0}, batch);
    loaded.model->forward(rt, batch, tokens.view().rows(first, first + n),
                          cached ? static_cast<KvStore&>(*cache) : direct, logits, options);
    if (cached) cache->commit();
    results.take(rt, first, logits, trace);
  }
  results.write(flags.out, flags.mode, flags.device.dtype);
}

}  // namespace

void add_logits(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand("logits", "logits (and what happens in between) of a list of token ids");
  c.add_option("--model", flags->model, "model directory")->required();
  c.add_option("--tokens", flags->tokens, "JSON list of token ids")->required();
  c.add_option("--out", flags->out, "safetensors file to write: logits [T, vocab] f32")->required();
  c.add_option(
       "--mode", flags->mode,
       "train (no cache), prefill (all at once into a cache), chunked (--chunk tokens a step), decode (one "
       "token a step)")
      ->check(CLI::IsMember({"train", "prefill", "chunked", "decode"}))
      ->capture_default_str();
  flags->chunk_option = c.add_option("--chunk", flags->chunk, "tokens a step of --mode chunked")
                            ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
                            ->capture_default_str();
  c.add_flag(
      "--layers", flags->layers,
      "also write hidden.{i} [T, hidden], block_scores.{i} [Hkv, T, blocks] (natural log, -inf: no block) "
      "and selection.{i} [Hkv, T, topk / block]");
  c.add_option("--selection", flags->selection, "use the selections of an earlier output instead of scoring");
  add_device_flags(c, flags->device);
  add_weights_flag(c, flags->weights);
  c.footer(
      "Example: hysparse logits --model out/demo/model --tokens ids.json --out logits.safetensors --layers");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
