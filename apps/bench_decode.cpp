// Decoding behind a long context: one sequence, and many in a batch.
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/error.h"
#include "bench_parts.h"
#include "engine/paged_kv.h"
#include "engine/session.h"
#include "kernels/cpu/dispatch.h"
#include "model/plan_report.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes that a decoded token must read with `context` tokens before it: every weight (of an embedding that is
// not also the head, one row; of experts, the active ones), and the K and V that its layers attend to.
double bytes_a_token(Model& model, int64_t context, KvDtype kv) {
  const Weights& weights = model.weights();
  const ModelConfig& config = model.config();
  double bytes = 0;
  for (const Weight* w : weights.all())
    if (w != &weights.embed_tokens || !weights.lm_head_own) bytes += static_cast<double>(w->bytes());
  for (const LayerWeights& layer : weights.layers)
    for (const auto* group : {&layer.expert_gate, &layer.expert_up, &layer.expert_down})
      if (!group->empty())
        bytes -= static_cast<double>(group->front().bytes()) *
                 static_cast<double>(config.n_routed_experts - config.num_experts_per_tok);
  const int64_t numbers = config.kv_heads() * (config.d() + config.dv()),
                row = numbers * static_cast<int64_t>(size_of(weights.options().compute)),
                page_row = kv == KvDtype::compute ? row : numbers + 4 * config.kv_heads();
  for (const LayerPlanEntry& entry : model.plan()) {
    int64_t keys = 0;
    if (entry.kind == LayerKind::full) keys = context;
    if (entry.kind == LayerKind::sparse)
      keys = std::min(context, config.entries() * config.hysparse_block_size);
    const bool ring = entry.own_window_kv;
    const int64_t near = entry.window > 0 ? std::min(context, entry.window) : 0;
    bytes += static_cast<double>((keys + (ring ? 0 : near)) * page_row + (ring ? near : 0) * row);
  }
  return bytes;
}

// One sequence of `context` random tokens, in host memory.
KvImage fill(Runtime& rt, Model& model, const BenchSettings& settings, PagedKv& kv, const TensorView& buffer,
             const TensorView& no_logits) {
  const std::vector<int32_t> prompt = random_tokens(settings.context, model.config().vocab_size, 7);
  for (int64_t done = 0; done < settings.context;) {
    const int64_t count = std::min(settings.chunk, settings.context - done);
    const TensorView ids = buffer.rows(0, count);
    rt.memory.from_host(ids.data, prompt.data() + done, ids.bytes());
    RaggedBatch batch;
    batch.add_sequence(count, done);
    kv.begin_step({0}, batch);
    model.forward(rt, batch, ids, kv, no_logits);
    kv.commit();
    done += count;
  }
  return kv.move_out(0);
}

}  // namespace

// Decodes behind the session's prompt. On the CPU every run stands between two passes that read memory as
// fast as it goes: decoding can be no faster than that.
void bench_decode(Runtime& rt, Session& session, Model& model, const BenchSettings& settings,
                  std::vector<std::pair<std::string, std::string>> shape, BenchReport& report) {
  std::optional<ReadSpeed> ceiling;
  if (rt.memory.device() == DeviceKind::cpu && settings.compute != DType::f64) ceiling.emplace(rt.pool);
  const double bytes = bytes_a_token(model, settings.context, settings.kv_dtype);
  std::vector<double> rates, reads, fractions;
  int32_t token = 1;
  const DrawSettings greedy{.temperature = 0, .vocab = model.config().vocab_size};
  for (int i = 0; i <= settings.repeats; ++i) {  // the first run warms up
    double read = ceiling ? ceiling->measure() : 0;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t t = 0; t < settings.decode_tokens; ++t) {
      if (!session.decode_and_draw(token, greedy)) session.decode(token);
      token = static_cast<int32_t>((token * 31 + 7) % model.config().vocab_size);
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

// Every sequence has a cache of its own, filled alike; the logits stay where they are.
void bench_batched_decode(Runtime& rt, Model& model, const BenchSettings& settings,
                          const std::vector<std::pair<std::string, std::string>>& shape,
                          BenchReport& report) {
  const ModelConfig& config = model.config();
  const int64_t steps = settings.decode_tokens * (settings.repeats + 1);
  PagedKvOptions options;
  options.max_tokens = settings.context + steps;
  options.max_sequences = *std::max_element(settings.batches.begin(), settings.batches.end());
  options.dtype = settings.compute;
  options.kv_dtype = settings.kv_dtype;
  const KvBytes bytes =
      kv_bytes(config, model.plan(), static_cast<int>(size_of(settings.compute)), settings.kv_dtype);
  const auto cache_bytes = [&](int64_t batch) {
    return static_cast<double>(batch) * static_cast<double>(bytes.at(options.max_tokens));
  };
  std::optional<KvImage> image;
  std::vector<int64_t> batches = settings.batches;
  std::sort(batches.begin(), batches.end());
  for (const int64_t n : batches) {
    const double free = static_cast<double>(rt.memory.available());
    if (cache_bytes(n) > free) {
      log(rt.log, LogLevel::warning,
          fmt::format(
              "{}, {}: a batch of {} with {} tokens each needs a cache of {:.1f} GB; {:.1f} GB are free",
              shape[0].second, shape[1].second, n, settings.context, cache_bytes(n) / 1e9, free / 1e9));
      continue;
    }
    options.max_sequences = n;
    PagedKv kv(config, model.plan(), options, rt.memory, cache_runtime(rt, settings.kv_dtype));
    const Tensor buffer(DType::i32, {std::max(n, settings.chunk)}, rt.memory);
    const Tensor logits(accumulation_dtype(settings.compute), {n, config.vocab_size}, rt.memory);
    if (!image) image = fill(rt, model, settings, kv, buffer.view(), logits.view().rows(0, 0));
    std::vector<int> ids;
    for (int i = 0; i < n; ++i) {
      kv.move_in(i, *image);
      ids.push_back(i);
    }
    const TensorView tokens = buffer.view().rows(0, n);
    std::vector<int32_t> next = random_tokens(n, config.vocab_size, 11);
    const auto step = [&] {
      RaggedBatch batch;
      for (int i = 0; i < n; ++i) {
        batch.logit_rows.push_back(i);
        batch.add_sequence(1, kv.length(i));
      }
      rt.memory.from_host(tokens.data, next.data(), tokens.bytes());
      if (kv.can_repeat()) {
        kv.repeat(ids, batch, model.layout(rt, kv.repeat_bound(batch.max_kv_len())), tokens, logits.view(),
                  [&](const RaggedBatch& bounded) { model.forward(rt, bounded, tokens, kv, logits.view()); });
      } else {
        kv.begin_step(ids, batch);
        model.forward(rt, batch, tokens, kv, logits.view());
      }
      kv.commit();
      rt.memory.synchronize();
      for (int32_t& t : next) t = static_cast<int32_t>((int64_t{t} * 31 + 7) % config.vocab_size);
    };
    std::vector<double> rates;
    for (int i = 0; i <= settings.repeats; ++i) {  // the first run warms up
      const auto start = Clock::now();
      for (int64_t t = 0; t < settings.decode_tokens; ++t) step();
      if (i > 0) rates.push_back(static_cast<double>(n * settings.decode_tokens) / seconds_since(start));
    }
    auto with_batch = shape;
    with_batch.emplace_back("batch", std::to_string(n));
    with_batch.emplace_back(
        "kv_GB", fmt::format("{:.2f}", static_cast<double>(kv.page_bytes() + kv.ring_bytes()) / 1e9));
    report.add({"decode", std::move(with_batch), "tokens/s", rates});
  }
}

}  // namespace hysparse
