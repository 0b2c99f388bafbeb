// hysparse eval oracle: what full layers select, as numbers and pictures.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "common.h"
#include "eval/oracle.h"
#include "eval/recall_data.h"
#include "eval_commands.h"
#include "io/files.h"
#include "recall_flags.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, html, json;
  std::vector<std::string> texts, sets;
  RecallFlags task;
  int64_t rows = 16, seed = 42;
  DeviceFlags device;
};

void run(const Flags& f) {
  const bool text = !f.texts.empty();
  const auto given = f.task.values.find("task");
  if (text == (given != f.task.values.end() && !given->second.empty()))
    throw input_error("oracle", "expected one of --text and --task: what the model reads");
  CommandMachine machine(f.device);
  Runtime& rt = machine.runtime();
  LoadOptions options;
  options.weights.compute = machine.compute();
  options.memory = &rt.memory;
  options.log = warnings_only(rt.log);
  options.overrides = f.sets;
  LoadedModel m = load_model_dir(f.model, options);
  const int64_t longest = m.config.max_position_embeddings;
  const int64_t length = text ? f.task.length(1024) : f.task.task().length;
  if (length < 2 || length > longest)
    throw expected_error("--length", fmt::format("2 to max_position_embeddings {}", longest),
                         std::to_string(length));
  Oracle oracle(rt, *m.model);
  const bool live = stderr_is_terminal();
  const std::atomic<bool>& interrupted = interrupt_flag();
  const auto add = [&](const std::vector<int32_t>& ids, const std::vector<RecallAnswer>& answers) {
    if (interrupted) throw Error(ErrorKind::interrupted, "interrupted");
    oracle.add(ids, answers);
    if (live) std::fprintf(stderr, "\r%lld rows", static_cast<long long>(oracle.result().rows));
  };
  if (text) {
    const Tokenizer tokenizer = Tokenizer::load(f.model);
    for (const std::string& path : f.texts) {
      const std::vector<int32_t> ids = tokenizer.encode(read_file(path));
      for (int64_t begin = 0; begin + 2 <= std::ssize(ids) && oracle.result().rows < f.rows; begin += length)
        add({ids.begin() + begin, ids.begin() + std::min<int64_t>(begin + length, std::ssize(ids))}, {});
    }
  } else {
    const RecallTask task = f.task.task();
    for (int64_t i = 0; i < f.rows; ++i) {
      const RecallRow row =
          make_recall_row(task, static_cast<uint64_t>(f.seed), kEvaluationRows + static_cast<uint64_t>(i));
      add(row.tokens, row.answers);
    }
  }
  if (live) std::fprintf(stderr, "\r\x1b[K");
  const OracleResult& r = oracle.result();
  if (r.counted == 0)
    throw input_error(text ? "--text" : "--length",
                      fmt::format("no token has more than the {} blocks of {} tokens that are selected",
                                  m.config.entries(), m.config.hysparse_block_size),
                      "take longer rows (--length), or --set hysparse_topk_tokens=... smaller");
  if (!f.json.empty()) write_file_atomic(f.json, oracle_json(m.config, r));
  if (!f.html.empty()) write_file_atomic(f.html, oracle_html(m.config, r, "Selections of " + f.model));
  std::printf("%s", oracle_text(m.config, r).c_str());
}

}  // namespace

void add_eval_oracle(CLI::App& eval) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  CLI::App& c = *eval.add_subcommand("oracle",
                                     "what full layers select: stable from layer to layer, alike among "
                                     "neighbours, how much attention it covers");
  c.add_option("--model", f.model, "model directory")->required();
  c.add_option("--text", f.texts,
               "texts to read, cut into rows of --length tokens [1024]; or --task and its flags");
  add_recall_flags(c, f.task);
  c.add_option("--rows", f.rows, "rows at most")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  c.add_option("--seed", f.seed, "of a task's rows")->capture_default_str();
  c.add_option("--set", f.sets, "key=value over the model's config, such as another hysparse_topk_tokens");
  c.add_option("--json", f.json, "file for the numbers as JSON");
  c.add_option("--html", f.html, "file for a page with pictures");
  add_device_flags(c, f.device);
  c.footer(
      "Example: hysparse eval oracle --model out/demo/model --text data/en/austen-emma.txt --html "
      "oracle.html");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
