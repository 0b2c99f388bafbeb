// hysparse: trains, runs and inspects HySparse language models. Exit codes: 0 done, 1 failure, 2 bad input,
// 130 interrupted after saving.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "base/error.h"
#include "commands.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "HySparse language models: train, generate, inspect, plan.\nA block of one full-attention layer and N "
      "sparse layers "
      "that reuse its KV cache and block selection (arXiv 2602.03560).",
      "hysparse");
  app.set_version_flag("--version", std::string("hysparse ") + HYSPARSE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example: hysparse generate --model out/demo/model --prompt \"It is a truth\"\n"
      "`hysparse COMMAND --help` shows each command's flags and an example.");
#define HYSPARSE_ADD(name) hysparse::add_##name(app);
  HYSPARSE_COMMANDS(HYSPARSE_ADD)
#undef HYSPARSE_ADD
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const hysparse::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
