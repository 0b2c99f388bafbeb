// The subcommands of `hysparse eval`: one function a file, which declares its flags and what runs when it is
// chosen.
#pragma once

namespace CLI {
class App;
}

namespace hysparse {

// clang-format off
#define HYSPARSE_EVAL_COMMANDS(X)                         \
  X(ruler) X(choice)                                      \
  X(perplexity) X(recall) X(oracle)
// clang-format on

#define HYSPARSE_DECLARE(name) void add_eval_##name(CLI::App& eval);
HYSPARSE_EVAL_COMMANDS(HYSPARSE_DECLARE)
#undef HYSPARSE_DECLARE

}  // namespace hysparse
