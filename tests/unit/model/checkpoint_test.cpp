// Model directories: a round trip keeps every value; what does not belong together is refused by name.
#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "unit/model/tiny.h"

#define EXPECT_HAS(text, part) EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, text)

namespace hysparse {
namespace {

namespace fs = std::filesystem;

class ModelDir : public ::testing::Test {
 protected:
  ModelDir() {
    root = fs::temp_directory_path() /
           fmt::format("hysparse-{}-{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                       getpid());
    fs::create_directories(root);
  }
  ~ModelDir() override { fs::remove_all(root); }

  static ModelConfig config(const std::function<void(ModelConfig&)>& change = {}) {
    return tiny::config(AttentionKind::hysparse, [&](ModelConfig& c) {
      c.num_hidden_layers = 5;
      c.eos_token_id = {5, 9};
      c.rope_theta = 500000;
      if (change) change(c);
    });
  }
  // A directory with this config and its weights; the tensors can be tampered with before they are written.
  fs::path make(const ModelConfig& c, const std::function<void(std::vector<NamedTensor>&)>& tamper = {}) {
    tiny::Machine m(c, DType::f32, false);
    const fs::path dir = root / fmt::format("model{}", made_++);
    save_model_dir(dir, c, m.weights, DType::f32);
    if (tamper) {
      std::vector<NamedTensor> tensors;
      for (Weight* w : m.weights.all()) tensors.push_back({w->name, w->value, DType::f32});
      tamper(tensors);
      write_safetensors_set(dir, tensors);
    }
    return dir;
  }
  static std::string refusal(const fs::path& dir) {
    try {
      load_model_dir(dir);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input) << e.what();
      return e.what();
    }
    return "(accepted)";
  }
  static void replace(const fs::path& file, const std::string& from, const std::string& to) {
    std::string text = read_file(file);
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(file, text);
  }

  fs::path root;
  int made_ = 0;
};

TEST_F(ModelDir, RoundTripKeepsEveryValue) {
  const ModelConfig c = config([](ModelConfig& k) { k.attention_bias = k.qk_norm = true; });
  tiny::Machine m(c, DType::f32, false);
  save_model_dir(root / "m", c, m.weights, DType::f32);
  std::vector<std::string> lines;
  LoadOptions options;
  options.log = [&](LogLevel, const std::string& line) { lines.push_back(line); };
  const LoadedModel loaded = load_model_dir(root / "m", options);
  EXPECT_EQ(model_config_json(loaded.config), model_config_json(c));
  for (Weight* w : m.weights.all())
    EXPECT_EQ(tiny::values(w->value), tiny::values(loaded.weights->find(w->name)->value)) << w->name;
  // The effective rotary embedding is said at load.
  ASSERT_FALSE(lines.empty());
  EXPECT_HAS(lines.back(), "RoPE theta 500000, 32 of 32 dims rotated");
  EXPECT_EQ(loaded.config.eos_token_id, (std::vector<int64_t>{5, 9}));
}

TEST_F(ModelDir, OneFileServesEveryDType) {
  const ModelConfig c = config();
  tiny::Machine m(c, DType::bf16, true);
  save_model_dir(root / "f32", c, m.weights, DType::f32);    // of the masters
  save_model_dir(root / "bf16", c, m.weights, DType::bf16);  // rounded
  LoadOptions as_f32, as_f64, as_training;
  as_f64.weights.compute = DType::f64;
  as_training.weights = {DType::bf16, true};
  const LoadedModel full = load_model_dir(root / "f32", as_f32), wide = load_model_dir(root / "f32", as_f64),
                    train = load_model_dir(root / "f32", as_training),
                    rounded = load_model_dir(root / "bf16", as_f32);
  for (Weight* w : m.weights.all()) {
    EXPECT_EQ(tiny::values(full.weights->find(w->name)->value), tiny::values(w->master)) << w->name;
    EXPECT_EQ(tiny::values(wide.weights->find(w->name)->value), tiny::values(w->master)) << w->name;
    EXPECT_EQ(tiny::values(train.weights->find(w->name)->master), tiny::values(w->master)) << w->name;
    EXPECT_EQ(tiny::values(train.weights->find(w->name)->value), tiny::values(w->value)) << w->name;
    if (w->value.dtype == DType::bf16) {
      EXPECT_EQ(tiny::values(rounded.weights->find(w->name)->value), tiny::values(w->value)) << w->name;
    }
  }
}

TEST_F(ModelDir, TensorsThatDoNotFitTheConfigAreNamed) {
  const ModelConfig c = config();
  EXPECT_HAS(refusal(make(c, [](auto& t) { t.erase(t.begin() + 3); })),
             "model.layers.0.self_attn.k_proj.weight");
  EXPECT_HAS(refusal(make(c, [](auto& t) { t.resize(4); })),
             "and ");  // many: the first ones and how many more
  EXPECT_HAS(refusal(make(c,
                          [](auto& t) {
                            t.push_back({"model.layers.0.self_attn.sinks", t[1].tensor, DType::f32});
                          })),
             "that the config does not know: model.layers.0.self_attn.sinks");
  const std::string shape = refusal(make(c, [](auto& t) { t[2].tensor = t[2].tensor.rows(0, 64); }));
  EXPECT_HAS(shape, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_HAS(shape, "expected shape [128, 64] by the config, got [64, 64]");
  // A buffer that follows from the config is no reason to refuse.
  EXPECT_EQ(
      refusal(make(c,
                   [](auto& t) {
                     t.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", t[1].tensor, DType::f32});
                   })),
      "(accepted)");
}

// BC-29: head_dim that is derived by mistake meets the stored shapes.
TEST_F(ModelDir, StatedHeadDimWins) {
  const fs::path dir = make(config());
  EXPECT_EQ(load_model_dir(dir).weights->find("model.layers.0.self_attn.q_proj.weight")->value.dim(0),
            4 * 32);
  replace(dir / "config.json", "\"head_dim\": 32", "\"head_dim\": null");
  EXPECT_HAS(refusal(dir), "expected shape [64, 64] by the config, got [128, 64]");
}

TEST_F(ModelDir, TheTieFlagMustFitTheTensors) {
  const ModelConfig untied = config(), tied = config([](ModelConfig&c) { c.tie_word_embeddings = true; });
  const auto drop_head = [](auto& t) { t.pop_back(); };
  const auto add_head = [](auto& t) { t.push_back({"lm_head.weight", t[0].tensor, DType::f32}); };
  Tensor other(DType::f32, {97, 64});
  const auto add_other_head = [&](auto& t) { t.push_back({"lm_head.weight", other, DType::f32}); };

  EXPECT_EQ(refusal(make(untied)), "(accepted)");
  EXPECT_EQ(refusal(make(tied)), "(accepted)");
  EXPECT_EQ(refusal(make(tied, add_head)), "(accepted)");  // the very embedding
  EXPECT_HAS(refusal(make(tied, add_other_head)), "tie_word_embeddings is true, but lm_head.weight is there");
  EXPECT_HAS(refusal(make(untied, drop_head)), "lm_head.weight is missing, and tie_word_embeddings is false");

  // Tied: the head is the embedding, and its gradient goes there.
  LoadOptions options;
  options.weights = {DType::f32, true};
  LoadedModel loaded = load_model_dir(make(tied), options);
  EXPECT_EQ(&loaded.weights->lm_head(), &loaded.weights->embed_tokens);
  EXPECT_EQ(loaded.weights->find("lm_head.weight"), nullptr);
}

TEST_F(ModelDir, SavingReplacesAsASetAndCopiesTheTokenizer) {
  const ModelConfig c = config();
  tiny::Machine m(c, DType::f32, false);
  fs::create_directories(root / "tok");
  write_file_atomic(root / "tok" / "tokenizer.json", "{\"a\": 1}");
  write_file_atomic(root / "tok" / "notes.txt", "not a tokenizer file");
  save_model_dir(root / "m", c, m.weights, DType::f32, root / "tok");
  EXPECT_EQ(read_file(root / "m" / "tokenizer.json"), "{\"a\": 1}");
  EXPECT_FALSE(fs::exists(root / "m" / "notes.txt"));
  tiny::set(m.weights.norm.value, 0, 42);
  save_model_dir(root / "m", c, m.weights, DType::f32, root / "tok");
  EXPECT_EQ(tiny::get(load_model_dir(root / "m").weights->norm.value, 0), 42);
  int entries = 0;
  for (const auto& e : fs::directory_iterator(root)) entries += e.path().filename() != "tok";
  EXPECT_EQ(entries, 1);  // nothing temporary is left
}

TEST_F(ModelDir, ConfigOfADirectoryOrAFileWithOverrides) {
  const fs::path dir = make(config());
  EXPECT_EQ(load_model_config(dir).layer_types, load_model_config(dir / "config.json").layer_types);
  EXPECT_EQ(load_model_config(dir, {"attention=full"}).kind(), AttentionKind::full);
  EXPECT_EQ(load_model_config(dir).d(), 32);
  EXPECT_HAS(refusal(root / "nowhere"), "nowhere");
  fs::remove(dir / "config.json");
  EXPECT_HAS(refusal(dir), "config.json");
}

// BC-29: any listed end id ends a text, and Hugging Face lists them in a file of their own.
TEST_F(ModelDir, EndIdsOfTheGenerationConfigAreAdded) {
  const fs::path dir = make(config());
  const auto ids = [&](const std::string& text) {
    write_file_atomic(dir / "generation_config.json", text);
    return load_model_dir(dir).config.eos_token_id;
  };
  EXPECT_EQ(ids(R"({"eos_token_id": [9, 11, 12], "temperature": 0.6})"),
            (std::vector<int64_t>{5, 9, 11, 12}));
  EXPECT_EQ(ids(R"({"eos_token_id": 7})"), (std::vector<int64_t>{5, 9, 7}));
  EXPECT_EQ(ids(R"({"eos_token_id": null})"), (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(ids("{}"), (std::vector<int64_t>{5, 9}));
  EXPECT_EQ(load_model_config(dir / "config.json").eos_token_id, (std::vector<int64_t>{5, 9}));
  for (const auto& [text, message] :
       {std::pair(R"({"eos_token_id": [97]})", "eos_token_id: expected a whole number from 0 to 96"),
        {R"({"eos_token_id": "9"})", "eos_token_id"},
        {"[]", "a JSON object"},
        {"{", "generation_config.json"}}) {
    write_file_atomic(dir / "generation_config.json", text);
    const std::string said = refusal(dir);
    EXPECT_HAS(said, message);
    EXPECT_HAS(said, "generation_config.json");
  }
}

TEST_F(ModelDir, AnExpertConfigNeedsItsExperts) {
  const fs::path dir = make(config());
  replace(dir / "config.json", "\"n_routed_experts\": 0", "\"n_routed_experts\": 4");
  replace(dir / "config.json", "\"num_experts_per_tok\": 0", "\"num_experts_per_tok\": 2");
  replace(dir / "config.json", "\"moe_intermediate_size\": 0", "\"moe_intermediate_size\": 16");
  EXPECT_HAS(refusal(dir), "mlp.experts.0.gate_proj.weight");
  const ModelConfig c = load_model_config(dir);
  try {
    check_model_dir(dir, c);
    FAIL();
  } catch (const Error& e) {
    EXPECT_HAS(std::string(e.what()), "mlp.experts.0.gate_proj.weight");
  }
}

}  // namespace
}  // namespace hysparse
