// hysparse eval: how well models do, by instruments that stand in files of their own.
#include <CLI/CLI.hpp>

#include "commands.h"
#include "eval_commands.h"

namespace hysparse {

void add_eval(CLI::App& app) {
  CLI::App& eval = *app.add_subcommand("eval", "measure a model: long-context tasks, choices, perplexity");
  eval.require_subcommand(1);
#define HYSPARSE_ADD(name) add_eval_##name(eval);
  HYSPARSE_EVAL_COMMANDS(HYSPARSE_ADD)
#undef HYSPARSE_ADD
}

}  // namespace hysparse
