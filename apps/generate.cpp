// hysparse generate: a prompt in, text out; or a conversation line by line.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>

#include "commands.h"
#include "common.h"
#include "engine/generate.h"
#include "engine/session.h"
#include "engine_flags.h"
#include "io/files.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, prompt, prompt_file, dash;
  CLI::Option* prompt_option = nullptr;
  bool interactive = false, tokens = false, stats = false, ignore_eos = false, special = false;
  GenerateOptions generate;
  SessionOptions session;
  std::string weights = "dtype", kv_dtype = "auto";
  DeviceFlags device;
};

// Ctrl-C: the first one stops the running answer, one more (or one while none runs) ends the program.
std::atomic<bool> stop_answer{false};
std::atomic<bool> answering{false};

void on_interrupt(int) {
  if (signal_is_echo()) return;
  if (!answering.load() || stop_answer.exchange(true)) _exit(130);
}

class Answering {
 public:
  Answering() {
    stop_answer = false;
    answering = true;
  }
  ~Answering() { answering = false; }
};

std::string read_stdin() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

std::string prompt_text(const Flags& f) {
  const bool dash = !f.dash.empty();
  if (int(f.prompt_option->count() > 0) + int(!f.prompt_file.empty()) + int(dash) != 1)
    throw input_error(
        "generate",
        "give exactly one of --prompt TEXT, --prompt-file FILE, - (standard input) or --interactive");
  if (dash || f.prompt_file == "-") return read_stdin();
  return f.prompt_file.empty() ? f.prompt : read_file(f.prompt_file);
}

std::vector<int32_t> prompt_tokens(const Flags& f, const TextModel& m, const std::string& text) {
  return m.or_start(f.tokens ? parse_ids(text, "prompt") : m.text().encode_from_start(text, f.special));
}

void print_stats(const Generation& g, const Session& s) {
  const auto rate = [](int64_t n, double seconds) { return seconds > 0 ? double(n) / seconds : 0.0; };
  const int64_t fresh = g.prompt_tokens - s.reused();
  // The first token comes out of the prompt's forward.
  const auto decoded = std::max<int64_t>(0, int64_t(g.tokens.size()) - 1);
  std::fprintf(stderr,
               "prompt: %lld tokens (%lld from the cache), %.1f tokens/s; answer: %zu tokens, %.1f tokens/s; "
               "ended by %s\n"
               "KV cache: %lld tokens, %lld bytes in pages, %lld in rings\n",
               static_cast<long long>(g.prompt_tokens), static_cast<long long>(s.reused()),
               rate(fresh, g.prompt_seconds), g.tokens.size(), rate(decoded, g.decode_seconds),
               std::string(enum_name(g.reason)).c_str(), static_cast<long long>(s.length()),
               static_cast<long long>(s.kv().page_bytes()), static_cast<long long>(s.kv().ring_bytes()));
}

GenerateOptions generate_options(const Flags& f, const TextModel& m) {
  GenerateOptions o = f.generate;
  if (!f.ignore_eos) o.eos = m.eos;
  o.cancel = &stop_answer;
  if (m.tokenizer) o.tokenizer_vocab = m.tokenizer->vocab_size();
  if (f.tokens) {
    if (!o.stops.empty()) throw input_error("--stop", "stop strings need text, --tokens writes ids");
    o.on_token = [first = true](int32_t id) mutable {
      std::printf("%s%d", first ? "" : " ", id);
      first = false;
      std::fflush(stdout);
    };
  } else {
    o.token_bytes = [&m](int32_t id) { return m.token_bytes(id); };
    o.on_text = [](std::string_view piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
  }
  return o;
}

void converse(const Flags& f, TextModel& m, Session& session) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal)
    std::fprintf(stderr,
                 "Each line is continued by the model. /reset forgets all, /quit or Ctrl-D ends; Ctrl-C "
                 "stops an answer.\n");
  std::vector<int32_t> history;
  for (uint64_t turn = 0;; ++turn) {
    if (terminal) std::fprintf(stderr, "> ");
    std::string line;
    if (!std::getline(std::cin, line) || line == "/quit") break;
    if (line.empty()) continue;
    if (line == "/reset") {
      history.clear();
      session.reset();
      continue;
    }
    std::vector<int32_t> next = history;
    const std::vector<int32_t> said = f.tokens          ? parse_ids(line, "line")
                                      : history.empty() ? m.text().encode_from_start(line + "\n", f.special)
                                                        : m.text().encode(line + "\n", f.special);
    next.insert(next.end(), said.begin(), said.end());
    GenerateOptions o = generate_options(f, m);
    o.sampling.seed += turn;
    try {
      const Answering running;
      const Generation g = generate(session, next, m.config().vocab_size, o);
      history = std::move(next);
      history.insert(history.end(), g.tokens.begin(),
                     g.tokens.end() - (g.reason == FinishReason::eos ? 1 : 0));
      std::printf("\n");
      std::fflush(stdout);
      if (f.stats) print_stats(g, session);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::input) throw;
      std::fprintf(stderr, "error: %s; /reset starts over\n", e.what());
    }
  }
}

void run(const Flags& f) {
  f.generate.sampling.check();
  const TextStream stops_are_valid(f.generate.stops);
  CommandMachine machine(f.device);
  std::string text;
  if (!f.interactive)
    text = prompt_text(f);
  else if (f.prompt_option->count() > 0 || !f.prompt_file.empty() || !f.dash.empty())
    throw input_error("--interactive", "prompts are read line by line from standard input",
                      "leave --prompt away");
  TextModel m = load_text_model(f.model.empty() ? shipped_model() : f.model,
                                {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                                machine.runtime().memory, warnings_only(machine.runtime().log));
  if (!f.tokens) m.text();
  m.loaded.weights->pack(machine.runtime());
  SessionOptions options = f.session;
  options.kv_dtype = parse_kv_dtype("--kv-cache-dtype", f.kv_dtype);
  Session session(machine.runtime(), m.model(), options);
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (f.interactive) return converse(f, m, session);

  const std::vector<int32_t> ids = prompt_tokens(f, m, text);
  const GenerateOptions o = generate_options(f, m);
  Generation g;
  {
    const Answering running;
    g = generate(session, ids, m.config().vocab_size, o);
  }
  std::printf("\n");
  std::fflush(stdout);
  if (f.stats) print_stats(g, session);
  if (g.reason == FinishReason::cancelled) throw Error(ErrorKind::interrupted, "interrupted");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  f.generate.sampling.temperature = 0.8;
  CLI::App& c = *app.add_subcommand("generate", "continue a prompt, or hold a conversation line by line");
  add_model_flag(c, f.model);
  f.prompt_option = c.add_option("--prompt", f.prompt, "text to continue; an empty one starts a new text");
  c.add_option("--prompt-file", f.prompt_file, "file to continue; - is standard input");
  c.add_option("input", f.dash, "- reads the prompt from standard input")->check(CLI::IsMember({"-"}));
  c.add_flag("--interactive", f.interactive, "read lines, answer each; /reset, /quit");
  c.add_option("--max-new-tokens", f.generate.max_new_tokens,
               "most tokens of an answer; -1: until the context is full")
      ->check(CLI::Range(int64_t(-1), std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  add_sampling_flags(c, f.generate.sampling);
  c.add_option("--stop", f.generate.stops, "end before this text; may be given again");
  c.add_flag("--ignore-eos", f.ignore_eos, "go on behind end-of-text tokens");
  c.add_flag("--special", f.special, "special tokens' texts in the prompt (<|endoftext|>) are those tokens");
  c.add_flag("--tokens", f.tokens, "token ids in and out instead of text: works without a tokenizer");
  c.add_option("--context", f.session.context,
               "most tokens of prompt and answer together; 0: max_position_embeddings")
      ->capture_default_str();
  c.add_option("--chunk", f.session.chunk, "tokens of the prompt that go through the model at once")
      ->capture_default_str();
  c.add_option("--page-size", f.session.page_size,
               "tokens of a KV cache page, a multiple of the selection block; 0: at least 64")
      ->capture_default_str();
  add_kv_dtype_flag(c, f.kv_dtype);
  c.add_flag("--stats", f.stats, "tokens per second and KV cache bytes, on standard error");
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer(
      "Order of the filters: repetition penalty, temperature, top-k, top-p, min-p.\n"
      "Example: hysparse generate --model out/demo/model --prompt \"It is a truth\" --max-new-tokens 100 "
      "--seed 7");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
