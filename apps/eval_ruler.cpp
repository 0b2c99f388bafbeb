// hysparse eval ruler: the 13 long-context tasks of RULER.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "common.h"
#include "engine/engine.h"
#include "engine_flags.h"
#include "eval/ruler/report.h"
#include "eval/ruler/run.h"
#include "eval_commands.h"
#include "io/files.h"
#include "io/json_value.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, out, samples_only, squad, hotpot, chat_template;
  std::vector<std::string> tasks, essays;
  ruler::RunOptions run;
  bool chat = false, json = false, quiet = false;
  EngineFlags engine;
  std::string weights = "dtype";
  DeviceFlags device;
};

std::shared_ptr<const ChatTemplate> chat_template(const Flags& f, const std::string& model) {
  if (!f.chat && f.chat_template.empty()) return nullptr;
  if (f.chat_template.find_first_of("./") != std::string::npos)
    return std::make_shared<const ChatTemplate>(
        ChatTemplate::parse(read_file(f.chat_template), f.chat_template));
  if (!f.chat_template.empty())
    return std::make_shared<const ChatTemplate>(ChatTemplate::builtin(f.chat_template));
  std::optional<ChatTemplate> own = ChatTemplate::load(model);
  if (!own)
    throw input_error(model, "the model has no chat template",
                      "name one with --chat-template plain or chatml");
  return std::make_shared<const ChatTemplate>(std::move(*own));
}

ruler::Materials materials(const Flags& f) {
  ruler::Materials m;
  if (!f.essays.empty()) {
    m.essay = std::make_shared<const ruler::Essay>(
        ruler::read_essays(f.essays, fmt::format("{}", fmt::join(f.essays, ", "))));
  } else {
    std::vector<std::string> files;
    for (const char* name :
         {"austen-emma", "austen-persuasion", "austen-pride-and-prejudice", "austen-sense-and-sensibility",
          "carroll-alice-in-wonderland", "melville-moby-dick"})
      files.push_back(shipped("data", fmt::format("en/{}.txt", name), "name texts with --essays"));
    m.essay = std::make_shared<const ruler::Essay>(
        ruler::read_essays(files, "novels that ship with the program, in place of essays"));
  }
  m.squad = std::make_shared<const ruler::QuestionSet>(f.squad.empty() ? ruler::invented_questions(false)
                                                                       : ruler::read_squad(f.squad));
  m.hotpot = std::make_shared<const ruler::QuestionSet>(f.hotpot.empty() ? ruler::invented_questions(true)
                                                                         : ruler::read_hotpot(f.hotpot));
  return m;
}

// All that decides an answer.
Json settings_of(const Flags& f, const std::string& model, const StepModel& step,
                 const ruler::Prompter& prompter, const ruler::Materials& m) {
  return {{"model", model},
          {"device", f.device.device},
          {"dtype", f.device.dtype},
          {"weights", f.weights},
          {"kv_cache_dtype", f.engine.kv_dtype},
          {"seed", f.run.seed},
          {"answer_tokens", f.run.answer_tokens},
          {"tokenizer", prompter.identity()},
          {"identity", fmt::format("{:016x}", step.identity())},
          {"essays", fmt::format("{:016x}", m.essay->fingerprint())},
          {"squad", fmt::format("{:016x}", m.squad->fingerprint)},
          {"hotpot", fmt::format("{:016x}", m.hotpot->fingerprint)}};
}

// The samples alone, a JSON line each under the original's names: for other programs. Prints how long they
// are.
void write_samples(const Flags& f, ThreadPool& pool, const ruler::Prompter& prompter,
                   const ruler::Materials& m) {
  std::vector<std::tuple<int64_t, const ruler::Task*, int64_t>> jobs;
  for (const int64_t length : f.run.lengths)
    for (const ruler::Task* task : f.run.tasks)
      for (int64_t i = 0; i < f.run.samples; ++i) jobs.emplace_back(length, task, i);
  std::vector<std::string> lines(jobs.size());
  std::vector<int64_t> tokens(jobs.size());  // of prompt and budget
  pool.parallel_for(static_cast<int64_t>(jobs.size()), [&](int64_t j, int) {
    const auto& [length, task, index] = jobs[static_cast<size_t>(j)];
    const ruler::Sample s = ruler::fit_sample(
        *task, {.materials = m, .prompter = prompter, .seed = f.run.seed, .length = length, .index = index},
        f.run.answer_tokens);
    tokens[static_cast<size_t>(j)] = static_cast<int64_t>(s.prompt.size()) + s.answer_tokens;
    lines[static_cast<size_t>(j)] = dump_json({{"index", index},
                                               {"task", task->name},
                                               {"input", s.text.user},
                                               {"answer_prefix", s.text.prefix},
                                               {"outputs", s.text.references},
                                               {"length", tokens[static_cast<size_t>(j)]},
                                               {"max_length", length},
                                               {"max_new_tokens", s.answer_tokens},
                                               {"depths", s.text.depths}},
                                              -1) +
                                    "\n";
  });
  AtomicFile file(f.samples_only);
  for (const std::string& line : lines) file.write(line.data(), line.size());
  file.commit();
  std::printf("%8s  %-16s %8s %8s %10s %8s\n", "length", "task", "samples", "least", "mean", "most");
  for (auto at = tokens.begin(); at != tokens.end(); at += f.run.samples) {
    const auto& [length, task, index] = jobs[static_cast<size_t>(at - tokens.begin())];
    const auto [least, most] = std::minmax_element(at, at + f.run.samples);
    std::printf("%8lld  %-16s %8lld %8lld %10.1f %8lld\n", static_cast<long long>(length),
                std::string(task->name).c_str(), static_cast<long long>(f.run.samples),
                static_cast<long long>(*least),
                std::accumulate(at, at + f.run.samples, 0.0) / static_cast<double>(f.run.samples),
                static_cast<long long>(*most));
  }
}

void show(const ruler::Progress& p, bool live) {
  static double last = -60;
  const double every = live ? 0.2 : 10;
  if (p.done < p.total && p.seconds - last < every) return;
  last = p.seconds;
  const double rate = p.seconds > 0 ? static_cast<double>(p.tokens) / p.seconds : 0;
  std::fprintf(stderr, "%s%lld of %lld samples, %.0f tokens/s%s", live ? "\r\x1b[K" : "",
               static_cast<long long>(p.done), static_cast<long long>(p.total), rate, live ? "" : "\n");
}

void run(Flags& f) {
  for (const int64_t length : f.run.lengths)
    if (length < 1) throw expected_error("--lengths", "lengths from 1 on", std::to_string(length));
  f.run.tasks = ruler::find_tasks(f.tasks);
  const int64_t longest = *std::max_element(f.run.lengths.begin(), f.run.lengths.end());
  std::sort(f.run.lengths.begin(), f.run.lengths.end());
  f.run.lengths.erase(std::unique(f.run.lengths.begin(), f.run.lengths.end()), f.run.lengths.end());
  const ruler::Materials m = materials(f);
  fs::path named = fs::path(f.model.empty() ? shipped_model() : f.model).lexically_normal();
  if (!named.has_filename()) named = named.parent_path();  // "model/" is "model"
  const std::string dir = named.string();
  if (!f.samples_only.empty()) {
    ThreadPool pool(f.device.threads);
    const ruler::Prompter prompter(std::make_shared<const Tokenizer>(Tokenizer::load(dir)),
                                   chat_template(f, dir));
    return write_samples(f, pool, prompter, m);
  }
  CommandMachine machine(f.device);
  TextModel model =
      load_text_model(dir, {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                      machine.runtime().memory, warnings_only(machine.runtime().log));
  model.text();
  const ruler::Prompter prompter(model.tokenizer, chat_template(f, dir));
  model.loaded.weights->pack(machine.runtime());
  ModelStep step(model.model());
  EngineOptions options = engine_options(f.engine, model);
  const int64_t most = model.config().max_position_embeddings;
  if (longest > most)
    throw expected_error("--lengths", fmt::format("lengths up to max_position_embeddings ({})", most),
                         std::to_string(longest));
  if (options.context == 0) options.context = std::max<int64_t>(longest, 1);
  options.prefix_cache = false;
  Engine engine(machine.runtime(), step, options);

  const Json settings = settings_of(f, dir, step, prompter, m);
  const auto results =
      f.out.empty() ? std::make_unique<ruler::Results>() : std::make_unique<ruler::Results>(f.out, settings);
  if (results->found() > 0)
    std::fprintf(stderr, "%lld samples are there already\n", static_cast<long long>(results->found()));
  const bool live = stderr_is_terminal();
  ruler::run(
      engine, machine.runtime().pool, prompter, m, f.run, *results,
      [&](const ruler::Progress& p) {
        if (!f.quiet) show(p, live);
      },
      &interrupt_flag());
  if (live && !f.quiet) std::fprintf(stderr, "\r\x1b[K");

  const ruler::Report report =
      ruler::make_report(*results, f.run.lengths, f.run.tasks, f.run.samples, m, named.filename().string());
  const Json json = ruler::report_json(report, settings);
  if (!f.out.empty()) {
    write_file_atomic(fs::path(f.out) / "report.json", dump_json(json));
    write_file_atomic(fs::path(f.out) / "report.html", ruler::report_html(report, settings));
    write_file_atomic(fs::path(f.out) / "table.txt", ruler::report_table(report));
  }
  std::printf("%s", (f.json ? dump_json(json) : ruler::report_table(report)).c_str());
  if (report.truncated() > 0)
    throw failure("eval ruler", fmt::format("{} samples were truncated", report.truncated()));
}

}  // namespace

void add_eval_ruler(CLI::App& eval) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  f.engine.engine.step_tokens = 2048;
  CLI::App& c = *eval.add_subcommand("ruler", "the 13 long-context tasks of RULER, by length");
  add_model_flag(c, f.model);
  c.add_option("--lengths", f.run.lengths, "tokens of prompt and answer together: 4096,8192,...")
      ->delimiter(',')
      ->required();
  c.add_option("--tasks", f.tasks,
               "tasks to run; default: all. niah_single_1 to _3, niah_multikey_1 to _3, niah_multiquery, "
               "niah_multivalue, vt, cwe, fwe, qa_1, qa_2")
      ->delimiter(',');
  c.add_option("--samples", f.run.samples, "samples a task and length; the paper's table: 500")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  c.add_option("--seed", f.run.seed, "the same seed gives the same samples")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_option(
       "--answer-tokens", f.run.answer_tokens,
       "most tokens of an answer; 0: each task's own (128, 30, 120, 50 or 32), and what its reference needs")
      ->capture_default_str();
  c.add_option("--essays", f.essays,
               "texts for essay haystacks: .txt, or .json with a \"text\"; default: novels that ship");
  c.add_option("--squad", f.squad, "SQuAD's JSON, for qa_1; default: invented people");
  c.add_option("--hotpot", f.hotpot, "HotpotQA's JSON, for qa_2; default: invented people and buildings");
  c.add_flag("--chat", f.chat, "put each prompt into the model's chat template");
  c.add_option("--chat-template", f.chat_template, "with this one: plain, chatml or a file");
  c.add_option("--out", f.out,
               "folder for results.jsonl, report.json, report.html and table.txt; what it has already is not "
               "computed again");
  c.add_option(
      "--samples-only", f.samples_only,
      "write the samples to this file, a JSON line each under the original's names, and ask nothing; --model "
      "may be a folder with a tokenizer alone");
  c.add_flag("--json", f.json, "print the report as JSON");
  c.add_flag("--quiet", f.quiet, "no progress");
  add_engine_flags(c, f.engine);
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer(
      "Tasks, scores and files: docs/evaluation.md.\n"
      "Example: hysparse eval ruler --lengths 1024,2048 --tasks niah_single_1,vt --samples 20 --out "
      "out/ruler");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
