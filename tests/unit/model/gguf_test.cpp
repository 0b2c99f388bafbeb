// Models in GGUF files: names, row order and metadata both ways, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/gguf_model.h"
#include "unit/model/tiny.h"

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text)

namespace hysparse {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(HYSPARSE_SOURCE_DIR) / "tests/data/foreign";

std::vector<float> all_rows(const TensorSource& s) {
  std::vector<float> out(static_cast<size_t>(s.rows() * s.row_size()));
  s.read(0, s.rows(), out.data());
  return out;
}

class GgufModel : public ::testing::Test {
 protected:
  GgufModel() : path(fs::temp_directory_path() / fmt::format("hysparse-gguf-model-{}.gguf", getpid())) {}
  ~GgufModel() override { fs::remove(path); }

  struct Directory {
    explicit Directory(const fs::path& dir)
        : config(load_model_config(dir)), files(dir), tensors(model_dir_tensors(dir, files, config)) {}
    ModelConfig config;
    SafetensorsSet files;
    std::vector<TensorSource> tensors;
  };
  void write(const Directory& d, GgufDType as) const {
    GgufWriter w;
    add_gguf_model(w, d.config, d.tensors, as, "name", {});
    w.write(path);
  }
  // A tiny llama of zeros; `change` may alter the metadata that is written and the tensors.
  struct Parts {
    std::map<std::string, std::function<void(GgufWriter&, const std::string&)>> keys;
    std::map<std::string, std::vector<int64_t>> tensors;
    void number(const std::string& key, int64_t n) {
      keys[key] = [n](GgufWriter& w, const std::string& k) { w.add_u32(k, n); };
    }
    void real(const std::string& key, double x) {
      keys[key] = [x](GgufWriter& w, const std::string& k) { w.add_f32(k, x); };
    }
    void text(const std::string& key, const std::string& s) {
      keys[key] = [s](GgufWriter& w, const std::string& k) { w.add_text(k, s); };
    }
  };
  std::string result(const std::function<void(Parts&)>& change) const {
    Parts p;
    p.text("general.architecture", "llama");
    p.number("llama.block_count", 1);
    p.number("llama.context_length", 64);
    p.number("llama.embedding_length", 32);
    p.number("llama.feed_forward_length", 40);
    p.number("llama.attention.head_count", 4);
    p.number("llama.attention.head_count_kv", 2);
    p.real("llama.attention.layer_norm_rms_epsilon", 1e-5);
    p.tensors = {{"token_embd.weight", {61, 32}},        {"output_norm.weight", {32}},
                 {"blk.0.attn_norm.weight", {32}},       {"blk.0.attn_q.weight", {32, 32}},
                 {"blk.0.attn_k.weight", {16, 32}},      {"blk.0.attn_v.weight", {16, 32}},
                 {"blk.0.attn_output.weight", {32, 32}}, {"blk.0.ffn_norm.weight", {32}},
                 {"blk.0.ffn_gate.weight", {40, 32}},    {"blk.0.ffn_up.weight", {40, 32}},
                 {"blk.0.ffn_down.weight", {32, 40}}};
    change(p);
    GgufWriter w;
    for (const auto& [key, add] : p.keys) add(w, key);
    for (const auto& [name, shape] : p.tensors)
      w.add({name, shape,
             [row = shape.size() > 1 ? shape[1] : 1](int64_t, int64_t n, float* out) {
               std::fill_n(out, n * row, 0.0f);
             }},
            GgufDType::f32);
    w.write(path);
    try {
      const GgufFile file(path);
      gguf_tensors(file, gguf_config(file));
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
      return e.what();
    }
    return "(accepted)";
  }
  fs::path path;
};

TEST_F(GgufModel, EveryFamilyComesBackBitForBit) {
  for (const auto& [family, architecture] : {std::pair("llama", "llama"),
                                             {"llama-tied", "llama"},
                                             {"qwen2", "qwen2"},
                                             {"qwen3", "qwen3"},
                                             {"mimo", "qwen2"},
                                             {"linear", "llama"},
                                             {"yarn", "qwen2"}}) {
    const Directory d(kFolder / family);
    for (const GgufDType as : {GgufDType::f32, GgufDType::bf16}) {
      write(d, as);
      const GgufFile file(path);
      EXPECT_EQ(file.text("general.architecture"), architecture);
      ModelConfig config = gguf_config(file);
      EXPECT_EQ(config.rms_norm_eps, 1e-5);
      EXPECT_EQ(config.rope_theta, d.config.rope_theta);
      EXPECT_TRUE(fits_bf16(file) == (as == GgufDType::bf16));
      // What GGUF does not say of a model stays at its default.
      config.head_dim = d.config.head_dim;
      config.eos_token_id = d.config.eos_token_id;
      config.bos_token_id = d.config.bos_token_id;
      EXPECT_EQ(model_config_json(config), model_config_json(d.config)) << family;
      const std::vector<TensorSource> got = gguf_tensors(file, config);
      ASSERT_EQ(got.size(), d.tensors.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].name, d.tensors[i].name);
        EXPECT_EQ(all_rows(got[i]), all_rows(d.tensors[i])) << family << " " << got[i].name;
      }
    }
  }
}

// llama.cpp's llama rotates dims 2i and 2i+1 of a head together, transformers' i and i + d/2.
TEST_F(GgufModel, OnlyALlamasQueriesAndKeysAreReordered) {
  const auto rows_of = [&](const char* family, const std::string& theirs, const std::string& ours) {
    const Directory d(kFolder / family);
    write(d, GgufDType::f32);
    const GgufFile file(path);
    return std::pair(all_rows(file.source(*file.find(theirs))), all_rows(d.files.source(ours)));
  };
  const auto [a, b] = rows_of("llama", "blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight");
  for (size_t head = 0; head < 2; ++head)
    for (size_t pair = 0; pair < 4; ++pair)
      for (size_t half = 0; half < 2; ++half)
        for (size_t column = 0; column < 32; ++column)
          ASSERT_EQ(a[(head * 8 + 2 * pair + half) * 32 + column],
                    b[(head * 8 + half * 4 + pair) * 32 + column]);
  for (const auto& [theirs, ours] : {std::pair("attn_v", "v_proj"), {"attn_output", "o_proj"}}) {
    const auto [x, y] = rows_of("llama", fmt::format("blk.0.{}.weight", theirs),
                                fmt::format("model.layers.0.self_attn.{}.weight", ours));
    EXPECT_EQ(x, y);
  }
  for (const char* part : {"weight", "bias"}) {
    const auto [x, y] = rows_of("qwen2", fmt::format("blk.0.attn_q.{}", part),
                                fmt::format("model.layers.0.self_attn.q_proj.{}", part));
    EXPECT_EQ(x, y);
  }
}

TEST_F(GgufModel, QuantisedWhereRowsAllowIt) {
  const Directory d(kFolder / "llama");
  std::string said;
  GgufWriter w;
  add_gguf_model(w, d.config, d.tensors, GgufDType::q8_0, "name",
                 [&](LogLevel, const std::string& line) { said += line; });
  w.write(path);
  const GgufFile file(path);
  EXPECT_EQ(file.find("blk.0.ffn_up.weight")->dtype, GgufDType::q8_0);
  EXPECT_EQ(file.find("blk.0.ffn_down.weight")->dtype, GgufDType::f16);  // rows of 40
  EXPECT_EQ(file.find("blk.0.ffn_norm.weight")->dtype, GgufDType::f32);
  EXPECT_HAS(said, "2 tensors have rows that are no multiple of 32 and are stored as F16");
  gguf_tensors(file, gguf_config(file));
}

TEST_F(GgufModel, WhatWouldBeAnotherModelIsRefused) {
  EXPECT_EQ(result([](Parts&) {}), "(accepted)");
  EXPECT_HAS(result([](Parts& p) { p.text("general.architecture", "gemma2"); }),
             "general.architecture: expected llama, qwen2, qwen3, got \"gemma2\"");
  EXPECT_HAS(result([](Parts& p) { p.keys.erase("general.architecture"); }), "got nothing");
  EXPECT_HAS(result([](Parts& p) { p.keys.erase("llama.block_count"); }),
             "llama.block_count: expected a whole number");
  EXPECT_HAS(result([](Parts& p) { p.text("llama.block_count", "1"); }),
             "expected a whole number, got \"1\"");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.block_count", 4000000000); }), "num_hidden_layers");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.attention.head_count", 0); }), "num_attention_heads");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.attention.head_count", 3); }), "num_attention_heads");
  EXPECT_HAS(result([](Parts& p) { p.real("llama.attention.layer_norm_rms_epsilon", NAN); }),
             "a finite number");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.vocab_size", 62); }),
             "expected 61, the rows of token_embd.weight");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.attention.sliding_window", 16); }),
             "unknown key \"llama.attention.sliding_window\"");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.expert_count", 8); }), "mixture-of-experts");
  EXPECT_HAS(result([](Parts& p) { p.number("llama.rope.dimension_count", 4); }),
             "expected 8, all dims of a head");
  EXPECT_HAS(result([](Parts& p) { p.text("llama.rope.scaling.type", "longrope"); }),
             "llama.rope.scaling.type: expected none, linear or yarn, got \"longrope\"");
  EXPECT_HAS(result([](Parts& p) { p.real("llama.rope.scaling.factor", -4); }), "rope_scaling.factor");
  EXPECT_HAS(result([](Parts& p) { p.real("llama.rope.scaling.attn_factor", 2); }), "unknown key");
  EXPECT_HAS(result([](Parts& p) { p.tensors["rope_freqs.weight"] = {5}; }), "expected shape [4], got [5]");
  EXPECT_HAS(result([](Parts& p) { p.tensors["rope_freqs.weight"] = {4}; }), "otherwise than Llama 3 does");
  EXPECT_HAS(result([](Parts& p) {
               p.real("llama.rope.scaling.factor", 4);
               p.tensors["rope_freqs.weight"] = {4};
             }),
             "is there, and rope.scaling.type is, too");
  EXPECT_HAS(result([](Parts& p) { p.tensors["blk.0.attn_output.bias"] = {32}; }),
             "tensor \"blk.0.attn_output.bias\" is none of a llama model's");
  EXPECT_HAS(result([](Parts& p) { p.tensors.erase("blk.0.ffn_up.weight"); }),
             "has no tensor \"blk.0.ffn_up.weight\"");
  EXPECT_HAS(result([](Parts& p) { p.tensors.erase("token_embd.weight"); }),
             "has no tensor \"token_embd.weight\"");
  EXPECT_HAS(result([](Parts& p) {
               p.tensors["blk.0.attn_k.weight"] = {32, 32};
             }),
             "expected shape [16, 32] by the metadata, got [32, 32]");
  EXPECT_HAS(result([](Parts& p) { p.number("tokenizer.ggml.eos_token_id", 61); }), "eos_token_id");
  EXPECT_EQ(result([](Parts& p) {
              p.keys["llama.feed_forward_length"] = [](GgufWriter& w, const std::string& k) {
                w.add_i32s(k, {40});
              };
              p.text("llama.rope.scaling.type", "none");
            }),
            "(accepted)");
  EXPECT_HAS(result([](Parts& p) {
               p.keys["llama.attention.head_count_kv"] = [](GgufWriter& w, const std::string& k) {
                 w.add_i32s(k, {2, 4});
               };
             }),
             "the same whole number for every layer");
}

// A factor without a type is linear, as llama.cpp reads it.
TEST_F(GgufModel, ScaledRotaryEmbeddings) {
  const auto scaling = [&](const std::function<void(Parts&)>& change) {
    EXPECT_EQ(result(change), "(accepted)");
    return gguf_config(GgufFile(path)).rope_scaling;
  };
  EXPECT_FALSE(scaling([](Parts& p) { p.real("llama.rope.scaling.factor", 0); }));
  EXPECT_FALSE(scaling([](Parts& p) { p.text("llama.rope.scaling.type", "yarn"); }));
  const auto linear = scaling([](Parts& p) { p.real("llama.rope.scaling.factor", 2.5); });
  EXPECT_EQ(linear->rope_type, RopeType::linear);
  EXPECT_EQ(linear->factor, 2.5);
  const auto yarn = scaling([](Parts& p) {
    p.text("llama.rope.scaling.type", "yarn");
    p.real("llama.rope.scaling.factor", 4);
  });
  EXPECT_EQ(yarn->rope_type, RopeType::yarn);
  EXPECT_EQ(yarn->original_max_position_embeddings, 64);  // the context of the file
}

// Llama 3's is a tensor of what each frequency is divided by, as llama.cpp's converter writes it.
TEST_F(GgufModel, TheDivisorsOfLlama3ComeBackAsItsScaling) {
  for (const auto& [factor, original, dims] :
       {std::tuple(8.0, 8192, 128), {32.0, 8192, 64}, {8.0, 131072, 80}, {4.0, 1024, 8}}) {
    const RopeScaling scaling{RopeType::llama3, factor, original, 1.0, 4.0, {}, {}, {}, {}};
    ModelConfig c = tiny::config(AttentionKind::full, [&scaling, d = dims](ModelConfig& k) {
      k.head_dim = d;
      k.rope_theta = 500000;
      k.rope_scaling = scaling;
    });
    tiny::Machine m(c, DType::f32, false);
    std::vector<TensorSource> tensors;
    for (Weight* w : m.weights.all()) {
      const TensorView v = w->value;
      std::vector<int64_t> shape(v.shape.begin(), v.shape.begin() + v.rank);
      tensors.push_back({w->name, shape, [v](int64_t first, int64_t count, float* to) {
                           const int64_t row = v.rank > 1 ? v.dim(1) : 1;
                           std::copy_n(v.as<float>() + first * row, count * row, to);
                         }});
    }
    GgufWriter w;
    add_gguf_model(w, c, tensors, GgufDType::f32, "name", {});
    w.write(path);
    const GgufFile file(path);
    const TensorSource divisors = file.source(*file.find("rope_freqs.weight"));
    const std::vector<float> values = all_rows(divisors);
    ASSERT_EQ(int(values.size()), dims / 2);
    EXPECT_EQ(values.front(), 1);  // fast pairs are kept, slow ones are divided
    EXPECT_EQ(values.back(), float(factor));
    const ModelConfig back = gguf_config(file);
    ASSERT_TRUE(back.rope_scaling);
    EXPECT_EQ(back.rope_scaling->rope_type, RopeType::llama3);
    EXPECT_EQ(back.rope_scaling->factor, factor);
    EXPECT_EQ(back.rope_scaling->original_max_position_embeddings, original);
    EXPECT_EQ(gguf_tensors(file, back).size(), tensors.size());
  }
}

TEST_F(GgufModel, WhatLlamaCppCannotRunIsNotExported) {
  const auto refusal = [](const ModelConfig& c) {
    GgufWriter w;
    try {
      add_gguf_model(w, c, {}, GgufDType::f32, "name", {});
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      return std::string(e.what());
    }
    return std::string("(accepted)");
  };
  const auto full = [](const std::function<void(ModelConfig&)>& change) {
    return tiny::config(AttentionKind::full, change);
  };
  EXPECT_HAS(refusal(tiny::config()), "this model is hysparse (its full twin can be exported");
  EXPECT_HAS(refusal(tiny::config(AttentionKind::window)), "this model is window");
  EXPECT_EQ(refusal(full([](ModelConfig&) {})), "(accepted)");
  EXPECT_HAS(refusal(full([](ModelConfig& c) { c.qk_norm = c.attention_bias = true; })), "both qk_norm and");
  EXPECT_HAS(refusal(full([](ModelConfig& c) { c.full_attention_gate = true; })), "full_attention_gate");
  EXPECT_HAS(refusal(full([](ModelConfig& c) { c.v_head_dim = 16; })), "v_head_dim");
  EXPECT_HAS(refusal(full([](ModelConfig& c) { c.partial_rotary_factor = 0.5; })), "rotated");
  EXPECT_HAS(refusal(full([](ModelConfig& c) {
               c.qk_norm = true;
               c.rope_scaling = RopeScaling{RopeType::llama3, 8, 8192, 1.0, 4.0, {}, {}, {}, {}};
             })),
             "llama3 in models without biases");
  EXPECT_HAS(refusal(full([](ModelConfig& c) {
               c.rope_scaling = RopeScaling{RopeType::yarn, 8, 8192, {}, {}, 1.5, {}, {}, {}};
             })),
             "attention_factor");
}

}  // namespace
}  // namespace hysparse
