// hysparse eval perplexity, also `hysparse perplexity`: how well a model predicts texts.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "common.h"
#include "eval/perplexity.h"
#include "eval_commands.h"
#include "io/files.h"
#include "io/json_value.h"
#include "io/text_lines.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model;
  std::vector<std::string> inputs;
  PerplexityOptions options;
  bool tokens = false, json = false, positions = false;
  int64_t chunk = 0;
  std::string weights = "dtype", kv_dtype = "auto";
  DeviceFlags device;
};

// The documents of a file: lines with a "text" field where it is JSONL, else the file as one.
void for_each_document(const std::string& path, const std::function<bool(const std::string&)>& see) {
  const std::string all = read_file(path);
  if (!path.ends_with(".jsonl")) {
    see(all);
    return;
  }
  for_each_line(all, [&](std::string_view line, int64_t number) {
    const std::string where = fmt::format("{}:{}", path, number);
    const Json value = parse_json(line, where);
    if (!value.is_object() || !value.contains("text") || !value["text"].is_string())
      throw expected_error(where, "an object with a string \"text\"", std::string(line.substr(0, 40)));
    return see(value["text"].get<std::string>());
  });
}

void print_json(const PerplexityResult& r, const PerplexityOptions& o) {
  Json out;
  out["documents"] = r.documents;
  out["tokens"] = r.tokens;
  out["bytes"] = r.bytes;
  out["nats"] = r.nats;
  out["nats_per_token"] = r.nats_per_token();
  out["perplexity"] = r.perplexity();
  const auto number = [](double x) { return std::isnan(x) ? Json(nullptr) : Json(x); };
  out["standard_error"] = number(r.standard_error);
  out["bits_per_byte"] = number(r.bits_per_byte());
  out["bits_per_byte_standard_error"] = number(r.bits_per_byte_error());
  for (const PositionBand& b : r.by_position)
    out["by_position"].push_back({{"from", b.from},
                                  {"to", b.to},
                                  {"tokens", b.tokens},
                                  {"bytes", b.bytes},
                                  {"nats_per_token", number(b.nats_per_token())},
                                  {"bits_per_byte", number(b.bits_per_byte())}});
  out["window"] = o.window;
  out["stride"] = o.stride;
  std::printf("%s", dump_json(out).c_str());
}

void print_text(const PerplexityResult& r) {
  std::printf("documents    %lld\ntokens       %lld scored\n", static_cast<long long>(r.documents),
              static_cast<long long>(r.tokens));
  std::printf("nats/token   %.5f +- %.5f (standard error)\n", r.nats_per_token(), r.standard_error);
  std::printf("perplexity   %.4f\n", r.perplexity());
  if (r.bytes > 0)
    std::printf("bits/byte    %.5f +- %.5f (%lld bytes)\n", r.bits_per_byte(), r.bits_per_byte_error(),
                static_cast<long long>(r.bytes));
}

void print_positions(const PerplexityResult& r) {
  std::printf("\n%-17s %10s %11s %10s\n", "position", "tokens", "nats/token", "bits/byte");
  for (const PositionBand& b : r.by_position) {
    if (b.tokens == 0) continue;
    std::printf("%7lld - %-7lld %10lld %11.5f ", static_cast<long long>(b.from),
                static_cast<long long>(b.to - 1), static_cast<long long>(b.tokens), b.nats_per_token());
    b.bytes > 0 ? std::printf("%10.5f\n", b.bits_per_byte()) : std::printf("%10s\n", "-");
  }
}

void run(const Flags& f) {
  CommandMachine machine(f.device);
  Runtime& rt = machine.runtime();
  TextModel m = load_text_model(f.model.empty() ? shipped_model() : f.model,
                                {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                                rt.memory, warnings_only(rt.log));
  m.loaded.weights->pack(rt);
  PerplexityOptions o = fill_in(f.options, m.config().max_position_embeddings);
  if (!f.tokens) {
    m.text();
    o.token_bytes = [&m](int32_t id) { return static_cast<int64_t>(m.token_bytes(id).size()); };
  }
  const bool live = stderr_is_terminal();
  const std::atomic<bool>& interrupted = interrupt_flag();
  o.progress = [&](int64_t scored) {
    if (live) std::fprintf(stderr, "\r%lld tokens scored", static_cast<long long>(scored));
    if (interrupted) throw Error(ErrorKind::interrupted, "interrupted");
  };
  const KvDtype kv = parse_kv_dtype("--kv-cache-dtype", f.kv_dtype);
  const int64_t chunk = f.chunk == 0 && kv != KvDtype::compute ? 512 : f.chunk;
  Perplexity perplexity(chunk == 0 ? model_losses(rt, m.model()) : cached_losses(rt, m.model(), kv, chunk),
                        o);
  const int64_t vocab = m.config().vocab_size;
  for (const std::string& path : f.inputs) {
    for_each_document(path, [&](const std::string& text) {
      const std::vector<int32_t> ids = f.tokens ? parse_ids(text, path) : m.text().encode_from_start(text);
      for (const int32_t id : ids)
        if (id >= vocab) throw expected_error(path, fmt::format("ids below {}", vocab), std::to_string(id));
      perplexity.add(ids);
      return !perplexity.full();
    });
    if (perplexity.full()) break;
  }
  const PerplexityResult r = perplexity.finish();
  if (live) std::fprintf(stderr, "\r\x1b[K");
  if (r.tokens == 0)
    throw input_error("--input", "no token to score: each document needs at least two tokens");
  f.json ? print_json(r, o) : print_text(r);
  if (f.positions && !f.json) print_positions(r);
}

void add(CLI::App& parent) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  f.options.window = f.options.stride = 0;
  CLI::App& c = *parent.add_subcommand("perplexity", "nats a token and bits a byte of texts under a model");
  add_model_flag(c, f.model);
  c.add_option("--input", f.inputs, "texts: each file one document, each line of a .jsonl one (its \"text\")")
      ->required();
  c.add_option("--window", f.options.window,
               "tokens the model sees at once; 0: max_position_embeddings, at most 1024")
      ->capture_default_str();
  c.add_option("--stride", f.options.stride,
               "tokens between windows; 0: half a window. Smaller gives more context")
      ->capture_default_str();
  c.add_option("--batch", f.options.batch, "windows a forward; 0: what fits in 2048 tokens")
      ->capture_default_str();
  c.add_option("--max-tokens", f.options.max_tokens,
               "stop after this many scored tokens; 0: score everything")
      ->capture_default_str();
  c.add_option("--chunk", f.chunk,
               "read windows through the KV cache, so many tokens at once; 0: whole and without one, but "
               "512 where --kv-cache-dtype asks for 8 bits")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_kv_dtype_flag(c, f.kv_dtype);
  c.add_flag("--tokens", f.tokens, "inputs hold token ids instead of text: works without a tokenizer");
  c.add_flag("--positions", f.positions, "also by position in the document (JSON always has it)");
  c.add_flag("--json", f.json, "print one JSON object");
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer(
      "Every token after the first of a document is scored exactly once, with at least window - stride "
      "tokens of context;\nbits/byte divides by the bytes of the scored tokens.\n"
      "Example: hysparse " +
      std::string(parent.get_name() == "eval" ? "eval " : "") +
      "perplexity --input data/en/carroll-alice-in-wonderland.txt --window 512 --stride 256 --positions");
  c.callback([flags] { run(*flags); });
}

}  // namespace

void add_perplexity(CLI::App& app) {
  add(app);
}
void add_eval_perplexity(CLI::App& eval) {
  add(eval);
}

}  // namespace hysparse
