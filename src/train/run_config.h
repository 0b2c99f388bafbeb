// A run file: one JSON with the model's keys flat (as in config.json) and the run's settings under `train`
// and `data`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "model/config.h"
#include "model/model.h"

namespace hysparse {

enum class Schedule { wsd, cosine, constant };
enum class DecayShape { linear, sqrt };  // of the last part of wsd
enum class TrainDType { f32, bf16, f64 };
enum class StateDType { f32, bf16 };
template <>
struct EnumNames<Schedule> {
  static const std::vector<std::pair<Schedule, std::string_view>>& list();
};
template <>
struct EnumNames<DecayShape> {
  static const std::vector<std::pair<DecayShape, std::string_view>>& list();
};
template <>
struct EnumNames<TrainDType> {
  static const std::vector<std::pair<TrainDType, std::string_view>>& list();
};
template <>
struct EnumNames<StateDType> {
  static const std::vector<std::pair<StateDType, std::string_view>>& list();
};

struct TrainConfig {
  // What is trained on, in which order.
  int64_t steps = 1000;
  int64_t seq_len = 512;
  int64_t global_batch_size = 8;
  int64_t micro_batch_size = 0;
  int64_t seed = 0;
  TrainDType dtype = TrainDType::f32;
  StateDType state_dtype = StateDType::f32;
  Recompute recompute = Recompute::none;
  // AdamW.
  double lr = 1e-3;
  double min_lr = 0.0;
  Schedule schedule = Schedule::wsd;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  DecayShape decay_shape = DecayShape::linear;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-10;
  double weight_decay = 0.1;
  double grad_clip = 1.0;
  int64_t max_nonfinite_steps = 10;
  // Mixture of experts.
  double router_bias_rate = 1e-3;
  double router_aux_loss_coef = 0.0;
  double router_z_loss_coef = 0.0;
  // What is reported and kept.
  int64_t log_interval = 10;
  int64_t eval_interval = 100;
  int64_t eval_tokens = 65536;
  int64_t sample_interval = 0;
  int64_t sample_tokens = 64;
  std::string sample_prompt;
  int64_t checkpoint_interval = 500;
  int64_t keep_last = 2;
  double time_limit_seconds = 0.0;

  template <class V>
  static void fields(V&& visit) {
    using T = TrainConfig;
    visit("steps", &T::steps, "optimiser steps of the whole run");
    visit("seq_len", &T::seq_len, "tokens a row");
    visit("global_batch_size", &T::global_batch_size, "rows an optimiser step");
    visit("micro_batch_size", &T::micro_batch_size,
          "rows a forward and backward pass; need not divide global_batch_size; 0: all rows at once. Changes "
          "memory, not the result");
    visit("seed", &T::seed, "of the initial weights and of the data order");
    visit("dtype", &T::dtype, "f32, bf16 (f32 master weights and gradients) or f64 (the slow reference)");
    visit(
        "state_dtype", &T::state_dtype,
        "gradients and AdamW moments of the matrices: f32, or bf16 (a GPU, dtype bf16: 12 bytes a parameter "
        "instead of 18)");
    visit(
        "recompute", &T::recompute,
        "what backward recomputes instead of keeping: none, selective, projections or layer (least memory)");
    visit("lr", &T::lr, "peak learning rate");
    visit("min_lr", &T::min_lr, "learning rate at the end of the decay (absolute)");
    visit("schedule", &T::schedule,
          "wsd (warm-up, stable, decay), cosine or constant, all after the warm-up");
    visit("warmup_steps", &T::warmup_steps, "steps of linear warm-up");
    visit("decay_steps", &T::decay_steps, "wsd: the last steps, in which the rate falls to min_lr");
    visit("decay_shape", &T::decay_shape, "wsd: linear or sqrt (1 - sqrt of the decay's progress)");
    visit("beta1", &T::beta1, "AdamW first moment");
    visit("beta2", &T::beta2, "AdamW second moment");
    visit("eps", &T::eps, "AdamW epsilon");
    visit("weight_decay", &T::weight_decay, "decoupled; not on norms, biases and sinks");
    visit("grad_clip", &T::grad_clip, "largest global gradient norm; 0: no clipping");
    visit("max_nonfinite_steps", &T::max_nonfinite_steps,
          "stop after so many steps in a row whose gradients are not finite (each is skipped)");
    visit("router_bias_rate", &T::router_bias_rate,
          "experts: how far a step moves the bias of each towards the mean load; 0: not at all");
    visit("router_aux_loss_coef", &T::router_aux_loss_coef,
          "experts: factor of the balance loss of each sequence; 0: none");
    visit("router_z_loss_coef", &T::router_z_loss_coef,
          "experts: factor of the mean squared log-sum-exp of the router's logits; 0: none");
    visit("log_interval", &T::log_interval, "steps between lines of log.jsonl");
    visit("eval_interval", &T::eval_interval, "steps between held-out evaluations; 0: only at checkpoints");
    visit("eval_tokens", &T::eval_tokens, "held-out tokens an evaluation reads at most; 0: all");
    visit("sample_interval", &T::sample_interval, "steps between generated samples; 0: none");
    visit("sample_tokens", &T::sample_tokens, "tokens of a sample");
    visit("sample_prompt", &T::sample_prompt, "text that a sample continues");
    visit("checkpoint_interval", &T::checkpoint_interval, "steps between checkpoints; 0: only at the end");
    visit("keep_last", &T::keep_last, "newest checkpoints kept, beside the one with the best held-out loss");
    visit("time_limit_seconds", &T::time_limit_seconds, "save and stop after so long; 0: no limit");
  }

  int64_t micro_rows() const { return micro_batch_size > 0 ? micro_batch_size : global_batch_size; }
  int64_t tokens_per_step() const { return global_batch_size * seq_len; }
};

struct DataConfig {
  bool document_mask = true;
  bool shuffle = true;

  template <class V>
  static void fields(V&& visit) {
    using T = DataConfig;
    visit("document_mask", &T::document_mask,
          "attention, positions and labels stay within a document; false: a row is one document");
    visit("shuffle", &T::shuffle, "permute the samples of every epoch; false: in file order");
  }
};

struct RunConfig {
  ModelConfig model;
  TrainConfig train;
  DataConfig data;
};

// `path`: a run file, or a model directory (its config.json; train and data keep their defaults). `sets`:
// "key=value" overrides, "train.lr=3e-4", "hysparse_topk_tokens=64", "attention=full" (replaces layer_types).
// Unknown keys are errors that name the nearest valid one. The result is validated and model.finalize()d.
RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& sets = {},
                          const Log& log = {});

// The same from the text of a run file or config.json; `where` names it in errors.
RunConfig parse_run_config(const std::string& json_text, const std::string& where,
                           const std::vector<std::string>& sets = {}, const Log& log = {});

// The run file that load_run_config reads back; model keys as in config.json.
std::string run_config_json(const RunConfig& config);

// The keys in which two configurations differ, "train.lr" style, with both values as text.
struct ConfigChange {
  std::string key, before, after;
};
std::vector<ConfigChange> config_changes(const RunConfig& before, const RunConfig& after);

// Checks ranges and what keys mean together; `where` names the file in errors.
void validate_run_config(const RunConfig& config, const std::string& where);

}  // namespace hysparse
