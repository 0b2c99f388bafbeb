// hysparse: trains, runs and inspects HySparse language models. Exit codes: 0 done, 1 failure, 2 bad input,
// 130 interrupted after saving.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli_errors.h"
#include "commands.h"
#include "io/json.h"

namespace {

// Model and data files are mapped; a page that is gone because someone cut the file short arrives as a
// signal.
void on_bus_error(int) {
  constexpr char kText[] =
      "error: a mapped file lost pages while it was read: it was cut short, or its disk failed (SIGBUS)\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(1);
}

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
  if (argc > 1 && argv[1][0] != '-' && argv[1][0] != '\0') {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
      names.push_back(command->get_name());
    if (std::find(names.begin(), names.end(), argv[1]) == names.end()) {
      const std::string near = hysparse::nearest_name(argv[1], names);
      throw hysparse::input_error(argv[1], "no such command",
                                  near.empty() ? "see hysparse --help" : "did you mean " + near + "?");
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw hysparse::command_line_error(app, e);
  }
  // A result that did not reach its file is no success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout.flush())
    throw hysparse::failure("standard output", std::strerror(errno));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGBUS, on_bus_error);
  std::signal(SIGXFSZ, SIG_IGN);  // a file over the size limit is an error of the write that meets it
  try {
    return run(argc, argv);
  } catch (const hysparse::Error& e) {
    const bool interrupted = e.kind() == hysparse::ErrorKind::interrupted;
    std::fprintf(stderr, "%s%s\n", interrupted ? "" : "error: ", e.what());
    return e.exit_code();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
