// Pages in 8 bits: the engine's paths agree to the bit, the bytes are those of the plan, formats do not mix.
#include <gtest/gtest.h>

#include "engine/prefix_cache.h"
#include "engine/session.h"
#include "engine_rig.h"
#include "kv_driver.h"
#include "tiny.h"

namespace hysparse {
namespace {

using namespace tests;

constexpr KvDtype kFormats[] = {KvDtype::int8, KvDtype::fp8};

ModelConfig preset(int64_t layers, int64_t interval, int64_t heads, int64_t kv, int64_t hidden) {
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
}

// One budget, whole sequences of a context in it, as the plan of the engine hands it out: the layouts of the
// 80B and the 7B model hold at least 1.9 times the tokens of bf16, rings and all.
TEST(KvIn8Bits, HoldsNearlyTwiceTheTokensOfBf16) {
  const auto tokens_in = [](const ModelConfig& config, int64_t budget, int64_t context, KvDtype kv) {
    const LayerPlan plan = build_layer_plan(config);
    KvPlanOptions o;
    o.kv_dtype = kv;
    o.kv_bytes = budget;
    o.snapshot_share = 0;
    o.max_sequences = budget / kv_bytes(config, plan, 2, kv).at(context);
    const KvPlan p = plan_kv(config, plan, DType::bf16, context, o, 0, 0);
    EXPECT_LE(p.bytes(), budget);
    EXPECT_EQ(p.kv_dtype, kv);
    return std::min(p.pages / (context / p.page_size), p.max_sequences) * context;
  };
  const int64_t budget = int64_t(400) << 30;
  for (const ModelConfig& c : {preset(49, 12, 64, 4, 2048), preset(36, 4, 32, 8, 4096)})
    for (const int64_t context : {32768, 131072})
      for (const KvDtype kv : kFormats) {
        const double times = double(tokens_in(c, budget, context, kv)) /
                             double(tokens_in(c, budget, context, KvDtype::compute));
        EXPECT_GE(times, 1.9) << c.num_hidden_layers << " layers, " << context;
        EXPECT_LT(times, 2) << c.num_hidden_layers << " layers, " << context;
      }
}

// A row of a head is its codes and two bytes; the memory table says what pages are in.
TEST(KvIn8Bits, BytesAreThoseOfThePlan) {
  const ModelConfig c = preset(49, 12, 64, 4, 2048);
  const LayerPlan plan = build_layer_plan(c);
  const KvBytes half = kv_bytes(c, plan, 2), eighth = kv_bytes(c, plan, 2, KvDtype::int8);
  EXPECT_EQ(eighth.per_token, half.per_token / (4 * 128) * (2 * 128 + 4));
  EXPECT_EQ(eighth.rings, half.rings);
  KvPlanOptions o;
  o.kv_bytes = 1 << 30;
  EXPECT_EQ(plan_kv(c, plan, DType::bf16, 4096, o, 0, 0).table().find("int8"), std::string::npos);
  o.kv_dtype = KvDtype::int8;
  EXPECT_NE(plan_kv(c, plan, DType::bf16, 4096, o, 0, 0).table().find(", in int8"), std::string::npos);
}

TEST(KvIn8Bits, NamesOfFormats) {
  EXPECT_EQ(parse_kv_dtype("--kv-cache-dtype", "auto"), KvDtype::compute);
  EXPECT_EQ(parse_kv_dtype("--kv-cache-dtype", "int8"), KvDtype::int8);
  EXPECT_EQ(parse_kv_dtype("--kv-cache-dtype", "fp8"), KvDtype::fp8);
  try {
    parse_kv_dtype("--kv-cache-dtype", "int4");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_NE(std::string(e.what()).find("auto, int8 or fp8"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("int4"), std::string::npos) << e.what();
  }
}

// BC-13: what one format wrote, no other may read: keys of the prefix cache differ, images are refused.
TEST(KvIn8Bits, FormatsDoNotMix) {
  EXPECT_NE(cache_identity(7, KvDtype::int8), cache_identity(7, KvDtype::fp8));
  EXPECT_NE(cache_identity(7, KvDtype::int8), cache_identity(7, KvDtype::compute));
  EXPECT_NE(cache_identity(7, KvDtype::int8), cache_identity(8, KvDtype::int8));
  EXPECT_EQ(cache_identity(7, KvDtype::int8), cache_identity(7, KvDtype::int8));
  const auto driver = [](KvDtype kv, DType dtype) {
    PagedKvOptions o = kv_options(100, 1, 64);
    o.kv_dtype = kv;
    o.dtype = dtype;
    auto d = std::make_unique<KvDriver>(tiny_config(), o);
    d->step({0}, {20});
    return d;
  };
  const auto from = driver(KvDtype::int8, DType::f32);
  const KvImage image = from->kv().move_out(0);
  from->kv().move_in(0, image);
  EXPECT_EQ(from->kv().length(0), 20);
  for (const auto& [kv, dtype] :
       {std::pair{KvDtype::fp8, DType::f32}, {KvDtype::compute, DType::f32}, {KvDtype::int8, DType::bf16}}) {
    const auto to = driver(kv, dtype);
    to->kv().clear(0);
    EXPECT_THROW(to->kv().move_in(0, image), Error);
    EXPECT_EQ(to->kv().length(0), 0);
  }
}

// Without operations there is nobody to quantise.
TEST(KvIn8Bits, NeedsOperations) {
  ModelConfig c = tiny_config();
  c.finalize("test");
  PagedKvOptions o = kv_options(100);
  o.kv_dtype = KvDtype::int8;
  EXPECT_THROW(PagedKv(c, build_layer_plan(c), o), Error);
}

// A request ends alone when its K or V are not numbers; the others' answers are what they are anyway.
TEST(KvIn8Bits, OneRequestThatGoesWrongEndsAlone) {
  for (const KvDtype kv : kFormats) {
    Backend backend(DType::f32, 2);
    ModelConfig c = tiny_config();
    c.max_position_embeddings = 512;
    c.finalize("TINY");
    const LayerPlan plan = build_layer_plan(c);
    Weights weights(c, plan, WeightOptions{.compute = DType::f32});
    weights.init_random(c, plan, 5);
    Model model(c, weights);
    // Token 13 embeds as infinity.
    for (int64_t i = 0; i < c.hidden_size; ++i)
      weights.embed_tokens.value.as<float>()[13 * c.hidden_size + i] = std::numeric_limits<float>::infinity();
    ++weights.embed_tokens.version;
    ModelStep step(model);
    EngineOptions o;
    o.memory.kv_dtype = kv;
    o.memory.kv_bytes = 64 << 20;
    o.memory.max_sequences = 3;
    o.poison = std::nan("");
    const auto good = request(ids(90, 3, 12), 6);
    const auto bad = request({1, 2, 3, 13, 4, 5}, 6);
    const auto say = [&](const std::vector<Request>& requests) {
      Engine engine(backend.rt, step, o);
      std::vector<std::unique_ptr<Answer>> answers;
      for (const Request& r : requests) answers.push_back(engine.submit(r));
      while (engine.step()) {
      }
      std::vector<Outcome> out(answers.size());
      for (size_t i = 0; i < out.size(); ++i) out[i].take_all(*answers[i]);
      return out;
    };
    const std::vector<Outcome> alone = say({good}), together = say({bad, good});
    EXPECT_EQ(together[0].choices[0].finish, FinishReason::error);
    expect_same(together[1], alone[0]);
  }
}

}  // namespace
}  // namespace hysparse
