// Every subcommand of the program: one function a file, which declares its flags and what runs when it is
// chosen.
#pragma once

namespace CLI {
class App;
}

namespace hysparse {

#define HYSPARSE_COMMANDS(X) X(init) X(plan) X(inspect) X(logits) X(generate) X(perplexity) X(completion) X(bench) X(train) X(demo)

#define HYSPARSE_DECLARE(name) void add_##name(CLI::App& app);
HYSPARSE_COMMANDS(HYSPARSE_DECLARE)
#undef HYSPARSE_DECLARE

}  // namespace hysparse
