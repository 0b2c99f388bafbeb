// Every subcommand of the program: one function a file, which declares its flags and what runs when it is
// chosen.
#pragma once

namespace CLI {
class App;
}

namespace hysparse {

// clang-format off
#define HYSPARSE_COMMANDS(X)                              \
  X(tokenizer) X(data)                                    \
  X(init) X(train) X(demo)                                \
  X(generate) X(batch) X(serve) X(perplexity) X(logits)   \
  X(eval) X(study)                                        \
  X(import) X(export)                                     \
  X(plan) X(inspect) X(bench) X(completion)
// clang-format on

#define HYSPARSE_DECLARE(name) void add_##name(CLI::App& app);
HYSPARSE_COMMANDS(HYSPARSE_DECLARE)
#undef HYSPARSE_DECLARE

}  // namespace hysparse
