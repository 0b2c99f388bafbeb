// Training checkpoints: everything a run needs to continue bit for bit, published as a set.
//   OUT/checkpoints/step-00000500/  config.json, model.safetensors (master precision), optimizer.safetensors
//                                   (moments), state.json, the tokenizer's files: also a model directory
//   OUT/model/                      the newest checkpoint without its optimiser state (hard links)
// A folder named step-* is complete by construction: it is renamed to that name when everything in it is on
// disk. Nothing in it depends on how many ranks trained: rank 0 gathers what the others keep, and any number
// of ranks goes on from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/weights.h"
#include "train/optimizer.h"
#include "train/run_config.h"

namespace hysparse {

struct TrainState {
  int64_t step = 0;           // completed steps, skipped ones included: position in the schedule
  int64_t samples = 0;        // global index of the next sample: position in the data
  int64_t tokens = 0;         // read so far
  int64_t applied = 0;        // optimiser steps applied: AdamW's bias correction
  int64_t nonfinite_run = 0;  // skipped steps in a row up to now
  double seconds = 0.0;       // spent training
  std::optional<double> heldout_nats_per_token, heldout_bits_per_byte;
  std::string data_fingerprint;
  RunConfig config;
};

struct CheckpointInfo {
  std::filesystem::path dir;
  int64_t step = 0;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& out, int64_t step);

// Folders with a checkpoint's name, ascending by step; their content is not looked at.
std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& out);

// Writes OUT/checkpoints/step-* and then OUT/model. `tokenizer_dir`: where tokenizer files are copied from;
// may be empty. On failure what was there before stays. Called by all ranks of `comm`; rank 0 writes.
void save_checkpoint(const std::filesystem::path& out, const TrainState& state, Weights& weights,
                     Optimizer& optimizer, const std::filesystem::path& tokenizer_dir,
                     Comm& comm = self_comm());

// Makes OUT/model from a checkpoint (the end of a save; again on resume, where a crash came between the two).
void publish_model(const std::filesystem::path& out, const std::filesystem::path& checkpoint);

// state.json alone, after checking that every file of the set is there with its size, and the content of the
// small ones. Throws Error(input) that names what is missing or damaged.
TrainState read_checkpoint_state(const std::filesystem::path& dir);

// Restores masters, compute copies and moments (of them what this rank keeps) from a checkpoint whose state
// was read, after checking every tensor file against its checksum.
void load_checkpoint(const std::filesystem::path& dir, const TrainState& state, Weights& weights,
                     Optimizer& optimizer);

// Master weights from any model directory of the same shapes (a new stage starts from these alone). Tensors
// there that `weights` has no place for (sparse gates, when the new stage is a full-attention twin) are left
// behind, and `log` is told which.
void load_master_weights(const std::filesystem::path& model_dir, Weights& weights, const Log& log = {});

// Removes all but the newest `keep_last` checkpoints and the one with the best held-out loss. Damaged ones
// are neither counted nor touched. Interrupted at any point, it leaves whole checkpoints only.
void prune_checkpoints(const std::filesystem::path& out, int64_t keep_last);

// Leftovers of saves and removals that a crash cut short.
void remove_stale_checkpoints(const std::filesystem::path& out);

}  // namespace hysparse
