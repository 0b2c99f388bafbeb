// Configurations: what is accepted, what it means, and what is refused with which words.
#include "model/config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/rope_frequencies.h"
#include "unit/model/tiny.h"

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text)

namespace hysparse {
namespace {

// TINY as a file, with some keys replaced or added ("key": value, without the last comma).
std::string file(const std::string& more = "", const std::string& without = "") {
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"num_hidden_layers", "5"},   {"hidden_size", "64"},        {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"}, {"intermediate_size", "96"},  {"vocab_size", "97"},
      {"head_dim", "32"},           {"attention", "\"hysparse\""}};
  std::string text = "{";
  for (const auto& [key, value] : keys)
    if (more.find('"' + key + '"') == std::string::npos && key != without)
      text += '"' + key + "\": " + value + ", ";
  return text + (more.empty() ? "\"model_type\": \"hysparse\"" : more) + "}";
}

ModelConfig parse(const std::string& text, const std::vector<std::string>& overrides = {},
                  const Log& log = {}) {
  return parse_model_config(text, "tiny.json", overrides, log);
}

// The message with which a file is refused.
std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
    return e.what();
  }
  return "(accepted)";
}

const std::string kF = "full_attention", kS = "hysparse_attention", kW = "sliding_attention";

TEST(Config, LayoutFromAttentionAndInterval) {
  using L = std::vector<std::string>;
  EXPECT_EQ(parse(file()).layer_types, (L{kF, kS, kS, kS, kF}));
  EXPECT_EQ(parse(file(R"("full_attention_interval": 3)")).layer_types, (L{kF, kS, kS, kF, kF}));
  EXPECT_EQ(parse(file(R"("attention": "hybrid_swa")")).layer_types, (L{kF, kW, kW, kW, kF}));
  EXPECT_EQ(parse(file(R"("attention": "full")")).layer_types, (L{kF, kF, kF, kF, kF}));
  EXPECT_EQ(parse(file(R"("attention": "window")")).layer_types, (L{kW, kW, kW, kW, kW}));
  EXPECT_EQ(parse(file("", "attention")).layer_types, parse(file()).layer_types);
}

const char* kListed = R"("layer_types": ["full_attention", "hysparse_attention", "full_attention",
                                          "sliding_attention", "hysparse_attention"])";

TEST(Config, LayerTypesMayBeAnyList) {
  const ModelConfig c = parse(file(kListed, "attention"));
  EXPECT_EQ(c.layer_types, (std::vector<std::string>{kF, kS, kF, kW, kS}));
  EXPECT_EQ(c.kind(), std::nullopt);
  const LayerPlan plan = build_layer_plan(c);
  EXPECT_EQ(plan[1].kv_source, 0);
  EXPECT_EQ(plan[4].kv_source, 2);
  EXPECT_TRUE(plan[0].emits_scores && plan[2].emits_scores);
}

TEST(Config, WhatAFileSaysTwiceMustAgree) {
  const char* agree = R"("attention": "hysparse", "full_attention_interval": 4, "layer_types":
      ["full_attention", "hysparse_attention", "hysparse_attention", "hysparse_attention", "full_attention"])";
  EXPECT_EQ(parse(file(agree)).kind(), AttentionKind::hysparse);
  EXPECT_HAS(refusal(file(std::string(R"("attention": "hysparse", )") + kListed)),
             "layer 2 is full_attention there and hysparse_attention here");
  EXPECT_HAS(refusal(file(R"("full_attention_interval": 2, "layer_types": ["full_attention",
      "hysparse_attention", "hysparse_attention", "hysparse_attention", "full_attention"])",
                          "attention")),
             "full_attention_interval 2");
}

TEST(Config, AnOverrideReplacesLayerTypes) {
  const std::string listed = file(kListed, "attention");
  EXPECT_EQ(parse(listed, {"attention=full"}).kind(), AttentionKind::full);
  // The full layers of a list stay where they are.
  EXPECT_EQ(parse(listed, {"attention=hybrid_swa"}).layer_types,
            (std::vector<std::string>{kF, kW, kF, kW, kW}));
  EXPECT_EQ(parse(listed, {"attention=hysparse", "full_attention_interval=2"}).layer_types,
            (std::vector<std::string>{kF, kS, kF, kS, kF}));
  EXPECT_EQ(parse(file(), {"full_attention_interval=2"}).layer_types,
            (std::vector<std::string>{kF, kS, kF, kS, kF}));
  EXPECT_EQ(parse(file(), {R"(layer_types=["full_attention","full_attention","sliding_attention",)"
                           R"("sliding_attention","hysparse_attention"])"})
                .layer_types,
            (std::vector<std::string>{kF, kF, kW, kW, kS}));
  EXPECT_HAS(refusal(listed, {"num_hidden_layers=6"}), "layer_types: expected 6 entries");
}

TEST(Config, WhatIsSavedStatesLayerTypesAndReadsBackTheSame) {
  for (const std::string& text :
       {file(), file(kListed, "attention"), file(R"("attention": "full", "full_attention_interval": 3)"),
        file(R"("eos_token_id": [5, 9], "rope_parameters": {"rope_type": "default", "rope_theta": 7e5},
                "partial_rotary_factor": 0.5, "qk_norm": true, "head_dim": null)")}) {
    const ModelConfig c = parse(text);
    const std::string saved = model_config_json(c);
    EXPECT_EQ(saved.find("\"attention\""), std::string::npos);
    EXPECT_HAS(saved, "\"layer_types\"");
    const ModelConfig back = parse(saved);
    EXPECT_EQ(model_config_json(back), saved);
    EXPECT_EQ(back.layer_types, c.layer_types);
    EXPECT_EQ(back.rope_theta, c.rope_theta);
    EXPECT_EQ(back.eos_token_id, c.eos_token_id);
    EXPECT_EQ(back.d(), c.d());
  }
}

// BC-28: the base in the newer nested field, and everything that must not pass in silence.
TEST(Config, RopeBaseWhicheverWayItIsSpelled) {
  const std::string nested = R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000.0})";
  EXPECT_EQ(parse(file(R"("rope_theta": 500000)")).rope_theta, 500000);
  EXPECT_EQ(parse(file(nested)).rope_theta, 500000);
  EXPECT_EQ(parse(file(R"("rope_parameters": {"rope_theta": 500000})")).rope_theta, 500000);
  EXPECT_EQ(parse(file(R"("rope_theta": 500000, )" + nested)).rope_theta, 500000);
  EXPECT_EQ(parse(file(R"("rope_parameters": {"partial_rotary_factor": 0.5})")).rotary_dims(), 16);
  EXPECT_EQ(parse(file(R"("rope_scaling": null, "rope_theta": 500000)")).rope_theta, 500000);
  EXPECT_EQ(parse(file(R"("rope_parameters": null, "rope_theta": 500000)")).rope_theta, 500000);

  EXPECT_HAS(refusal(file(R"("rope_theta": 10000, )" + nested)),
             "tiny.json: rope_theta: says 10000 at the top level and 500000.0 in rope_parameters");
  EXPECT_HAS(
      refusal(file(R"("partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5})")),
      "state it once");
  EXPECT_HAS(refusal(file(R"("rope_parameters": {"rope_type": "spiral"})")),
             "rope_scaling.rope_type: expected one of default, linear, llama3, yarn, got \"spiral\"");
  EXPECT_HAS(refusal(file(R"("rope_parameters": {"rope_theta": 5e5, "factor": 4})")), "factor");
  EXPECT_HAS(refusal(file(R"("rope_parameters": {"rope_theta": "500000"})")), "rope_theta");
  EXPECT_HAS(refusal(file(R"("rope_parameters": 500000)")), "expected an object");
  EXPECT_HAS(refusal(file(R"("rope_scaling": 4)")), "rope_scaling: expected an object or null");
  EXPECT_HAS(refusal(file(R"("rope_scaling": {"rope_type": "dynamic", "factor": 4})")), "got \"dynamic\"");
  EXPECT_HAS(refusal(file(R"("rope_scaling": {"rope_type": "longrope", "long_factor": [1]})")), "longrope");
}

const std::string kLlama3 = R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})";

TEST(Config, RopeScalingWhicheverWayItIsSpelled) {
  const std::string older = R"("rope_theta": 500000, "rope_scaling": )" + kLlama3;
  const std::string newer = R"("rope_parameters": {"rope_theta": 500000, )" + kLlama3.substr(1);
  const ModelConfig c = parse(file(older));
  ASSERT_TRUE(c.rope_scaling);
  EXPECT_EQ(c.rope_scaling->rope_type, RopeType::llama3);
  EXPECT_EQ(c.rope_scaling->factor, 8);
  EXPECT_EQ(c.rope_scaling->high_freq_factor, 4);
  EXPECT_EQ(c.rope_scaling->original_max_position_embeddings, 8192);
  EXPECT_EQ(describe_rope(c),
            "theta 500000, 32 of 32 dims rotated, llama3 scaling by 8 beyond 8192 positions");
  for (const std::string& text : {newer, older + ", " + newer,
                                  R"("rope_theta": 500000, "rope_scaling": {"type": "llama3", )" +
                                      kLlama3.substr(kLlama3.find("\"factor\""))})
    EXPECT_EQ(model_config_json(parse(file(text))), model_config_json(c)) << text;
  EXPECT_EQ(model_config_json(parse(model_config_json(c))), model_config_json(c));
  EXPECT_EQ(model_config_json(parse(
                file(R"("rope_theta": 500000)"),
                {"rope_scaling.rope_type=llama3", "rope_scaling.factor=8", "rope_scaling.low_freq_factor=1",
                 "rope_scaling.high_freq_factor=4", "rope_scaling.original_max_position_embeddings=8192"})),
            model_config_json(c));
  EXPECT_FALSE(parse(file(R"("rope_scaling": {"rope_type": "default"})")).rope_scaling);
  EXPECT_FALSE(parse(file(R"("rope_scaling": {"type": "default", "rope_type": "default"})")).rope_scaling);
  // The context that was scaled is the model's, where nothing else is said.
  EXPECT_EQ(parse(file(R"("max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4})"))
                .rope_scaling->original_max_position_embeddings,
            4096);
}

TEST(Config, RopeScalingThatMeansNothingIsRefused) {
  const auto scaled = [](const std::string& object) { return refusal(file(R"("rope_scaling": )" + object)); };
  EXPECT_HAS(
      refusal(file(
          R"("rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4})")),
      "state it once");
  EXPECT_HAS(scaled(R"({"type": "linear", "rope_type": "yarn", "factor": 2})"),
             "says type \"linear\" and rope_type \"yarn\"");
  EXPECT_HAS(scaled(R"({"factor": 2})"), "expected a rope_type");
  EXPECT_HAS(scaled(R"({"rope_type": "linear", "factor": 0.5})"),
             "rope_scaling.factor: expected a number from 1");
  EXPECT_HAS(scaled(R"({"rope_type": "linear", "factor": "2"})"), "rope_scaling.factor");
  EXPECT_HAS(scaled(R"({"rope_type": "linear", "factor": 1e300})"), "rope_scaling.factor");
  EXPECT_HAS(scaled(R"({"rope_type": "linear", "factor": 2, "beta_fast": 32})"),
             "rope_scaling.beta_fast: expected none: it belongs to type yarn");
  EXPECT_HAS(scaled(R"({"rope_type": "linear", "factor": 2, "original_max_position_embeddings": 64})"),
             "belongs to types llama3 and yarn");
  EXPECT_HAS(scaled(R"({"rope_type": "llama3", "factor": 8, "high_freq_factor": 4})"),
             "rope_scaling.low_freq_factor: expected a number: type llama3 needs it");
  EXPECT_HAS(scaled(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"),
             "rope_scaling.high_freq_factor: expected a number above 4");
  EXPECT_HAS(scaled(R"({"rope_type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 32})"), "beta_fast");
  EXPECT_HAS(scaled(R"({"rope_type": "yarn", "factor": 4, "attention_factor": 0})"), "attention_factor");
  EXPECT_HAS(scaled(R"({"rope_type": "yarn", "factor": 4, "mscale": 1})"),
             "unknown key \"rope_scaling.mscale\"");
  EXPECT_HAS(scaled(R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0})"),
             "original_max_position_embeddings");
}

// Frequencies by hand: theta 10,000 and 8 dims turn 1, 0.1, 0.01 and 0.001 rad a position.
TEST(Config, RopeFrequenciesFollowTheFormulas) {
  const auto frequencies = [](const std::string& scaling) {
    return rope_frequencies(parse(file(R"("head_dim": 8, "rope_theta": 10000, "rope_scaling": )" + scaling)));
  };
  const auto expect = [](const RopeFrequencies& f, const std::vector<double>& radians, double magnitude) {
    ASSERT_EQ(f.radians.size(), radians.size());
    for (size_t i = 0; i < radians.size(); ++i)
      EXPECT_NEAR(f.radians[i], radians[i], 1e-12 * radians[i]) << i;
    EXPECT_NEAR(f.magnitude, magnitude, 1e-12);
  };
  expect(frequencies("null"), {1, 0.1, 0.01, 0.001}, 1);
  expect(frequencies(R"({"type": "linear", "factor": 4})"), {0.25, 0.025, 0.0025, 0.00025}, 1);
  // 96 positions: 15.3 turns (kept), 1.528 (between 1 and 4), 0.15 and 0.015 (scaled).
  const double kept = (9.6 / (2 * M_PI) - 1) / 3;
  expect(frequencies(R"({"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                         "original_max_position_embeddings": 96})"),
         {1, 0.1 * (kept + (1 - kept) / 8), 0.01 / 8, 0.001 / 8}, 1);
  // 64 positions: the ramp goes from pair 0 to pair 2 (the one that turns once is pair 1.008).
  expect(frequencies(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64})"),
         {1, 0.1 * 0.5 + 0.025 * 0.5, 0.0025, 0.00025}, 1 + 0.1 * std::log(4.0));
  const double last = 4 * std::log(64 / (2 * M_PI)) / std::log(10000.0);
  expect(
      frequencies(R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "truncate": false,
                         "attention_factor": 1.5})"),
      {1, 0.1 * (1 - 1 / last) + 0.025 / last, 0.0025, 0.00025}, 1.5);
}

TEST(Config, NoRopeBaseAtAllIsTheDefaultWithAWord) {
  std::vector<std::string> lines;
  const Log log = [&](LogLevel, const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(parse(file(), {}, log).rope_theta, 10000);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_HAS(lines[0], "rope_theta is stated nowhere, using the default 10000");
  lines.clear();
  parse(file(R"("rope_theta": 10000)"), {}, log);
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(describe_rope(parse(file(R"("rope_theta": 640000, "partial_rotary_factor": 0.5)"))),
            "theta 640000, 16 of 32 dims rotated");
}

TEST(Config, RopeBaseReachesTheLogitsAtPosition2000) {
  const tiny::Documents docs({2001});
  auto last = [&](const std::string& text) {
    ModelConfig c = parse(text);
    c.initializer_range = 0.15;
    tiny::Machine m(c, DType::f64, false);
    RaggedBatch batch = docs.batch;
    batch.logit_rows = {2000};
    TrainKv kv;
    const Tensor out(DType::f64, {1, 97});
    m.model->forward(m.rt, batch, docs.tokens, kv, out);
    return tiny::values(out);
  };
  const std::string shape = R"("hysparse_block_size": 64, "hysparse_topk_tokens": 128, )";
  const auto top = last(file(shape + R"("rope_theta": 500000)"));
  const auto nested =
      last(file(shape + R"("rope_parameters": {"rope_type": "default", "rope_theta": 500000})"));
  const auto none = last(file(shape + R"("rope_scaling": null)"));
  EXPECT_EQ(top, nested);
  EXPECT_GT(tiny::max_diff(top, none), 1e-2 * tiny::max_abs(top));
}

// BC-29: stated values win over derived ones; what cannot be is refused by name.
TEST(Config, HeadDim) {
  EXPECT_EQ(parse(file(R"("head_dim": 32)")).d(), 32);
  EXPECT_EQ(parse(file(R"("head_dim": null)")).d(), 16);
  EXPECT_EQ(parse(file("", "head_dim")).d(), 16);
  EXPECT_EQ(parse(file(R"("v_head_dim": 16)")).dv(), 16);
  EXPECT_EQ(parse(file()).dv(), 32);
  EXPECT_HAS(refusal(file(R"("head_dim": 20)")), "head_dim: expected a multiple of 8 from 8 to 256, got 20");
  EXPECT_HAS(refusal(file(R"("head_dim": 264)")), "got 264");
  EXPECT_HAS(refusal(file(R"("head_dim": 0)")), "got 0");
  EXPECT_HAS(refusal(file(R"("head_dim": null, "num_attention_heads": 6)")), "state head_dim");
  EXPECT_HAS(refusal(file(R"("head_dim": null, "hidden_size": 80)")), "derived");
}

TEST(Config, HeadsThatDoNotDivide) {
  EXPECT_HAS(refusal(file(R"("num_attention_heads": 33, "num_key_value_heads": 2)")),
             "num_attention_heads: expected a multiple of num_key_value_heads 2, got 33");
  EXPECT_HAS(refusal(file(R"("num_attention_heads": 3)")), "got 3");
  EXPECT_HAS(refusal(file(R"("num_attention_heads": 34, "num_key_value_heads": 2)")), "/ 16");
  EXPECT_EQ(parse(file("", "num_key_value_heads")).kv_heads(), 4);
  EXPECT_HAS(refusal(file(R"("num_key_value_heads": 0)")), "num_key_value_heads: expected at least 1, got 0");
}

TEST(Config, ImpossibleLayoutsNameTheLayer) {
  EXPECT_HAS(refusal(file(R"("layer_types": ["hysparse_attention", "full_attention", "full_attention",
                            "full_attention", "full_attention"])",
                          "attention")),
             "layer 0 is sparse and has no full layer before it");
  EXPECT_HAS(refusal(file(R"("layer_types": ["sliding_attention", "hysparse_attention", "full_attention",
                            "full_attention", "full_attention"])",
                          "attention")),
             "layer 1 is sparse");
  EXPECT_HAS(refusal(file(R"("layer_types": ["full_attention"])", "attention")), "expected 5 entries");
  EXPECT_HAS(refusal(file(R"("layer_types": ["full_attention", "linear_attention", "full_attention",
                            "full_attention", "full_attention"])",
                          "attention")),
             "layer_types[1]");
  EXPECT_HAS(refusal(file(R"("full_attention_interval": 0)")), "full_attention_interval");
}

TEST(Config, SelectionAndWindow) {
  EXPECT_HAS(refusal(file(R"("sliding_window": 0)")), "sliding_window: expected a whole number from 1");
  EXPECT_EQ(parse(file(R"("sliding_window": 1)")).sliding_window, 1);
  EXPECT_HAS(refusal(file(R"("hysparse_topk_tokens": 0)")), "hysparse_topk_tokens");
  EXPECT_HAS(refusal(file(R"("hysparse_block_size": 0)")), "hysparse_block_size");
  EXPECT_HAS(refusal(file(R"("hysparse_block_size": -64)")), "hysparse_block_size");
  EXPECT_HAS(refusal(file(R"("hysparse_block_size": 48)")),
             "hysparse_topk_tokens: expected a multiple of hysparse_block_size 48, got 1024");
  EXPECT_EQ(parse(file(R"("hysparse_block_size": 1, "hysparse_topk_tokens": 2048)")).entries(), 2048);
  EXPECT_HAS(refusal(file(R"("hysparse_block_size": 1, "hysparse_topk_tokens": 2049)")), "2048 blocks");
  EXPECT_HAS(refusal(file(R"("hysparse_topk_tokens": 64, "hysparse_force_first": true,
                             "hysparse_force_diagonal": true)")),
             "2 are forced");
  EXPECT_HAS(refusal(file(R"("hysparse_gate": "heads")")), "head");
  EXPECT_HAS(refusal(file(R"("hysparse_window": "both")")), "own");
}

TEST(Config, CountsOfAnotherTypeAndUnknownKeys) {
  EXPECT_HAS(refusal(file(R"("num_hidden_layers": "5")")), "num_hidden_layers: expected an integer");
  EXPECT_HAS(refusal(file(R"("num_hidden_layers": 4.0)")), "num_hidden_layers");
  EXPECT_HAS(refusal(file(R"("num_hidden_layers": true)")), "num_hidden_layers");
  EXPECT_HAS(refusal(file(R"("num_hidden_layers": null)")), "num_hidden_layers");
  EXPECT_HAS(refusal(file(R"("num_hiden_layers": 5)")), "did you mean \"num_hidden_layers\"");
  EXPECT_HAS(refusal(file(R"("num_hidden_layers": 5, "num_hidden_layers": 5)")), "num_hidden_layers");
  EXPECT_HAS(refusal("[]"), "tiny.json");
  EXPECT_HAS(refusal("{"), "tiny.json");
  EXPECT_HAS(refusal(file(), {"num_layers"}), "key=value");
  EXPECT_HAS(refusal(file(), {"hiden_size=64"}), "hidden_size");
}

TEST(Config, HugeNumbersAreRefusedRatherThanOverflow) {
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
        "v_head_dim", "intermediate_size", "vocab_size", "max_position_embeddings", "sliding_window",
        "hysparse_block_size", "hysparse_topk_tokens", "full_attention_interval", "n_routed_experts",
        "first_k_dense_replace"})
    for (const char* value : {"9223372036854775807", "4611686018427387904", "1099511627776", "-1"})
      EXPECT_NE(refusal(file(fmt::format("\"{}\": {}", key, value))), "(accepted)") << key << " " << value;
  for (const char* more :
       {R"("rope_theta": 0)", R"("rope_theta": -1)", R"("rope_theta": 1e300)", R"("rms_norm_eps": 0)",
        R"("initializer_range": -0.1)", R"("partial_rotary_factor": 0)", R"("partial_rotary_factor": 1.5)",
        R"("partial_rotary_factor": 0.1)"})
    EXPECT_NE(refusal(file(more)), "(accepted)") << more;
}

TEST(Config, TokenIds) {
  EXPECT_EQ(parse(file(R"("eos_token_id": [5, 9])")).eos_token_id, (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(parse(file(R"("eos_token_id": 5)")).eos_token_id, (std::vector<int64_t>{5}));
  EXPECT_HAS(refusal(file(R"("eos_token_id": [5, 97])")),
             "eos_token_id: expected a whole number from 0 to 96");
  EXPECT_HAS(refusal(file(R"("bos_token_id": -1)")), "bos_token_id");
  EXPECT_HAS(refusal(file(R"("vocab_size": 0)")), "vocab_size");
}

TEST(Config, Experts) {
  const std::string moe = R"("n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16)";
  EXPECT_TRUE(parse(file(moe)).moe_layer(0));
  const ModelConfig dense_first = parse(file(moe + R"(, "first_k_dense_replace": 1)"));
  EXPECT_FALSE(dense_first.moe_layer(0));
  EXPECT_TRUE(dense_first.moe_layer(1));
  EXPECT_EQ(parse(file(moe + R"(, "intermediate_size": 0)")).intermediate_size, 0);
  EXPECT_HAS(refusal(file(R"("n_routed_experts": 8, "num_experts_per_tok": 9, "moe_intermediate_size": 16)")),
             "num_experts_per_tok: expected a whole number from 1 to 8");
  EXPECT_HAS(refusal(file(R"("n_routed_experts": 8, "num_experts_per_tok": 2)")), "moe_intermediate_size");
  EXPECT_HAS(refusal(file(R"("num_experts_per_tok": 2)")), "n_routed_experts is 0");
  EXPECT_HAS(refusal(file(moe + R"(, "first_k_dense_replace": 6)")), "first_k_dense_replace");
  EXPECT_HAS(refusal(file(R"("intermediate_size": 0)")), "intermediate_size");
}

std::string hugging_face(const std::string& type, const std::string& more = "") {
  return R"({"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "hidden_act": "silu", "hidden_size": 64, "initializer_range": 0.02, "intermediate_size": 96,
            "max_position_embeddings": 2048, "num_attention_heads": 4, "num_hidden_layers": 3,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
            "use_cache": true, "vocab_size": 97, "model_type": ")" +
         type + "\"" + (more.empty() ? "" : ", " + more) + "}";
}

TEST(Config, HuggingFaceFamilies) {
  const ModelConfig llama = parse(hugging_face("llama", R"("rope_theta": 500000.0, "mlp_bias": false,
                                                         "attention_bias": false, "pretraining_tp": 1)"));
  EXPECT_EQ(llama.kind(), AttentionKind::full);
  EXPECT_EQ(llama.rope_theta, 500000);
  EXPECT_EQ(llama.rms_norm_eps, 1e-5);
  EXPECT_TRUE(llama.tie_word_embeddings);
  EXPECT_FALSE(llama.attention_bias || llama.qk_norm);
  const ModelConfig qwen2 =
      parse(hugging_face("qwen2", R"("sliding_window": 131072, "use_sliding_window": false,
                                                         "max_window_layers": 28, "rope_theta": 1e6)"));
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_EQ(qwen2.sliding_window, ModelConfig{}.sliding_window);
  const ModelConfig qwen3 = parse(
      hugging_face("qwen3", R"("head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                                   "layer_types": ["full_attention", "full_attention", "full_attention"])"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.d(), 32);
  EXPECT_EQ(qwen3.rope_theta, 1e6);
  const ModelConfig mimo = parse(hugging_face("mimo", R"("rope_theta": 640000, "attention_bias": true,
                                                       "num_nextn_predict_layers": 1, "auto_map": {"AutoConfig": "x"})"));
  EXPECT_TRUE(mimo.attention_bias);
  EXPECT_EQ(mimo.kind(), AttentionKind::full);
  // From there on it is one of ours.
  EXPECT_EQ(parse(hugging_face("llama"), {"attention=hysparse"}).kind(), AttentionKind::hysparse);
  EXPECT_EQ(parse(model_config_json(qwen3)).qk_norm, true);
}

TEST(Config, HuggingFaceKeysThatChangeTheModelAreRefused) {
  EXPECT_HAS(refusal(hugging_face("gpt2")), "model_type: expected hysparse, llama, qwen2, qwen3, mimo");
  EXPECT_HAS(refusal(hugging_face("llama", R"("attention_multiplier": 2)")), "attention_multiplier");
  EXPECT_HAS(refusal(hugging_face("llama", R"("mlp_bias": true)")), "mlp_bias");
  EXPECT_HAS(refusal(hugging_face("llama", R"("attention_bias": true)")), "o_proj");
  EXPECT_HAS(refusal(hugging_face("qwen3", R"("attention_bias": true)")), "o_proj");
  EXPECT_HAS(refusal(hugging_face("qwen2", R"("use_sliding_window": true)")), "use_sliding_window");
  EXPECT_HAS(refusal(hugging_face("llama", R"("layer_types": ["full_attention", "sliding_attention",
                                                 "full_attention"])")),
             "layer 1");
  EXPECT_EQ(parse(hugging_face("llama", R"("rope_scaling": )" + kLlama3)).rope_scaling->factor, 8);
  EXPECT_HAS(refusal(hugging_face("qwen2", R"("rope_scaling": {"type": "mrope", "mrope_section": [1]})")),
             "mrope");
  EXPECT_HAS(refusal(hugging_face("llama", R"("rope_scaling": {"factor": 2})")), "rope_scaling");
  EXPECT_HAS(refusal(hugging_face("llama", R"("rope_interleaved": true)")), "halves");
  EXPECT_HAS(refusal(hugging_face("qwen2", R"("quantization_config": {"quant_method": "awq"})")),
             "quantization_config: expected null");
}

TEST(Config, TheArchitectureOfAHuggingFaceModelCounts) {
  const std::string untyped = R"({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2,
    "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 97})";
  EXPECT_TRUE(parse(untyped).qk_norm);
  EXPECT_HAS(refusal(hugging_face("llama", R"("architectures": ["LlamaForSequenceClassification"])")),
             "architectures: expected \"LlamaForCausalLM\"");
  EXPECT_HAS(refusal(R"({"architectures": ["GPT2LMHeadModel"], "n_layer": 2})"),
             "architectures: expected one of");
  EXPECT_EQ(parse(hugging_face("llama", R"("architectures": ["LlamaForCausalLM"])")).kind(),
            AttentionKind::full);
}

}  // namespace
}  // namespace hysparse
