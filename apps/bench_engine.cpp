// The engine: tokens a second of one request and of many at once, and what a cached prefix saves.
#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "bench_parts.h"
#include "engine/engine.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

using BenchShape = std::vector<std::pair<std::string, std::string>>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Request random_request(int64_t prompt, int64_t answer, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  Request r;
  for (int64_t i = 0; i < prompt; ++i)
    r.prompt.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab))));
  r.max_new_tokens = answer;
  r.sampling.seed = seed;
  return r;
}

struct Running {
  std::unique_ptr<Answer> answer;
  size_t drawn = 0;
  void take() {
    while (const auto event = answer->next(std::chrono::milliseconds(0))) drawn += event->tokens.size();
  }
};

// Seconds until the first token is there.
double first_token(Engine& engine, Request request) {
  const Clock::time_point start = Clock::now();
  Running r{engine.submit(std::move(request))};
  while (r.drawn == 0 && engine.step()) r.take();
  const double seconds = seconds_since(start);
  while (engine.step()) {
  }
  return seconds;
}

// Prompts and answers from the first token to the last, with all that memory holds for the cache: those that
// find no place wait. Two requests warm up.
void bench_whole_requests(Runtime& rt, ModelStep& step, const BenchSettings& settings, EngineOptions options,
                          int64_t prompt, int64_t vocab, const BenchShape& shape, BenchReport& report) {
  options.memory.kv_bytes = 0;
  options.context = prompt + settings.answer_tokens;
  options.prefix_cache = false;
  for (const int64_t requests : settings.requests) {
    options.memory.max_sequences = requests;
    Engine engine(rt, step, options);
    uint64_t seed = 1;
    double decoding =
        0;  // seconds in which all requests have begun and none is done: the tokens drawn in them
    int64_t decoded = 0;
    const auto run_all = [&](int64_t count, int64_t answer) {
      std::vector<Running> running;
      for (int64_t i = 0; i < count; ++i)
        running.push_back({engine.submit(random_request(prompt, answer, vocab, seed++))});
      const auto everyone = [&](auto&& is) { return std::all_of(running.begin(), running.end(), is); };
      bool all_began = false;
      decoding = 0, decoded = 0;
      for (;;) {
        const Clock::time_point start = Clock::now();
        const int64_t before = engine.stats().generated_tokens;
        if (!engine.step()) break;
        for (Running& r : running) r.take();
        const bool none_done =
            everyone([&](const Running& r) { return r.drawn < static_cast<size_t>(answer); });
        if (all_began && none_done) {
          decoding += seconds_since(start);
          decoded += engine.stats().generated_tokens - before;
        }
        all_began = all_began || everyone([](const Running& r) { return r.drawn > 0; });
      }
    };
    run_all(std::min<int64_t>(requests, 2), 4);
    const EngineStats before = engine.stats();
    const Clock::time_point start = Clock::now();
    run_all(requests, settings.answer_tokens);
    const double seconds = seconds_since(start);
    const EngineStats stats = engine.stats();
    BenchShape all = shape;
    all.emplace_back("requests", std::to_string(requests));
    all.emplace_back("prompt", std::to_string(prompt));
    all.emplace_back("answer", std::to_string(settings.answer_tokens));
    all.emplace_back("cache_tokens", std::to_string(stats.pages * stats.page_size));
    all.emplace_back("steps", std::to_string(stats.steps - before.steps));
    all.emplace_back("swapped_out", std::to_string(stats.preempted_swap - before.preempted_swap));
    all.emplace_back("recomputed", std::to_string(stats.preempted_recompute - before.preempted_recompute));
    report.add({"engine whole requests",
                all,
                "tokens/s",
                {static_cast<double>(stats.generated_tokens - before.generated_tokens) / seconds}});
    if (decoded > 0)
      report.add({"engine whole requests, all decoding",
                  all,
                  "tokens/s",
                  {static_cast<double>(decoded) / decoding}});
  }
}

}  // namespace

void bench_engine(Runtime& rt, const BenchModel& m, const BenchSettings& settings, BenchReport& report) {
  const ModelConfig& config = m.config.model;
  const LayerPlan plan = build_layer_plan(config);
  Weights weights(config, plan, WeightOptions{.compute = settings.compute, .format = settings.weights},
                  rt.memory);
  weights.init_random(config, plan, 1, &rt.pool, settings.weights == WeightFormat::fp8 ? 16 : 0);
  weights.pack(rt);
  Model model(config, weights);
  ModelStep step(model);

  EngineOptions options;
  const int64_t most = *std::max_element(settings.requests.begin(), settings.requests.end());
  const int64_t prompt =
      settings.prompt_tokens > 0 ? settings.prompt_tokens : std::min<int64_t>(128, settings.context / 4 + 1);
  // Nobody's answer ends while it counts, not even of those who started while others were read.
  const int64_t steps = std::max<int64_t>(1, settings.decode_tokens / 2),
                answer = steps * (settings.repeats + 1) + most * (2 + prompt / settings.chunk),
                longest = prompt + answer;
  options.context =
      std::min(config.max_position_embeddings, std::max({settings.context + 64, longest, int64_t(1024)}));
  options.step_tokens = settings.chunk;
  options.memory.max_sequences = most;
  options.memory.kv_dtype = settings.kv_dtype;
  const KvBytes bytes =
      kv_bytes(config, plan, static_cast<int>(size_of(settings.compute)), settings.kv_dtype);
  options.memory.kv_bytes = 2 * bytes.at(options.context) +
                            most * bytes.at(std::min(options.context, std::max<int64_t>(longest, 1024))) +
                            16 * bytes.rings;
  const BenchShape shape = {{"config", m.name},
                            {"attention", m.attention},
                            {"batch_invariant", rt.memory.device() == DeviceKind::cpu ? "on" : "off"},
                            {"kv", std::string(enum_name(settings.kv_dtype))}};
  if (settings.answer_tokens > 0)
    return bench_whole_requests(rt, step, settings, options, prompt, config.vocab_size, shape, report);

  // Decoding: every request has its first token before the clock starts.
  double alone = 0;
  for (const int64_t requests : settings.requests) {
    options.prefix_cache = false;
    Engine engine(rt, step, options);
    std::vector<Running> running;
    for (int64_t i = 0; i < requests; ++i)
      running.push_back(
          {engine.submit(random_request(prompt, answer, config.vocab_size, static_cast<uint64_t>(i)))});
    const auto all_started = [&] {
      for (Running& r : running) r.take();
      return std::all_of(running.begin(), running.end(), [](const Running& r) { return r.drawn > 0; });
    };
    while (!all_started()) engine.step();
    std::vector<double> rates;
    for (int run = 0; run <= settings.repeats; ++run) {  // the first one warms up
      const int64_t before = engine.stats().generated_tokens;
      const Clock::time_point start = Clock::now();
      for (int64_t i = 0; i < steps; ++i) engine.step();
      rt.memory.synchronize();
      const double seconds = seconds_since(start);
      for (Running& r : running) r.take();
      if (run > 0) rates.push_back(static_cast<double>(engine.stats().generated_tokens - before) / seconds);
    }
    BenchResult result{"engine decode", shape, "tokens/s", rates};
    if (requests == settings.requests.front()) alone = result.median() / static_cast<double>(requests);
    result.shape.emplace_back("requests", std::to_string(requests));
    result.shape.emplace_back("prompt", std::to_string(prompt));
    result.shape.emplace_back("times_one", fmt::format("{:.2f}", result.median() / alone));
    report.add(result);
  }

  // The first token of a long prompt, cold and with all but its end cached.
  const int64_t shared = std::min(settings.context, options.context - 64);
  std::vector<double> cold, warm, ratio;
  for (int run = 0; run < std::min(settings.repeats, 3); ++run) {
    options.prefix_cache = true;
    Engine engine(rt, step, options);
    Request r = random_request(shared, 1, config.vocab_size, static_cast<uint64_t>(run));
    cold.push_back(first_token(engine, r));
    for (int32_t i = 0; i < 16; ++i)
      r.prompt.push_back((i * 7 + run) % static_cast<int32_t>(config.vocab_size));
    warm.push_back(first_token(engine, r));
    ratio.push_back(cold.back() / warm.back());
    HYSPARSE_CHECK(engine.stats().cache_hits == 1, "the second prompt did not find the first one's prefix");
  }
  auto with_context = shape;
  with_context.emplace_back("prompt", std::to_string(shared));
  report.add({"engine first token, cold", with_context, "s", cold});
  report.add({"engine first token, cached prefix", with_context, "s", warm});
  report.add({"engine first token, cold / cached", with_context, "x", ratio});
}

}  // namespace hysparse
