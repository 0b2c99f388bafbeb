// A model made of hashes, for tests of the engine: what it says depends on every token before, read back from
// pages and rings as attention reads them. A single wrong, stale or misplaced row of the cache changes what
// follows. Exact on any cut into steps, and fast.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/step_model.h"

namespace hysparse::tests {

inline ModelConfig hash_config(AttentionKind kind = AttentionKind::hysparse) {
  ModelConfig c;
  c.num_hidden_layers = 7;
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.intermediate_size = 8;
  c.vocab_size = 61;
  c.max_position_embeddings = 4096;
  c.sliding_window = 16;
  c.hysparse_block_size = 4;
  c.hysparse_topk_tokens = 16;
  c.attention = kind;
  c.finalize("HASH");
  return c;
}

class HashModel : public StepModel {
 public:
  // kv: what the cache keeps pages in; rows are of numbers that it holds exactly.
  explicit HashModel(const ModelConfig& config = hash_config(), KvDtype kv = KvDtype::compute)
      : config_(config), plan_(build_layer_plan(config)), top_(kv == KvDtype::fp8 ? 448.0f : 127.0f) {}
  const ModelConfig& config() const override { return config_; }
  const LayerPlan& plan() const override { return plan_; }
  DType compute() const override { return DType::f32; }
  uint64_t identity() const override { return identity_now; }
  std::atomic<uint64_t> identity_now{1};

  // Faults and delays that a test asks for.
  std::atomic<int32_t> poisoned_token{-1};  // logits behind this token are NaN
  std::atomic<bool> broken{false};          // forward throws
  std::atomic<int> delay_ms{0};
  int64_t steps = 0, most_tokens = 0, most_sequences = 0;

  void forward(Runtime&, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits) override {
    if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms.load()));
    if (broken) throw failure("HASH", "the device is gone");
    ++steps;
    most_tokens = std::max(most_tokens, batch.tokens());
    most_sequences = std::max(most_sequences, batch.sequences());
    const int64_t n = batch.tokens(), d = config_.d(), dv = config_.dv();
    std::vector<uint64_t> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) x[size_t(i)] = mix64(uint64_t(tokens.as<int32_t>()[i]));
    for (size_t layer = 0; layer < plan_.size(); ++layer) {
      const LayerPlanEntry& entry = plan_[layer];
      if (entry.kind != LayerKind::full && !entry.own_window_kv) continue;
      Tensor k(DType::f32, {n, 1, d}), v(DType::f32, {n, 1, dv});
      for (int64_t i = 0; i < n; ++i) {
        write(k.view().as<float>() + i * d,
              hash_words({x[size_t(i)], layer, 1}) << 8 | uint64_t(tokens.as<int32_t>()[i]));
        write(v.view().as<float>() + i * dv, hash_words({x[size_t(i)], layer, 2}));
      }
      const KvView view = kv.append(int(layer), batch, k, v);
      for (int64_t s = 0; s < batch.sequences(); ++s)
        for (int64_t i = batch.cu_q[size_t(s)]; i < batch.cu_q[size_t(s) + 1]; ++i) {
          const int64_t position = batch.position[size_t(i)];
          uint64_t h = x[size_t(i)];
          if (entry.kind == LayerKind::full)
            for (uint64_t j = 0; j < 6; ++j)  // a few of all, the same ones each time
              h = read(view, batch, s, int64_t(hash_words({uint64_t(position), j}) % uint64_t(position + 1)),
                       h);
          else
            for (int64_t p = std::max<int64_t>(0, position - entry.window + 1); p <= position; ++p)
              h = read(view, batch, s, p, h);
          x[size_t(i)] = h;
        }
      if (layer + 1 < plan_.size()) continue;
      for (size_t r = 0; r < batch.logit_rows.size(); ++r) {  // all of them, where the last layer has pages
        const int64_t row = batch.logit_rows[r];
        const int64_t s =
            std::upper_bound(batch.cu_q.begin(), batch.cu_q.end(), row) - batch.cu_q.begin() - 1;
        uint64_t h = x[size_t(row)];
        if (entry.kind == LayerKind::full)
          for (int64_t p = 0; p <= batch.position[size_t(row)]; ++p) h = read(view, batch, s, p, h);
        float* out = logits.at(int64_t(r)).as<float>();
        for (int64_t t = 0; t < config_.vocab_size; ++t)
          out[t] = float(8 * to_unit(hash_words({h, uint64_t(t)})));
        // Some texts run in circles, as real ones do: what drafts live on.
        const int64_t before = batch.position[size_t(row)] - 2;
        if (entry.kind == LayerKind::full && before >= 0 && h % 16 != 0) {
          out[size_t(digits(view, batch, s, before, 0) & 0xff)] += 7;
        }
        if (tokens.as<int32_t>()[row] == poisoned_token.load()) out[3] = std::nanf("");
      }
    }
  }

 private:
  // Seven numbers of four bits, under a largest one that makes the scale of 8 bits 1.
  static constexpr int64_t kDigits = 7;
  void write(float* row, uint64_t h) const {
    for (int64_t i = 0; i < kDigits; ++i) row[i] = float(h >> 4 * i & 15);
    row[kDigits] = top_;
  }
  uint64_t digits(const KvView& view, const RaggedBatch& batch, int64_t s, int64_t p, int which) const {
    const KvView::Row row = view.row(batch, s, p);
    const TensorView& t = which == 0 ? *row.k : *row.v;
    const int64_t at = which == 0 ? row.k_offset : row.v_offset;
    float scale = 1;
    if (view.in_8_bits()) {
      const int32_t page = view.page_table[s * view.page_table_stride + p / view.page_size];
      scale = float(view.scales.at(page).at(p % view.page_size).at(0).as<bf16>()[which]);
    }
    uint64_t h = 0;
    for (int64_t i = kDigits; i >= 0; --i) {
      const float x = scale * (t.dtype == DType::i8   ? float(t.as<int8_t>()[at + i])
                               : t.dtype == DType::f8 ? float(t.as<f8>()[at + i])
                                                      : t.as<float>()[at + i]);
      // NaN: poison
      HYSPARSE_CHECK(i == kDigits ? x == top_ : x >= 0 && x < 16,
                     "position {} of sequence {} was never written", p, s);
      if (i < kDigits) h = h << 4 | uint64_t(x);
    }
    return h;
  }
  uint64_t read(const KvView& view, const RaggedBatch& batch, int64_t s, int64_t p, uint64_t h) const {
    return hash_words({h, digits(view, batch, s, p, 0), digits(view, batch, s, p, 1)});
  }

  ModelConfig config_;
  LayerPlan plan_;
  float top_;
};

}  // namespace hysparse::tests
