// End to end: training steps, prefill and decode of models with random weights.
#include <algorithm>
#include <chrono>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "bench_parts.h"
#include "bench_timed_ops.h"
#include "engine/session.h"
#include "train/memory_plan.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace hysparse {
namespace {

constexpr double kDensePeak = 989e12;  // bf16 products of an H100 or H200, FLOP/s, as specified

std::vector<std::pair<std::string, std::string>> shape_of(const BenchModel& m, int64_t parameters) {
  return {{"config", m.name}, {"attention", m.attention}, {"parameters", std::to_string(parameters)}};
}

// Time by kernel family of what `run` does on the runtime that it is given.
template <class Run>
void report_families(Runtime& rt, const BenchModel& m, const std::string& what, Run run,
                     BenchReport& report) {
  const TimedOps timed(rt.ops);
  Runtime profiled{rt.pool, rt.scratch, timed, rt.memory, rt.log, rt.comm};
  run(profiled);
  for (const auto& [family, f] : timed.families())
    report.add({what + ": " + family,
                {{"config", m.name}, {"attention", m.attention}, {"calls", std::to_string(f.calls)}},
                "ms",
                {f.seconds * 1e3}});
}

}  // namespace

std::vector<int32_t> random_tokens(int64_t n, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int32_t& t : out) t = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
  return out;
}

void bench_train(Runtime& rt, const BenchModel& m, const BenchSettings& settings, BenchReport& report) {
  const ModelConfig& config = m.config.model;
  RunConfig run = m.config;
  run.train.dtype = settings.compute == DType::bf16  ? TrainDType::bf16
                    : settings.compute == DType::f32 ? TrainDType::f32
                                                     : TrainDType::f64;
  validate_run_config(run, m.name);
  const TrainConfig& t = run.train;
  const LayerPlan plan = build_layer_plan(config);
  const size_t free_before = rt.memory.available();
  check_memory(run, rt);
  WeightOptions weight_settings = weight_options(t, rt.comm);
  weight_settings.format = settings.weights;
  Weights weights(config, plan, weight_settings, rt.memory);
  weights.init_random(config, plan, 1, &rt.pool);
  Model model(config, weights);
  Optimizer optimizer(weights);
  std::vector<TrainBatch> batches;
  const int ranks = rt.comm.size();
  if (t.global_batch_size < ranks)
    throw expected_error("train.global_batch_size", fmt::format("at least a row for each of {} ranks", ranks),
                         std::to_string(t.global_batch_size));
  const int64_t last = t.global_batch_size * (rt.comm.rank() + 1) / ranks;
  for (int64_t row = t.global_batch_size * rt.comm.rank() / ranks; row < last; row += t.micro_rows()) {
    TrainBatch b;
    for (int64_t i = row; i < std::min(last, row + t.micro_rows()); ++i)
      b.batch.add_sequence(t.seq_len, 0, i);
    b.tokens = random_tokens(b.batch.tokens(), config.vocab_size, static_cast<uint64_t>(row));
    b.labels = random_tokens(b.batch.tokens(), config.vocab_size, static_cast<uint64_t>(row) + 1000);
    b.targets = b.batch.tokens();
    batches.push_back(std::move(b));
  }
  const auto step_on = [&](Runtime& on) {
    accumulate_gradient(on, model, batches, t.recompute, false);
    optimizer.reduce_gradients(on);
    optimizer.step(on, t, t.lr, optimizer.gradient_norm(on));
    on.memory.synchronize();
    return static_cast<double>(t.tokens_per_step());
  };
  auto shape = shape_of(m, weights.parameters());
  shape.emplace_back("seq_len", std::to_string(t.seq_len));
  shape.emplace_back("rows", std::to_string(t.global_batch_size));
  if (t.recompute != Recompute::none) shape.emplace_back("recompute", enum_name(t.recompute));
  if (ranks > 1) {
    shape.emplace_back("ranks", std::to_string(ranks));
    shape.emplace_back("over", rt.comm.name());
  }
  const std::vector<double> rates = measure_rate([&] { return step_on(rt); }, settings.repeats, 0);
  if (rt.memory.device() != DeviceKind::cpu) {
    // Model FLOPs: forward and twice that for backward; what recompute repeats does not count.
    const double flops = 3 * make_plan_report(config, t.seq_len, 1).flops.prefill;
    std::vector<double> sorted = rates;
    std::nth_element(sorted.begin(), sorted.begin() + std::ssize(sorted) / 2, sorted.end());
    const double model_flops = flops * sorted[sorted.size() / 2];
    shape.emplace_back("model_TFLOP/s", fmt::format("{:.0f}", model_flops / 1e12));
    shape.emplace_back("MFU", fmt::format("{:.1f}%", 100 * model_flops / kDensePeak / ranks));
    shape.emplace_back("GB", fmt::format("{:.1f}", double(free_before - rt.memory.available()) / 1e9));
  }
  report.add({"train", std::move(shape), "tokens/s", rates});
  if (settings.step_profile) report_families(rt, m, "train step", step_on, report);
}

void bench_inference(Runtime& rt, const BenchModel& m, const BenchSettings& settings, bool prefill,
                     bool decode, BenchReport& report) {
  using Clock = std::chrono::steady_clock;
  SessionOptions options;
  options.kv_dtype = settings.kv_dtype;
  options.chunk = settings.chunk;
  // One run more than is reported: the first warms up.
  options.context = settings.context + (decode ? settings.decode_tokens * (settings.repeats + 1) : 0);
  ModelConfig config = m.config.model;  // what is generated may go past its context
  config.max_position_embeddings = std::max(config.max_position_embeddings, options.context);
  const LayerPlan plan = build_layer_plan(config);
  Weights weights(config, plan, WeightOptions{.compute = settings.compute, .format = settings.weights},
                  rt.memory);
  // The experts of a model that only 8 bits fit are too many to draw one by one.
  const int64_t distinct = settings.weights == WeightFormat::fp8 ? 16 : 0;
  weights.init_random(config, plan, 1, &rt.pool, distinct);
  weights.pack(rt);
  Model model(config, weights);
  auto session = std::make_unique<Session>(rt, model, options);
  const std::vector<int32_t> prompt = random_tokens(settings.context, config.vocab_size, 7);
  auto shape = shape_of(m, weights.parameters());
  if (settings.weights != WeightFormat::compute)
    shape.emplace_back("weights", settings.weights == WeightFormat::int8 ? "int8" : "fp8");
  if (settings.kv_dtype != KvDtype::compute)
    shape.emplace_back("kv", std::string(enum_name(settings.kv_dtype)));
  if (distinct > 0) shape.emplace_back("distinct_experts", std::to_string(distinct));
  shape.emplace_back("context", std::to_string(settings.context));

  std::vector<double> rates;
  const int prefills = prefill ? settings.repeats : 1;
  if (prefill)  // warms up
    session->prompt({prompt.begin(), prompt.begin() + std::min(settings.context, 2 * settings.chunk)});
  for (int i = 0; i < prefills; ++i) {
    session->reset();
    const auto start = Clock::now();
    session->prompt(prompt);
    rates.push_back(static_cast<double>(settings.context) /
                    std::chrono::duration<double>(Clock::now() - start).count());
  }
  shape.emplace_back("kv_bytes", std::to_string(session->kv().page_bytes() + session->kv().ring_bytes()));
  if (prefill) {
    auto with_chunk = shape;
    with_chunk.emplace_back("chunk", std::to_string(settings.chunk));
    report.add({"prefill", std::move(with_chunk), "tokens/s", rates});
    if (settings.step_profile) {
      session.reset();
      report_families(
          rt, m, "prefill",
          [&](Runtime& on) {
            Session once(on, model, options);
            once.prompt(prompt);
            on.memory.synchronize();
          },
          report);
      if (decode) {
        session = std::make_unique<Session>(rt, model, options);
        session->prompt(prompt);
      }
    }
  }
  if (!decode) return;
  if (settings.batches.empty()) return bench_decode(rt, *session, model, settings, std::move(shape), report);
  session.reset();  // and its cache
  bench_batched_decode(rt, model, settings, std::move(shape), report);
}

}  // namespace hysparse
