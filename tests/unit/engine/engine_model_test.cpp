// The engine over real models: what requests say beside others, in any chunks, from the cache, after a
// preemption, is what a session of their own says.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/answer_writer.h"
#include "engine/session.h"
#include "engine_rig.h"
#include "tiny.h"
#include "unit/support/fake_device.h"

namespace hysparse {
namespace {

using namespace tests;

struct TinyModel {
  TinyModel(Runtime& rt, DType compute, AttentionKind kind = AttentionKind::hysparse)
      : config(tiny_config(kind)) {
    config.num_hidden_layers = 5;
    config.hysparse_block_size = 16;  // so that short texts select, too
    config.hysparse_topk_tokens = 64;
    config.sliding_window = 32;
    config.max_position_embeddings = 1024;
    config.finalize("TINY");
    plan = build_layer_plan(config);
    weights = std::make_unique<Weights>(config, plan, WeightOptions{.compute = compute}, rt.memory);
    weights->init_random(config, plan, 5, &rt.pool);
    model = std::make_unique<Model>(config, *weights);
  }
  ModelConfig config;
  LayerPlan plan;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Model> model;
};

EngineOptions model_options(const ModelConfig& config, DType compute, int64_t pages, int64_t slots,
                            KvDtype kv = KvDtype::compute) {
  const KvBytes bytes = kv_bytes(config, build_layer_plan(config), int(size_of(compute)), kv);
  EngineOptions o;
  o.memory.kv_dtype = kv;
  o.context = 512;
  o.memory.page_size = 16;
  o.memory.max_sequences = 4;
  o.memory.kv_bytes = pages * 16 * bytes.per_token + slots * bytes.rings;
  o.memory.snapshot_share = 0.4;
  o.snapshot_interval = 48;
  o.step_tokens = 70;
  o.poison = std::nan("");
  o.check_steps = true;
  return o;
}

// A request on a session of its own: the path that generate takes.
Outcome in_a_session(Runtime& rt, Model& model, const Request& r, int64_t chunk,
                     KvDtype kv = KvDtype::compute) {
  Outcome out;
  for (int c = 0; c < r.n; ++c) {
    SessionOptions so;
    so.context = 512;
    so.chunk = chunk;
    so.page_size = 16;
    so.kv_dtype = kv;
    Session session(rt, model, so);
    AnswerOptions o;
    o.sampling = r.sampling;
    o.sampling.choice = uint64_t(c);
    o.vocab = model.config().vocab_size;
    o.limit = std::min(r.max_new_tokens, 512 - int64_t(r.prompt.size()));
    o.logprobs = r.logprobs;
    AnswerWriter writer(o);
    writer.see_prompt(r.prompt);
    SamplerScratch scratch;
    TensorView logits = session.prompt(r.prompt);
    Event e;
    e.choice = c;
    while (!writer.finished()) {
      if (!writer.tokens().empty()) logits = session.decode(writer.tokens().back());
      e.logprobs.push_back(*writer.draw(logits, scratch).logprobs);
    }
    e.tokens = writer.tokens();
    e.finish = writer.finished();
    out.take(e);
  }
  return out;
}

std::vector<Request> some_requests(int64_t vocab) {
  std::vector<Request> out;
  const auto shared = ids(150, 99, vocab);
  for (uint64_t i = 0; i < 10; ++i) {
    std::vector<int32_t> prompt;
    if (i % 2) prompt.assign(shared.begin(), shared.begin() + std::ptrdiff_t(20 + i * 13));
    const auto more = ids(int64_t(1 + i * 9), i, i % 3 ? vocab : 2);
    prompt.insert(prompt.end(), more.begin(), more.end());
    Request r = request(prompt, int64_t(6 + i * 3), i);
    r.sampling.temperature = i % 3 ? 0.7 : 0;
    r.logprobs = 2;
    r.n = i == 3 ? 3 : 1;
    r.priority = i == 5 || i == 8 ? 1 : 0;  // makes others give way
    out.push_back(r);
  }
  return out;
}

std::vector<Outcome> all_of(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::unique_ptr<Answer>> answers;
  size_t next = 0;
  do {
    if (next < requests.size()) answers.push_back(engine.submit(requests[next++]));
  } while (engine.step() || next < requests.size());
  std::vector<Outcome> out(answers.size());
  for (size_t i = 0; i < out.size(); ++i) out[i].take_all(*answers[i]);
  return out;
}

// In float64 the reference computes a row alike wherever it stands: not one bit may differ.
// Nor, with pages in 8 bits, where the CPU's kernels compute.
void every_path_says_the_same_bits(AttentionKind kind, DType compute, KvDtype kv) {
  SCOPED_TRACE(fmt::format("{} {} {}", enum_name(kind), name_of(compute), enum_name(kv)));
  {
    Backend backend(compute, 2);
    TinyModel tiny(backend.rt, compute, kind);
    const std::vector<Request> requests = some_requests(97);
    std::vector<Outcome> want;
    for (const Request& r : requests) want.push_back(in_a_session(backend.rt, *tiny.model, r, 37, kv));
    ModelStep step(*tiny.model);
    for (const Preemption preemption : {Preemption::swap, Preemption::recompute}) {
      EngineOptions options = model_options(tiny.config, compute, 26, 12, kv);
      options.preemption = preemption;
      options.speculate = preemption == Preemption::swap ? 5 : 0;
      Engine engine(backend.rt, step, options);
      for (int round = 0; round < 2; ++round) {  // the second one finds the first one's prefixes
        const std::vector<Outcome> got = all_of(engine, requests);
        for (size_t i = 0; i < got.size(); ++i) {
          SCOPED_TRACE(i);
          expect_same(got[i], want[i]);
        }
      }
      const EngineStats s = engine.stats();
      EXPECT_GT(s.cache_hits, 1);
      EXPECT_GT(s.preempted_swap + s.preempted_recompute, 0);
      if (preemption == Preemption::swap) {
        EXPECT_GT(s.accepted, 0);
      }
    }
  }
}

TEST(EngineModel, EveryPathSaysTheSameBits) {
  for (const AttentionKind kind : {AttentionKind::hysparse, AttentionKind::full, AttentionKind::hybrid_swa})
    every_path_says_the_same_bits(kind, DType::f64, KvDtype::compute);
  every_path_says_the_same_bits(AttentionKind::hysparse, DType::f64, KvDtype::int8);
  every_path_says_the_same_bits(AttentionKind::hysparse, DType::f32, KvDtype::int8);
  every_path_says_the_same_bits(AttentionKind::full, DType::bf16, KvDtype::fp8);
}

// BC-10: a prefix is taken over just before, at and behind the places where rings wrap and pages end.
TEST(EngineModel, APrefixEndsAnywhere) {
  Backend backend(DType::f64, 2);
  TinyModel tiny(backend.rt, DType::f64);
  ModelStep step(*tiny.model);
  const auto whole = ids(200, 7, 97);
  for (const int64_t split : {15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 97, 127, 128, 129}) {
    SCOPED_TRACE(split);
    Engine engine(backend.rt, step, model_options(tiny.config, DType::f64, 60, 10));
    std::vector<int32_t> begin(whole.begin(), whole.begin() + split), other = begin;
    for (const int32_t id : ids(9, uint64_t(split), 97)) other.push_back(id);
    Request a = request(begin, 3), b = request(other, 4), again = a;
    for (Request* r : {&a, &b, &again}) r->logprobs = 0;
    bool first = true;
    for (const Request& r : {a, b, again}) {
      const auto answer = engine.submit(r);
      while (engine.step()) {
      }
      Outcome out;
      out.take_all(*answer);
      expect_same(out, in_a_session(backend.rt, *tiny.model, r, 512));
      if (!std::exchange(first, false) && split >= 17) {
        EXPECT_GE(out.usage->cached_tokens, split - 1);
      }
    }
  }
}

// A device whose memory the host cannot touch and that draws by itself: the same tokens and logprobs, moves
// to host memory included.
TEST(EngineModel, OnADevice) {
  ThreadPool pool(2);
  Arena host_scratch;
  Runtime host{pool, host_scratch, cpu_ops(), host_memory()};
  FakeDevice device;
  const DrawingDeviceOps ops(cpu_ops(), device);
  Arena scratch(device);
  Runtime rt{pool, scratch, ops, device};
  TinyModel there(rt, DType::f32), here(host, DType::f32);
  ModelStep step_there(*there.model), step_here(*here.model);
  EngineOptions options = model_options(here.config, DType::f32, 26, 12);
  for (const bool tells :
       {true, false}) {  // log-probabilities, which need logits on the host, or just tokens
    std::vector<Request> requests = some_requests(97);
    for (size_t i = 0; i < requests.size(); ++i)
      if (!tells && i != 4) requests[i].logprobs = -1;
    options.speculate = tells ? 0 : 3;
    Engine on_device(rt, step_there, options), on_host(host, step_here, options);
    const std::vector<Outcome> got = all_of(on_device, requests), want = all_of(on_host, requests);
    EXPECT_GT(on_device.stats().preempted_swap, 0);
    EXPECT_EQ(ops.drawn > 0, !tells);
    for (size_t i = 0; i < got.size(); ++i) expect_same(got[i], want[i]);
  }
}

// The figures of capacity, counted from what the allocator would hand out: one budget, sequences of 32k.
TEST(EngineModel, HoldsManyTimesTheTokensOfItsFullTwin) {
  const auto tokens_in = [](const ModelConfig& config, int64_t budget) {
    KvPlanOptions o;
    o.kv_bytes = budget;
    o.snapshot_share = 0;
    constexpr int64_t kContext = 32768;
    const LayerPlan plan = build_layer_plan(config);
    const KvBytes bytes = kv_bytes(config, plan, 2);
    o.max_sequences = budget / bytes.at(kContext);
    const KvPlan p = plan_kv(config, plan, DType::bf16, kContext, o, 0, 0);
    EXPECT_LE(p.bytes(), budget);
    return std::min(p.pages / (kContext / p.page_size), p.max_sequences) * kContext;
  };
  const auto layout = [](int64_t layers, int64_t interval, int64_t heads, int64_t kv, int64_t hidden) {
    ModelConfig c;
    c.num_hidden_layers = layers;
    c.full_attention_interval = interval;
    c.attention = AttentionKind::hysparse;
    c.num_attention_heads = heads;
    c.num_key_value_heads = kv;
    c.head_dim = 128;
    c.hidden_size = hidden;
    c.intermediate_size = 128;
    c.vocab_size = 128;
    c.max_position_embeddings = 131072;
    c.finalize("layout");
    return c;
  };
  const int64_t budget = int64_t(100) << 30;
  const ModelConfig large = layout(49, 12, 64, 4, 2048), dense = layout(36, 4, 32, 8, 4096);
  const auto ratio = [&](const ModelConfig& c) {
    return double(tokens_in(c, budget)) / double(tokens_in(twin(c, AttentionKind::full), budget));
  };
  EXPECT_GE(ratio(large), 9.0);
  EXPECT_GE(ratio(dense), 3.5);
}

}  // namespace
}  // namespace hysparse
