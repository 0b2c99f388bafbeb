// The engine's settings as flags: of every command that runs one.
#pragma once

#include <string>

#include "engine/engine.h"
#include "engine/text_model.h"

namespace CLI {
class App;
}

namespace hysparse {

struct EngineFlags {
  EngineOptions engine;
  std::string batch_invariant = "auto", preemption = "swap", kv_dtype = "auto";
  uint64_t kv_memory = 0, swap_memory = 0;
  bool no_prefix_cache = false;
};
void add_engine_flags(CLI::App& command, EngineFlags& flags);
// What they say, for a model: its end ids and, where it has a tokenizer, the tokens' text. Keeps a reference.
EngineOptions engine_options(const EngineFlags& flags, const TextModel& model);

// --temperature, --top-k, ... --seed.
void add_sampling_flags(CLI::App& command, SamplerOptions& sampling);

}  // namespace hysparse
