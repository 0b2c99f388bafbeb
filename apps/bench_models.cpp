// End to end: training steps, prefill and decode of models with random weights.
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "bench_parts.h"
#include "engine/session.h"
#include "kernels/cpu/dispatch.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace hysparse {
namespace {

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  return out;
}

std::vector<std::pair<std::string, std::string>> shape_of(const BenchModel& m, int64_t parameters) {
  return {{"config", m.name}, {"attention", m.attention}, {"parameters", std::to_string(parameters)}};
}

// Bytes that a decoded token must read with `context` tokens before it: every weight (of an embedding that is
// not also the head, one row), and the K and V that its layers attend to.
double bytes_a_token(const Weights& weights, const ModelConfig& config, const LayerPlan& plan,
                     int64_t context) {
  double bytes = 0;
  for (const Weight* w : weights.all())
    if (w != &weights.embed_tokens || !weights.lm_head_own) bytes += static_cast<double>(w->bytes());
  const int64_t row = config.kv_heads() * (config.d() + config.dv());
  for (const LayerPlanEntry& entry : plan) {
    int64_t keys = 0;
    if (entry.kind == LayerKind::full) keys = context;
    if (entry.kind == LayerKind::sparse)
      keys = std::min(context, config.entries() * config.hysparse_block_size);
    if (entry.window > 0) keys += std::min(context, entry.window);
    bytes += static_cast<double>(keys * row) * static_cast<double>(size_of(weights.options().compute));
  }
  return bytes;
}

// Decodes behind the session's prompt. On the CPU every run stands between two passes that read memory as
// fast as it goes: decoding can be no faster than that.
void bench_decode(Runtime& rt, Session& session, const Weights& weights, const ModelConfig& config,
                  const LayerPlan& plan, const BenchSettings& settings,
                  std::vector<std::pair<std::string, std::string>> shape, BenchReport& report) {
  std::optional<ReadSpeed> ceiling;
  if (rt.memory.device() == DeviceKind::cpu && settings.compute != DType::f64) ceiling.emplace(rt.pool);
  const double bytes = bytes_a_token(weights, config, plan, settings.context);
  std::vector<double> rates, reads, fractions;
  int32_t token = 1;
  for (int i = 0; i <= settings.repeats; ++i) {  // the first run warms up
    double read = ceiling ? ceiling->measure() : 0;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t t = 0; t < settings.decode_tokens; ++t) {
      session.decode(token);
      token = static_cast<int32_t>((token * 31 + 7) % config.vocab_size);
    }
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (ceiling) read = (read + ceiling->measure()) / 2;
    if (i == 0) continue;
    rates.push_back(static_cast<double>(settings.decode_tokens) / time.count());
    reads.push_back(read / 1e9);
    fractions.push_back(rates.back() * bytes / read);
  }
  const auto median = [](std::vector<double> runs) { return BenchResult{.runs = std::move(runs)}.median(); };
  if (ceiling) {
    shape.emplace_back("GB/token", fmt::format("{:.4f}", bytes / 1e9));
    shape.emplace_back("read_GB/s", fmt::format("{:.1f}", median(reads)));
    shape.emplace_back("fraction_of_read_bandwidth", fmt::format("{:.3f}", median(fractions)));
  }
  report.add({"decode", std::move(shape), "tokens/s", rates});
}

}  // namespace

void bench_train(Runtime& rt, const BenchModel& m, const BenchSettings& settings, BenchReport& report) {
  const ModelConfig& config = m.config.model;
  const TrainConfig& t = m.config.train;
  const LayerPlan plan = build_layer_plan(config);
  Weights weights(config, plan,
                  WeightOptions{.compute = settings.compute, .training = true, .format = settings.weights},
                  rt.memory);
  weights.init_random(config, plan, 1, &rt.pool);
  Model model(config, weights);
  Optimizer optimizer(weights);
  std::vector<TrainBatch> batches;
  for (int64_t row = 0; row < t.global_batch_size; row += t.micro_rows()) {
    TrainBatch b;
    for (int64_t i = row; i < std::min(t.global_batch_size, row + t.micro_rows()); ++i)
      b.batch.add_sequence(t.seq_len, 0, i);
    b.tokens = random_tokens(b.batch.tokens(), config.vocab_size, static_cast<uint64_t>(row));
    b.labels = random_tokens(b.batch.tokens(), config.vocab_size, static_cast<uint64_t>(row) + 1000);
    b.targets = b.batch.tokens();
    batches.push_back(std::move(b));
  }
  const auto step = [&] {
    accumulate_gradient(rt, model, batches, t.recompute, false);
    optimizer.step(rt, t, t.lr, optimizer.gradient_norm(rt));
    return static_cast<double>(t.tokens_per_step());
  };
  auto shape = shape_of(m, weights.parameters());
  shape.emplace_back("seq_len", std::to_string(t.seq_len));
  shape.emplace_back("rows", std::to_string(t.global_batch_size));
  report.add({"train", std::move(shape), "tokens/s", measure_rate(step, settings.repeats, 0)});
}

void bench_inference(Runtime& rt, const BenchModel& m, const BenchSettings& settings, bool prefill,
                     bool decode, BenchReport& report) {
  using Clock = std::chrono::steady_clock;
  const ModelConfig& config = m.config.model;
  const LayerPlan plan = build_layer_plan(config);
  Weights weights(config, plan, WeightOptions{.compute = settings.compute, .format = settings.weights},
                  rt.memory);
  weights.init_random(config, plan, 1, &rt.pool);
  Model model(config, weights);
  SessionOptions options;
  options.chunk = settings.chunk;
  // One run more than is reported: the first warms up.
  options.context = settings.context + settings.decode_tokens * (settings.repeats + 1);
  Session session(rt, model, options);
  const std::vector<int32_t> prompt = random_tokens(settings.context, config.vocab_size, 7);
  auto shape = shape_of(m, weights.parameters());
  if (settings.weights == WeightFormat::int8) shape.emplace_back("weights", "int8");
  shape.emplace_back("context", std::to_string(settings.context));

  std::vector<double> rates;
  const int prefills = prefill ? settings.repeats : 1;
  for (int i = 0; i < prefills; ++i) {
    session.reset();
    const auto start = Clock::now();
    session.prompt(prompt);
    rates.push_back(static_cast<double>(settings.context) /
                    std::chrono::duration<double>(Clock::now() - start).count());
  }
  shape.emplace_back("kv_bytes", std::to_string(session.kv().page_bytes() + session.kv().ring_bytes()));
  if (prefill) {
    auto with_chunk = shape;
    with_chunk.emplace_back("chunk", std::to_string(settings.chunk));
    report.add({"prefill", std::move(with_chunk), "tokens/s", rates});
  }
  if (decode) bench_decode(rt, session, weights, config, plan, settings, std::move(shape), report);
}

}  // namespace hysparse
