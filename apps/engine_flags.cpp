#include "engine_flags.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "common.h"

namespace hysparse {

void add_engine_flags(CLI::App& c, EngineFlags& f) {
  c.add_option("--context", f.engine.context,
               "most tokens of prompt and answer together; 0: max_position_embeddings")
      ->capture_default_str();
  c.add_option("--kv-memory", f.kv_memory, "bytes of the KV cache (8GiB, 500MB); 0: what is left")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  add_kv_dtype_flag(c, f.kv_dtype);
  c.add_option("--swap-memory", f.swap_memory,
               "bytes of host memory for preempted sequences; 0: as much as the cache")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  c.add_option("--page-size", f.engine.memory.page_size,
               "tokens of a KV cache page, a multiple of the selection block; 0: at least 64")
      ->capture_default_str();
  c.add_option("--max-sequences", f.engine.memory.max_sequences,
               "answers that run at once; 0: 16 on the CPU, 64 elsewhere")
      ->capture_default_str();
  c.add_option("--step-tokens", f.engine.step_tokens, "most tokens that go through the model at once")
      ->capture_default_str();
  c.add_option("--speculate", f.engine.speculate, "most tokens that n-gram look-up proposes at once; 0: none")
      ->capture_default_str();
  c.add_option("--snapshot-interval", f.engine.snapshot_interval,
               "tokens between ring snapshots within a prompt")
      ->capture_default_str();
  c.add_flag("--no-prefix-cache", f.no_prefix_cache, "compute every prompt anew");
  c.add_option("--preemption", f.preemption, "how sequences make room: swap or recompute")
      ->check(CLI::IsMember({"swap", "recompute"}))
      ->capture_default_str();
  c.add_option("--batch-invariant", f.batch_invariant,
               "answers that do not depend on what runs beside them: auto (on the CPU), on, off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
}

EngineOptions engine_options(const EngineFlags& f, const TextModel& m) {
  EngineOptions o = f.engine;
  o.memory.kv_bytes = static_cast<int64_t>(f.kv_memory);
  o.memory.kv_dtype = parse_kv_dtype("--kv-cache-dtype", f.kv_dtype);
  if (f.swap_memory > 0) o.swap_bytes = static_cast<int64_t>(f.swap_memory);
  o.prefix_cache = !f.no_prefix_cache;
  o.preemption = f.preemption == "recompute" ? Preemption::recompute : Preemption::swap;
  if (f.batch_invariant != "auto") o.batch_invariant = f.batch_invariant == "on";
  o.eos = m.eos;
  if (m.tokenizer) {
    o.tokenizer_vocab = m.tokenizer->vocab_size();
    o.token_bytes = [&m](int32_t id) { return m.token_bytes(id); };
  }
  return o;
}

void add_sampling_flags(CLI::App& c, SamplerOptions& s) {
  c.add_option("--temperature", s.temperature, "0 is greedy: always the likeliest token")
      ->capture_default_str();
  c.add_option("--top-k", s.top_k, "draw among the k likeliest tokens; 0: all")->capture_default_str();
  c.add_option("--top-p", s.top_p, "draw among the fewest tokens whose probabilities reach this sum")
      ->capture_default_str();
  c.add_option("--min-p", s.min_p, "drop tokens less likely than this share of the likeliest")
      ->capture_default_str();
  c.add_option("--repetition-penalty", s.repetition_penalty,
               "above 1: tokens already seen become less likely")
      ->capture_default_str();
  c.add_option("--seed", s.seed, "the same seed gives the same text, on any number of threads")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

}  // namespace hysparse
