// A model of a few thousand parameters over the vocabulary of made tasks.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "eval/recall_task.h"
#include "kernels/cpu/cpu.h"
#include "model/model.h"
#include "unit/support/temp_dir.h"

namespace hysparse::tests {

inline ModelConfig tiny_recall_config(AttentionKind kind, int64_t vocab = recall::kVocabulary) {
  ModelConfig c;
  c.num_hidden_layers = 5;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.intermediate_size = 48;
  c.vocab_size = vocab;
  c.max_position_embeddings = 256;
  c.sliding_window = 8;
  c.hysparse_block_size = 4;
  c.hysparse_topk_tokens = 8;
  c.initializer_range = 0.2;
  c.full_attention_interval = 2;
  c.attention = kind;
  c.finalize("tiny");
  return c;
}

struct TinyModel {
  ModelConfig config;
  ThreadPool pool{1};
  Arena scratch;
  Runtime rt{pool, scratch, cpu_ops(), host_memory()};
  Weights weights;
  Model model;

  explicit TinyModel(AttentionKind kind, int64_t vocab = recall::kVocabulary)
      : TinyModel(tiny_recall_config(kind, vocab)) {}
  explicit TinyModel(const ModelConfig& c)
      : config(c),
        weights(config, build_layer_plan(config), WeightOptions{}, host_memory()),
        model(config, weights) {
    weights.init_random(config, build_layer_plan(config), 5);
  }
  // Of every position: [tokens * vocab].
  std::vector<double> logits(const std::vector<int32_t>& ids) {
    RaggedBatch batch;
    const auto n = static_cast<int64_t>(ids.size());
    batch.add_sequence(n);
    batch.logit_rows.resize(ids.size());
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    const Tensor tokens(DType::i32, {n}), out(DType::f32, {n, config.vocab_size});
    std::copy(ids.begin(), ids.end(), tokens.view().as<int32_t>());
    TrainKv kv;
    model.forward(rt, batch, tokens, kv, out);
    return {out.view().as<float>(), out.view().as<float>() + n * config.vocab_size};
  }
  // From now on it says `token`, whatever it reads.
  void prefer(int32_t token) {
    const TensorView& head = weights.lm_head().value;
    std::fill_n(head.as<float>(), head.numel(), 0.0f);
    const TensorView& norm = weights.norm.value;
    std::fill_n(norm.as<float>(), norm.numel(), 0.0f);
    // One dimension of the stream is large for every token, and the final norm lets that one alone pass.
    std::fill_n(norm.as<float>(), 1, 1.0f);
    const TensorView& embedding = weights.embed_tokens.value;
    for (int64_t i = 0; i < config.vocab_size; ++i) embedding.as<float>()[i * config.hidden_size] = 1000.0f;
    head.as<float>()[token * config.hidden_size] = 1.0f;
  }
};

}  // namespace hysparse::tests
