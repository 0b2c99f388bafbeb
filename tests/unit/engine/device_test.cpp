// A session whose model and cache live on a device that host code cannot read: the same logits as on the
// host.
#include <gtest/gtest.h>

#include <cstring>

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

}  // namespace
}  // namespace hysparse
