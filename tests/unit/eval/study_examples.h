// A study file that tests take apart.
#pragma once

#include <string>

namespace hysparse::tests {

inline std::string small_study() {
  return R"({
  "name": "small",
  "model": {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16,
            "intermediate_size": 48, "max_position_embeddings": 128, "sliding_window": 4,
            "hysparse_block_size": 4, "hysparse_topk_tokens": 4, "full_attention_interval": 2},
  "train": {"steps": 4, "global_batch_size": 4, "weight_decay": 0.1, "eval_interval": 2, "log_interval": 1,
            "checkpoint_interval": 0},
  "arms": [
    {"name": "full", "about": "every layer full", "model": {"attention": "full"}},
    {"name": "swa full-less", "model": {"attention": "hybrid_swa"}},
    {"name": "sparse", "model": {"attention": "hysparse"}}
  ],
  "seeds": [1, 2, 3],
  "learning_rates": [0.001, 0.01],
  "phases": [
    {"name": "short", "tasks": [{"task": "walk", "length": 32, "pairs": 6, "queries": 2}]},
    {"name": "long", "tasks": [{"task": "walk", "length": 48, "queries": 2, "hops": [1, 2]},
                               {"task": "copy", "length": 48, "weight": 2}], "train": {"steps": 3}}
  ],
  "evaluations": [
    {"name": "one", "task": "walk", "length": 48, "queries": 2, "samples": 16, "curve_samples": 8},
    {"name": "two", "task": "walk", "length": 48, "queries": 2, "hops": [2], "samples": 16, "curve_samples": 8}
  ],
  "gate": {"arm": "full", "above": 0.9},
  "claims": [
    {"claim": "windows lose", "tests": [{"evaluation": "two", "arm": "full", "beats": "swa full-less"}]},
    {"claim": "sparse wins it back", "tests": [{"evaluation": "two", "arm": "sparse", "beats": "swa full-less"},
                                               {"evaluation": "two", "arm": "sparse", "matches": "full"}]},
    {"claim": "one hop ties", "tests": [{"evaluation": "one", "arm": "swa full-less", "matches": "full"}]}
  ]
})";
}

}  // namespace hysparse::tests
