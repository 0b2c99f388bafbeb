// TINY and what the training tests share: a batch of labelled rows, a plain machine.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"
#include "model/model.h"
#include "train/data.h"
#include "unit/support/temp_dir.h"

namespace hysparse::tests {

inline ModelConfig tiny_config(AttentionKind kind = AttentionKind::hysparse) {
  ModelConfig c;
  c.num_hidden_layers = 9;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.intermediate_size = 96;
  c.vocab_size = 97;
  c.max_position_embeddings = 512;
  c.sliding_window = 8;
  c.hysparse_block_size = 4;
  c.hysparse_topk_tokens = 16;
  c.initializer_range = 0.1;
  c.attention = kind;
  c.finalize("TINY");
  return c;
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct TestMachine {
  ThreadPool pool;
  Arena scratch;
  Runtime rt;
  explicit TestMachine(int threads = 1, const Ops& ops = cpu_ops(), Log log = {}, Comm& comm = self_comm())
      : pool(threads), rt{pool, scratch, ops, host_memory(), std::move(log), comm} {}
};

// A model with its weights, ready to train.
struct TestModel {
  ModelConfig config;
  LayerPlan plan;
  Weights weights;
  Model model;
  explicit TestModel(const ModelConfig& c, DType compute = DType::f32, uint64_t seed = 1,
                     const Comm& comm = self_comm())
      : config(c),
        plan(build_layer_plan(config)),
        weights(config, plan,
                {.compute = compute, .training = true, .rank = comm.rank(), .ranks = comm.size()}),
        model(config, weights) {
    weights.init_random(config, plan, seed);
  }
};

// Rows [begin, end) of one document each of `length` random tokens; row i has targets[i] labels that count,
// the last ones.
inline TrainBatch labelled_rows(const std::vector<int64_t>& targets, size_t begin, size_t end, int64_t length,
                                int64_t vocab) {
  TrainBatch b;
  for (size_t row = begin; row < end; ++row) {
    Rng rng(7, row);
    b.batch.add_sequence(length, 0, static_cast<int64_t>(row));
    int32_t token = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
    for (int64_t i = 0; i < length; ++i) {
      const int32_t next = static_cast<int32_t>(rng.below(static_cast<uint64_t>(vocab)));
      b.tokens.push_back(token);
      b.labels.push_back(length - i <= targets[row] ? next : kIgnoreLabel);
      token = next;
    }
    b.targets += targets[row];
  }
  return b;
}

}  // namespace hysparse::tests
