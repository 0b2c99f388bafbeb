// What a config costs: parameters, KV cache, FLOPs, training memory; apps/plan.cpp prints them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace hysparse {

struct ParameterCounts {
  int64_t total = 0;
  int64_t embedding = 0, head = 0;  // head: 0 where it is the embedding
  int64_t active = 0;               // used a token, without embedding and head
  int64_t active_with_head = 0;     // the head's product counts, tied or not
};
ParameterCounts count_parameters(const ModelConfig& config, const LayerPlan& plan);

// KV cache of one attention kind at a context, all sequences of the batch together where not said otherwise.
struct KvReport {
  AttentionKind kind;
  KvBytes bytes;           // one sequence
  int64_t at_context = 0;  // of the batch
  double smaller = 1.0;    // full attention's bytes at the context / these
  int64_t full_layers = 0;
};

struct FlopsReport {   // multiply and add count as two
  double prefill = 0;  // a token, mean over a context that is read at once: also a training token's forward
  double decode = 0;   // the token after a full context
  double attention_prefill = 0, attention_decode = 0;  // the attention part of each
};

struct TrainingOptions {
  DType compute = DType::bf16;
  bool narrow_state = false;                // WeightOptions::narrow_gradients, moments likewise
  int64_t chunk_bytes = int64_t(64) << 20;  // Ops::chunk_bytes()
  int ranks = 1;                            // that share masters and moments
};
// Bytes of one training process: masters in f32 (f64 for f64), a compute copy where it is narrower.
struct TrainingMemory {
  int64_t weights = 0, gradients = 0, optimizer = 0;
  // By Recompute policy: what is kept from forward to backward ...
  int64_t activations[kRecomputes] = {};
  // ... and what one layer's backward makes on top.
  int64_t working[kRecomputes] = {};
  int64_t shared_gradients = 0;  // dK, dV of one full layer that sparse layers read; 0 where there is none
  int64_t head = 0;              // logits of a chunk of rows, stream and its gradient
  int64_t total(int policy) const {
    return weights + gradients + optimizer + activations[policy] + working[policy] + shared_gradients + head;
  }
};

struct PlanReport {
  int64_t context = 0, batch = 1;
  int kv_dtype_bytes = 2;
  ParameterCounts parameters;
  std::vector<KvReport>
      kv;  // full, hybrid_swa, hysparse (and the config's own layout first where it is another)
  std::optional<AttentionKind> kind;
  KvBytes own;  // of the config as it is
  int64_t own_at_context = 0;
  double own_smaller = 1.0;
  KvBytes own_8_bits;  // with the pages of its full layers in int8 or fp8
  int64_t own_8_bits_at_context = 0;
  FlopsReport flops, flops_full;   // as it is, and its full-attention twin
  std::vector<std::string> notes;  // what a reader should know about these numbers
  TrainingMemory training;         // micro-batch of `batch` rows of `context` tokens
  int ranks = 1;                   // that share masters and moments
};

// For micro-batches of `tokens` tokens. Throws as make_plan_report.
TrainingMemory training_memory(const ModelConfig& config, int64_t tokens,
                               const TrainingOptions& options = {});

// `train_dtype` f32 or bf16; `ranks` that train together. Throws Error(input) where a number would not fit 63
// bits.
PlanReport make_plan_report(const ModelConfig& config, int64_t context, int64_t batch,
                            DType train_dtype = DType::bf16, int kv_dtype_bytes = 2, int ranks = 1);

// The report as a JSON object (docs/formats.md); `dtype`: of the KV cache and of training.
std::string plan_report_json(const ModelConfig& config, const PlanReport& report, DType dtype);

// Bytes that Saved keeps for `tokens` tokens under a policy; the same list as LayerSaved.
int64_t activation_bytes(const ModelConfig& config, const LayerPlan& plan, int64_t tokens, DType compute,
                         Recompute recompute);

}  // namespace hysparse
