// A session whose model and cache live on a device that host code cannot read: the same logits as on the
// host.
#include <gtest/gtest.h>

#include <cstring>

#include "engine/generate.h"
#include "engine/session.h"
#include "kernels/cpu/cpu.h"
#include "tiny.h"
#include "unit/support/fake_device.h"

namespace hysparse {
namespace {

using namespace tests;

std::vector<float> answers(Runtime& rt, AttentionKind kind) {
  ModelConfig config = tiny_config(kind);
  config.finalize("TINY");
  const LayerPlan plan = build_layer_plan(config);
  Weights weights(config, plan, {}, rt.memory);
  weights.init_random(config, plan, 5, &rt.pool);
  Model model(config, weights);
  SessionOptions options;
  options.context = 400;
  options.chunk = 100;
  Session session(rt, model, options);
  std::vector<int32_t> prompt;
  for (int i = 0; i < 330; ++i) prompt.push_back((i * 31 + i / 7) % 97);
  std::vector<float> out;
  const auto keep = [&](const TensorView& logits) {
    const float* x = logits.as<float>();
    out.insert(out.end(), x, x + logits.numel());
  };
  keep(session.prompt(prompt));
  for (int i = 0; i < 5; ++i) keep(session.decode((i * 13 + 1) % 97));
  prompt.resize(329);
  keep(session.prompt(prompt));  // partly from the cache, or again
  return out;
}

TEST(Device, HostCodeThatReadsItsMemoryDies) {
  FakeDevice device;
  const auto* p = static_cast<const volatile char*>(device.allocate(1));
  EXPECT_DEATH({ [[maybe_unused]] const char read = *p; }, "");
}

TEST(Device, ASessionTouchesItsMemoryThroughOperationsAlone) {
  for (const AttentionKind kind : {AttentionKind::hysparse, AttentionKind::full, AttentionKind::hybrid_swa}) {
    ThreadPool pool(2);
    Arena host_scratch;
    Runtime host{pool, host_scratch, cpu_ops(), host_memory()};
    FakeDevice device;
    const FakeDeviceOps ops(cpu_ops(), device);
    Arena scratch(device);
    Runtime rt{pool, scratch, ops, device};
    EXPECT_TRUE(answers(rt, kind) == answers(host, kind)) << enum_name(kind);
  }
}

// Tokens that the device draws are those that the host would; what needs logits here still gets them.
TEST(Device, DrawsWhatTheHostWould) {
  ThreadPool pool(1);
  Arena host_scratch;
  Runtime host{pool, host_scratch, cpu_ops(), host_memory()};
  FakeDevice device;
  const DrawingDeviceOps ops(cpu_ops(), device);
  Arena scratch(device);
  Runtime rt{pool, scratch, ops, device};
  const auto tokens = [&](Runtime& on, const SamplerOptions& sampling) {
    ModelConfig config = tiny_config(AttentionKind::hysparse);
    config.finalize("TINY");
    Weights weights(config, build_layer_plan(config), {}, on.memory);
    weights.init_random(config, build_layer_plan(config), 5, &on.pool);
    Model model(config, weights);
    Session session(on, model, {.context = 200, .chunk = 64});
    GenerateOptions options;
    options.sampling = sampling;
    options.max_new_tokens = 40;
    return generate(session, {1, 2, 3, 4, 5}, config.vocab_size, options).tokens;
  };
  SamplerOptions greedy{.temperature = 0}, warm{.temperature = 1.3, .top_k = 30, .top_p = 0.9, .seed = 7},
      penalised{.temperature = 1, .repetition_penalty = 1.5};
  for (const SamplerOptions& sampling : {greedy, warm, penalised}) {
    const int64_t before = ops.drawn;
    EXPECT_EQ(tokens(rt, sampling), tokens(host, sampling));
    EXPECT_EQ(ops.drawn - before, sampling.repetition_penalty == 1 ? 39 : 0);
  }
}

}  // namespace
}  // namespace hysparse
