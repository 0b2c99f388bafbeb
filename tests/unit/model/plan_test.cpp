// What `plan` must find: the figures of the architecture's table, from the presets that we ship.
#include "model/plan_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/json_value.h"
#include "unit/model/tiny.h"

namespace hysparse {
namespace {

// The model part of a run file that we ship.
ModelConfig preset(const char* file) {
  const auto path = std::filesystem::path(HYSPARSE_SOURCE_DIR) / "configs" / file;
  Json json = read_json_file(path);
  json.erase("train");
  json.erase("data");
  return parse_model_config(dump_json(json), file);
}
ModelConfig preset_7b() {
  return preset("hysparse-7b.json");
}
ModelConfig preset_80b() {
  return preset("hysparse-80b-a3b.json");
}

const KvReport& of(const PlanReport& r, AttentionKind kind) {
  for (const KvReport& kv : r.kv)
    if (kv.kind == kind) return kv;
  throw failure("test", "no such kind");
}

double rounded(double x, int digits) {
  const double p = std::pow(10.0, digits);
  return std::round(x * p) / p;
}

TEST(PlanReport, EightyBillionParameters) {
  const PlanReport r = make_plan_report(preset_80b(), 131072, 1);
  EXPECT_EQ(of(r, AttentionKind::full).bytes.per_token, 100352);
  EXPECT_EQ(of(r, AttentionKind::full).bytes.rings, 0);
  EXPECT_EQ(of(r, AttentionKind::hysparse).bytes.per_token, 10240);
  EXPECT_EQ(of(r, AttentionKind::hysparse).full_layers, 5);
  EXPECT_EQ(rounded(static_cast<double>(of(r, AttentionKind::hysparse).bytes.rings) / 1e6, 2), 11.53);
  EXPECT_EQ(rounded(of(r, AttentionKind::hysparse).smaller, 2), 9.72);
  EXPECT_EQ(rounded(static_cast<double>(r.parameters.total) / 1e9, 1), 79.8);
  EXPECT_EQ(rounded(static_cast<double>(r.parameters.active) / 1e9, 2), 3.04);
  EXPECT_EQ(rounded(static_cast<double>(r.parameters.active_with_head) / 1e9, 2), 3.35);
  auto ratio = [](int64_t context) {
    return rounded(of(make_plan_report(preset_80b(), context, 1), AttentionKind::hysparse).smaller, 2);
  };
  EXPECT_EQ(ratio(32768), 9.47);
  EXPECT_EQ(ratio(1048576), 9.79);
}

TEST(PlanReport, SevenBillionParameters) {
  const PlanReport r = make_plan_report(preset_7b(), 131072, 1);
  EXPECT_EQ(of(r, AttentionKind::full).bytes.per_token, 147456);
  EXPECT_EQ(of(r, AttentionKind::hysparse).bytes.per_token, 40960);
  EXPECT_EQ(of(r, AttentionKind::hysparse).full_layers, 10);
  EXPECT_EQ(rounded(static_cast<double>(of(r, AttentionKind::hysparse).bytes.rings) / 1e6, 2), 13.63);
  EXPECT_EQ(rounded(of(r, AttentionKind::hysparse).smaller, 2), 3.59);
  // A hybrid's window layers keep the same rings, and nothing is shared.
  EXPECT_EQ(of(r, AttentionKind::hybrid_swa).bytes.per_token, 40960);
  EXPECT_EQ(of(r, AttentionKind::hybrid_swa).bytes.rings, of(r, AttentionKind::hysparse).bytes.rings);
  EXPECT_EQ(rounded(static_cast<double>(r.parameters.total) / 1e9, 1), 7.6);
  ModelConfig tied = preset_7b();
  tied.tie_word_embeddings = true;
  const ParameterCounts p = count_parameters(tied, build_layer_plan(tied));
  EXPECT_EQ(rounded(static_cast<double>(p.total) / 1e9, 1), 7.0);
  EXPECT_EQ(p.head, 0);
  EXPECT_EQ(p.active_with_head, r.parameters.active_with_head);
  auto ratio = [](int64_t context) {
    return rounded(of(make_plan_report(preset_7b(), context, 1), AttentionKind::hysparse).smaller, 2);
  };
  EXPECT_EQ(ratio(32768), 3.56);
  EXPECT_EQ(ratio(1048576), 3.60);
}

// Pages in 8 bits: codes and two bytes of scale a row of a head; rings as they are.
TEST(PlanReport, PagesIn8Bits) {
  const PlanReport r = make_plan_report(preset_80b(), 131072, 2);
  EXPECT_EQ(r.own_8_bits.per_token, r.own.per_token / (2 * 128) * 130);
  EXPECT_EQ(r.own_8_bits.rings, r.own.rings);
  EXPECT_EQ(r.own_8_bits_at_context, 2 * r.own_8_bits.at(131072));
  const Json json = parse_json(plan_report_json(preset_80b(), r, DType::bf16), "report");
  EXPECT_EQ(json["kv_cache"]["this_config_int8_or_fp8"]["bytes_per_token"], r.own_8_bits.per_token);
  EXPECT_EQ(json["kv_cache"]["this_config_int8_or_fp8"]["bytes_at_context"], r.own_8_bits_at_context);
}

TEST(PlanReport, BatchAndDtypeScale) {
  const PlanReport one = make_plan_report(preset_7b(), 4096, 1),
                   three = make_plan_report(preset_7b(), 4096, 3);
  EXPECT_EQ(3 * one.kv[0].at_context, three.kv[0].at_context);
  EXPECT_EQ(make_plan_report(preset_7b(), 4096, 1, DType::bf16, 4).own.per_token, 2 * one.own.per_token);
}

TEST(PlanReport, AbsurdNumbersAreErrors) {
  for (int64_t context : {int64_t(0), int64_t(-1), int64_t(1) << 40, std::numeric_limits<int64_t>::max()})
    EXPECT_THROW(make_plan_report(preset_7b(), context, 1), Error) << context;
  EXPECT_THROW(make_plan_report(preset_7b(), 131072, 0), Error);
  EXPECT_THROW(make_plan_report(preset_7b(), (int64_t(1) << 31) - 2, (int64_t(1) << 31) - 2), Error);
  ModelConfig wide = preset_7b();  // each number within its limit, their product far beyond
  wide.num_hidden_layers = 4096;
  wide.layer_types.clear();
  wide.v_head_dim.reset();
  wide.num_attention_heads = wide.num_key_value_heads = 4096;
  wide.head_dim = 256;
  wide.hidden_size = int64_t(1) << 20;
  wide.sliding_window = (int64_t(1) << 31) - 2;
  wide.finalize("wide");
  EXPECT_THROW(make_plan_report(wide, 131072, 1), Error);
}

TEST(PlanReport, FlopsOfAnAttentionByCounting) {
  const ModelConfig c = tiny::config();  // topk 8, window 6: limits 8 and 6 keys
  const int64_t n = 50;
  const PlanReport r = make_plan_report(c, n, 1);
  double keys = 0;
  for (const LayerPlanEntry& e : build_layer_plan(c))
    for (int64_t t = 0; t < n; ++t) {
      if (e.kind == LayerKind::full) keys += static_cast<double>(t + 1);
      if (e.kind == LayerKind::sparse) keys += static_cast<double>(std::min<int64_t>(t + 1, 8));
      if (e.window > 0) keys += static_cast<double>(std::min<int64_t>(t + 1, 6));
    }
  EXPECT_NEAR(r.flops.attention_prefill, keys / n * 2 * 4 * 64, 1e-6 * r.flops.attention_prefill);
  EXPECT_GT(r.flops_full.decode, r.flops.decode - 2.0 * static_cast<double>(r.parameters.total));
  EXPECT_EQ(r.flops.prefill - r.flops.attention_prefill,
            2.0 * static_cast<double>(r.parameters.active_with_head));
}

// The plan's list of activations is the model's: what a step really keeps.
TEST(PlanReport, ActivationsAreThoseOfAStep) {
  const auto cases = {
      tiny::config(),
      tiny::config(AttentionKind::full, [](ModelConfig& c) { c.full_attention_gate = true; }),
      tiny::config(AttentionKind::hybrid_swa),
      tiny::config(AttentionKind::hysparse,
                   [](ModelConfig& c) {
                     c.qk_norm = true;
                     c.hysparse_window = WindowMode::shared;
                     c.hysparse_gate = GateGranularity::channel;
                   }),
      tiny::config(AttentionKind::hysparse, [](ModelConfig& c) { c.hysparse_window = WindowMode::none; }),
      tiny::config(AttentionKind::hysparse, tiny::with_experts),
      tiny::config(AttentionKind::full, [](ModelConfig& c) {
        tiny::with_experts(c);
        c.n_shared_experts = 2;
      })};
  for (const ModelConfig& c : cases) {
    tiny::Machine m(c);
    const tiny::Documents docs({64});
    for (const Recompute r :
         {Recompute::none, Recompute::selective, Recompute::projections, Recompute::layer}) {
      tiny::train(m, docs, {}, r);
      const int64_t bytes = activation_bytes(c, m.plan, 64, DType::f64, r);
      const auto got = static_cast<int64_t>(m.model->activation_bytes());
      EXPECT_EQ(got, bytes) << enum_name(r);
    }
  }
}

TEST(LayerPlan, LayoutsOfThePaper) {
  std::vector<int> full;
  const LayerPlan plan = build_layer_plan(preset_80b());
  for (size_t i = 0; i < plan.size(); ++i)
    if (plan[i].kind == LayerKind::full) full.push_back(static_cast<int>(i));
  EXPECT_EQ(full, (std::vector<int>{0, 12, 24, 36, 48}));
  for (size_t i = 0; i < plan.size(); ++i) {
    const bool sparse = plan[i].kind == LayerKind::sparse;
    EXPECT_EQ(plan[i].selection_source, sparse ? static_cast<int>(i) / 12 * 12 : -1);
    EXPECT_EQ(plan[i].kv_source, sparse ? static_cast<int>(i) / 12 * 12 : static_cast<int>(i));
    EXPECT_EQ(plan[i].emits_scores, !sparse && i != 48);
    EXPECT_EQ(plan[i].moe, i > 0);
  }
  full.clear();
  const LayerPlan dense = build_layer_plan(preset_7b());
  for (size_t i = 0; i < dense.size(); ++i)
    if (dense[i].kind == LayerKind::full) full.push_back(static_cast<int>(i));
  EXPECT_EQ(full, (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28, 32, 35}));
}

TEST(LayerPlan, TwinsKeepTheFullLayersOfAList) {
  ModelConfig c = tiny::config(AttentionKind::hysparse, [](ModelConfig& k) {
    k.attention.reset();
    const std::string f = "full_attention", s = "hysparse_attention";
    k.layer_types = {f, s, s, f, f, s, s, s, s};
  });
  const ModelConfig hybrid = twin(c, AttentionKind::hybrid_swa);
  const std::string f = "full_attention", w = "sliding_attention";
  EXPECT_EQ(hybrid.layer_types, (std::vector<std::string>{f, w, w, f, f, w, w, w, w}));
  EXPECT_EQ(twin(hybrid, AttentionKind::hysparse).layer_types, c.layer_types);
  EXPECT_EQ(twin(c, AttentionKind::full).kind(), AttentionKind::full);
  EXPECT_EQ(twin(twin(preset_7b(), AttentionKind::full), AttentionKind::hysparse).layer_types,
            preset_7b().layer_types);
  // The baseline of the mixture is gated; nothing else changes.
  ModelConfig gated = twin(preset_80b(), AttentionKind::full);
  gated.full_attention_gate = true;
  gated.finalize("gated");
  EXPECT_TRUE(build_layer_plan(gated)[7].gated);
  EXPECT_FALSE(build_layer_plan(preset_80b())[0].gated);
}

}  // namespace
}  // namespace hysparse
