// hysparse batch: prompts as JSON lines in, answers as JSON lines out, many at once through the engine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "commands.h"
#include "common.h"
#include "engine/engine.h"
#include "engine_flags.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"
#include "io/text_lines.h"
#include "shipped.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string model, input;
  Request request;  // what lines do not say
  bool special = false, stats = false;
  EngineFlags engine;
  std::string weights = "dtype";
  DeviceFlags device;
};

struct Line {
  Json id;  // as given; null: none
  std::unique_ptr<Answer> answer;
  std::vector<Event> choices;
  std::optional<Usage> usage;
};

// Reads the members that a line may have into a request.
class LineReader {
 public:
  LineReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) throw expected_error(where_, "a JSON object", json.type_name());
  }
  const Json* find(const char* key) {
    names_.emplace_back(key);
    const auto at = json_.find(key);
    return at == json_.end() || at->is_null() ? nullptr : &*at;
  }
  void read(const char* key, std::string& out) { get(key, "a text", &Json::is_string, out); }
  void read(const char* key, double& out) { get(key, "a number", &Json::is_number, out); }
  void read(const char* key, bool& out) { get(key, "true or false", &Json::is_boolean, out); }
  void read(const char* key, int64_t& out) { get(key, "a whole number", &Json::is_number_integer, out); }
  void read(const char* key, uint64_t& out) {
    get(key, "a whole number from 0 on", &Json::is_number_unsigned, out);
  }
  void read(const char* key, int& out) {
    int64_t wide = out;
    read(key, wide);
    if (wide < INT32_MIN || wide > INT32_MAX)
      throw expected_error(where_ + "." + key, "a small whole number", std::to_string(wide));
    out = static_cast<int>(wide);
  }
  // An unknown key is an error, as everywhere.
  void done() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(names_.begin(), names_.end(), key) != names_.end()) continue;
      const std::string near = nearest_name(key, names_);
      throw input_error(where_, "unknown key " + quote_text(key),
                        near.empty() ? "" : "did you mean " + near + "?");
    }
  }
  const std::string& where() const { return where_; }

 private:
  template <class T>
  void get(const char* key, const char* expected, bool (Json::*is)() const noexcept, T& out) {
    const Json* value = find(key);
    if (!value) return;
    if (!(value->*is)()) throw expected_error(where_ + "." + key, expected, value->type_name());
    out = value->get<T>();
  }

  const Json& json_;
  std::string where_;
  std::vector<std::string> names_;
};

std::vector<int32_t> read_prompt(LineReader& line, const Flags& f, const TextModel& m) {
  const Json *text = line.find("prompt"), *tokens = line.find("tokens");
  if ((text != nullptr) == (tokens != nullptr))
    throw input_error(line.where(), "give exactly one of prompt (a text) and tokens (a list of ids)");
  if (text) {
    if (!text->is_string()) throw expected_error(line.where() + ".prompt", "a text", text->type_name());
    return m.or_start(m.text().encode_from_start(text->get<std::string>(), f.special));
  }
  std::vector<int32_t> out;
  if (!tokens->is_array())
    throw expected_error(line.where() + ".tokens", "a list of ids", tokens->type_name());
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw expected_error(line.where() + ".tokens", "ids", id.dump());
    out.push_back(id.get<int32_t>());
  }
  return m.or_start(std::move(out));
}

Request read_request(LineReader& line, const Flags& f, const TextModel& m) {
  Request r = f.request;
  r.prompt = read_prompt(line, f, m);
  SamplerOptions& s = r.sampling;
  line.read("temperature", s.temperature);
  line.read("top_k", s.top_k);
  line.read("top_p", s.top_p);
  line.read("min_p", s.min_p);
  line.read("repetition_penalty", s.repetition_penalty);
  line.read("frequency_penalty", s.frequency_penalty);
  line.read("presence_penalty", s.presence_penalty);
  line.read("seed", s.seed);
  line.read("max_new_tokens", r.max_new_tokens);
  line.read("n", r.n);
  line.read("logprobs", r.logprobs);
  line.read("ignore_eos", r.ignore_eos);
  line.read("priority", r.priority);
  if (const Json* stops = line.find("stop")) {
    r.stops.clear();
    for (const Json& stop : stops->is_array() ? *stops : Json::array({*stops})) {
      if (!stop.is_string()) throw expected_error(line.where() + ".stop", "texts", stop.type_name());
      r.stops.push_back(stop.get<std::string>());
    }
  }
  return r;
}

Json logprobs_json(const std::vector<TokenLogprobs>& list) {
  Json out = Json::array();
  for (const TokenLogprobs& at : list) {
    Json top = Json::array();
    for (const TokenLogprob& t : at.top) top.push_back({{"token", t.token}, {"logprob", t.logprob}});
    out.push_back({{"token", at.token.token}, {"logprob", at.token.logprob}, {"top", std::move(top)}});
  }
  return out;
}

void print(const Line& line, size_t index, bool text) {
  Json out = {{"index", index}};
  if (!line.id.is_null()) out["id"] = line.id;
  for (const Event& e : line.choices) {
    Json choice;
    if (text) choice["text"] = e.text;
    choice["tokens"] = e.tokens;
    choice["finish_reason"] = enum_name(*e.finish);
    if (!e.error.empty()) choice["error"] = e.error;
    if (!e.logprobs.empty()) choice["logprobs"] = logprobs_json(e.logprobs);
    out["choices"].push_back(std::move(choice));
  }
  out["usage"] = {{"prompt_tokens", line.usage->prompt_tokens},
                  {"cached_tokens", line.usage->cached_tokens},
                  {"completion_tokens", line.usage->completion_tokens}};
  std::printf("%s\n", dump_json(out, -1).c_str());
  std::fflush(stdout);
}

// Takes what is new; true when the answer is complete.
bool collect(Line& line) {
  while (auto e = line.answer->next(std::chrono::milliseconds(0))) {
    const auto at = static_cast<size_t>(e->choice);
    if (line.choices.size() <= at) line.choices.resize(at + 1);
    Event& all = line.choices[at];
    all.text += e->text;
    all.tokens.insert(all.tokens.end(), e->tokens.begin(), e->tokens.end());
    all.logprobs.insert(all.logprobs.end(), e->logprobs.begin(), e->logprobs.end());
    if (e->finish) all.finish = e->finish;
    all.error += e->error;
    if (e->usage) line.usage = e->usage;
  }
  return line.usage.has_value();
}

void print_stats(const EngineStats& s) {
  const auto rate = s.step_seconds > 0 ? static_cast<double>(s.generated_tokens) / s.step_seconds : 0;
  std::fprintf(
      stderr,
      "%lld requests: %lld prompt tokens computed, %lld from the prefix cache, %lld tokens generated, "
      "%.1f tokens/s; %lld steps, %lld preemptions, %lld of %lld drafted tokens accepted\n",
      static_cast<long long>(s.submitted), static_cast<long long>(s.prompt_tokens),
      static_cast<long long>(s.cached_tokens), static_cast<long long>(s.generated_tokens), rate,
      static_cast<long long>(s.steps), static_cast<long long>(s.preempted_swap + s.preempted_recompute),
      static_cast<long long>(s.accepted), static_cast<long long>(s.drafted));
}

void run(const Flags& f) {
  f.request.sampling.check();
  const std::string name = f.input == "-" ? "standard input" : f.input;
  const std::string text =
      f.input == "-" ? std::string{std::istreambuf_iterator<char>(std::cin), {}} : read_file(f.input);
  CommandMachine machine(f.device);
  TextModel m = load_text_model(f.model.empty() ? shipped_model() : f.model,
                                {.compute = machine.compute(), .format = weight_format_of(f.weights)},
                                machine.runtime().memory, warnings_only(machine.runtime().log));
  m.loaded.weights->pack(machine.runtime());
  ModelStep step(m.model());
  Engine engine(machine.runtime(), step, engine_options(f.engine, m));
  if (f.stats) std::fprintf(stderr, "%s\n", engine.memory_plan().table().c_str());
  const std::atomic<bool>& stop = interrupt_flag();

  // All lines are read and checked before the first one is computed.
  std::deque<Line> lines;
  for_each_line(text, [&](std::string_view given, int64_t number) {
    const std::string where = fmt::format("{}: line {}", name, number);
    const Json json = parse_json(given, where);
    LineReader reader(json, where);
    const Json* id = reader.find("id");
    Line line;
    if (id) line.id = *id;
    Request request = read_request(reader, f, m);
    reader.done();
    try {
      line.answer = engine.submit(std::move(request));
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("{}: {}", where, e.what()));
    }
    lines.push_back(std::move(line));
  });
  size_t printed = 0;
  bool failed = false;
  while (printed < lines.size()) {
    if (stop.load()) throw Error(ErrorKind::interrupted, "interrupted");
    const bool worked = engine.step();
    for (size_t i = printed; i < lines.size(); ++i) collect(lines[i]);
    for (; printed < lines.size() && lines[printed].usage; ++printed) {
      print(lines[printed], printed, m.tokenizer != nullptr);
      for (const Event& e : lines[printed].choices) failed = failed || e.finish == FinishReason::error;
      lines[printed] = {};
    }
    HYSPARSE_CHECK(worked || printed == lines.size(), "the engine stopped before its requests were done");
  }
  if (f.stats) print_stats(engine.stats());
  if (failed) throw failure("batch", "some answers ended with an error; see their lines");
}

}  // namespace

void add_batch(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  Flags& f = *flags;
  f.request.sampling.temperature = 0.8;
  CLI::App& c = *app.add_subcommand("batch", "answer many prompts at once: JSON lines in, JSON lines out");
  add_model_flag(c, f.model);
  c.add_option(
       "input", f.input,
       "file of JSON lines, - is standard input: {\"prompt\": TEXT} or {\"tokens\": [IDS]}, and whatever a "
       "line sets for itself: id, max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, "
       "frequency_penalty, presence_penalty, seed, stop, n, logprobs, ignore_eos, priority")
      ->required();
  c.add_option("--max-new-tokens", f.request.max_new_tokens,
               "most tokens of an answer; -1: until the context is full")
      ->capture_default_str();
  add_sampling_flags(c, f.request.sampling);
  c.add_option("--stop", f.request.stops, "end before this text; may be given again");
  c.add_flag("--ignore-eos", f.request.ignore_eos, "go on behind end-of-text tokens");
  c.add_flag("--special", f.special, "special tokens' texts in prompts (<|endoftext|>) are those tokens");
  c.add_flag("--stats", f.stats, "the memory plan and what was done, on standard error");
  add_engine_flags(c, f.engine);
  add_device_flags(c, f.device);
  add_weights_flag(c, f.weights);
  c.footer("Example: echo '{\"prompt\": \"It is\", \"n\": 2}' | hysparse batch --model out/demo/model -");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
