// A tiny random model on disk, and handles that free themselves.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "hysparse/hysparse.h"
#include "model/checkpoint.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::tests {

namespace fs = std::filesystem;

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.num_hidden_layers = 5;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 48;
  c.vocab_size = 310;  // ten ids more than the tokenizer has
  c.max_position_embeddings = 256;
  c.sliding_window = 8;
  c.hysparse_block_size = 8;
  c.hysparse_topk_tokens = 16;
  c.initializer_range = 0.3;
  c.attention = AttentionKind::hysparse;
  c.finalize("tiny");
  return c;
}

// Written once, removed at the end of the program.
class Files {
 public:
  static const Files& get() {
    static const Files files;
    return files;
  }
  ~Files() { fs::remove_all(root); }
  std::string model() const { return (root / "model").string(); }
  std::string wordless() const { return (root / "wordless").string(); }  // no tokenizer
  std::string tokenizer() const { return (root / "tok").string(); }
  // The model with a tokenizer that puts <|endoftext|> before every text.
  std::string with_bos() const { return (root / "with_bos").string(); }

 private:
  Files() : root(fs::temp_directory_path() / ("hysparse-capi-" + std::to_string(std::random_device{}()))) {
    fs::create_directories(root);
    std::ofstream text(root / "text.txt");
    for (int i = 0; i < 500; ++i) text << "line " << i * 7919 % 1000 << ": the quick brown fox\n";
    text.close();
    ThreadPool pool(1);
    train_tokenizer({root / "text.txt"}, {300, "<|endoftext|>"}, root / "tok", pool, {});
    const ModelConfig config = tiny_config();
    const LayerPlan plan = build_layer_plan(config);
    Weights weights(config, plan, {});
    weights.init_random(config, plan, 7);
    save_model_dir(root / "model", config, weights, DType::f32, root / "tok");
    save_model_dir(root / "wordless", config, weights, DType::f32);
    fs::copy(root / "model", root / "with_bos");
    std::ofstream(root / "with_bos/tokenizer_config.json")
        << R"({"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "add_bos_token": true})";
  }
  fs::path root;
};

inline std::string last_error() {
  return hysparse_last_error();
}

struct Free {
  void operator()(hysparse_model* p) const { EXPECT_EQ(hysparse_model_free(p), 0) << last_error(); }
  void operator()(hysparse_tokenizer* p) const { EXPECT_EQ(hysparse_tokenizer_free(p), 0) << last_error(); }
  void operator()(hysparse_generation* p) const { EXPECT_EQ(hysparse_generation_free(p), 0) << last_error(); }
};
using ModelHandle = std::unique_ptr<hysparse_model, Free>;
using TokenizerHandle = std::unique_ptr<hysparse_tokenizer, Free>;
using GenerationHandle = std::unique_ptr<hysparse_generation, Free>;

inline ModelHandle load(const std::string& dir = Files::get().model(), int threads = 2,
                        const char* dtype = "f32", const char* weights = nullptr) {
  hysparse_model_options o = HYSPARSE_MODEL_OPTIONS_INIT;
  o.weights = weights;
  o.threads = threads;
  o.dtype = dtype;
  hysparse_model* m = nullptr;
  EXPECT_EQ(hysparse_model_load(dir.c_str(), &o, &m), 0) << last_error();
  return ModelHandle(m);
}

inline GenerationHandle start(const ModelHandle& m, const std::vector<int32_t>& prompt,
                              const hysparse_generate_options& o) {
  hysparse_generation* g = nullptr;
  EXPECT_EQ(hysparse_generation_start(m.get(), prompt.data(), prompt.size(), &o, &g), 0) << last_error();
  return GenerationHandle(g);
}

struct Told {
  std::string text;
  std::vector<int32_t> tokens;
  int32_t finish = 0;
};
inline Told read_to_end(const GenerationHandle& g) {
  Told told;
  hysparse_piece piece{};
  piece.size = sizeof piece;
  for (int code = 0; code == HYSPARSE_OK;) {
    code = hysparse_generation_next(g.get(), &piece);
    EXPECT_GE(code, 0) << last_error();
    told.text.append(piece.text, piece.text_bytes);
    if (piece.token >= 0) told.tokens.push_back(piece.token);
  }
  hysparse_generation_result r{};
  r.size = sizeof r;
  EXPECT_EQ(hysparse_generation_get_result(g.get(), &r), 0) << last_error();
  EXPECT_EQ(told.text, std::string(r.text, r.text_bytes));
  EXPECT_EQ(told.tokens, std::vector<int32_t>(r.tokens, r.tokens + r.token_count));
  told.finish = r.finish;
  return told;
}

#define EXPECT_REFUSED(call, message)                                                            \
  do {                                                                                           \
    EXPECT_EQ(call, HYSPARSE_BAD_ARGUMENT);                                                      \
    EXPECT_NE(::hysparse::tests::last_error().find(message), std::string::npos) << last_error(); \
  } while (false)

}  // namespace hysparse::tests
