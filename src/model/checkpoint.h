// Model directories: config.json, model*.safetensors, and the tokenizer's files beside them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/model.h"

namespace hysparse {

// The config of a model directory or of a file; see parse_model_config.
ModelConfig load_model_config(const std::filesystem::path& path,
                              const std::vector<std::string>& overrides = {}, const Log& log = {});

struct LoadedModel {
  ModelConfig config;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Model> model;  // refers to *weights
};

struct LoadOptions {
  WeightOptions weights;
  std::vector<std::string> overrides;  // "key=value" of the config
  Memory* memory = nullptr;            // null: host_memory()
  Log log;                             // told the effective RoPE, files ignored, ...
};

// Checks the tensors against the config both ways before anything is read: missing, unexpected and misshapen
// ones are named. Throws Error(input).
LoadedModel load_model_dir(const std::filesystem::path& dir, const LoadOptions& options = {});

// That check alone; works for every config, MoE included.
void check_model_dir(const std::filesystem::path& dir, const ModelConfig& config, const Log& log = {});

// The weights alone, into `weights` of the same config: masters where there are any, and values.
void load_weights(const std::filesystem::path& dir, const ModelConfig& config, Weights& weights,
                  const Log& log = {});

// Publishes `dir` as a set; an existing model directory there is replaced. `as`: dtype of the file. Tokenizer
// files are copied from `tokenizer_dir` unless it is empty.
void save_model_dir(const std::filesystem::path& dir, const ModelConfig& config, Weights& weights, DType as,
                    const std::filesystem::path& tokenizer_dir = {});

}  // namespace hysparse
