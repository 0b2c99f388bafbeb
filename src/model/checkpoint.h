// Model directories: config.json, model*.safetensors, and the tokenizer's files beside them.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "io/safetensors.h"
#include "model/model.h"

namespace hysparse {

// The file with the config: that of a model directory, or `path` itself. A GGUF file is Error(input).
std::filesystem::path config_file(const std::filesystem::path& path);
// The config of a model directory or of a file; see parse_model_config. A directory's generation_config.json
// adds its end ids.
ModelConfig load_model_config(const std::filesystem::path& path,
                              const std::vector<std::string>& overrides = {}, const Log& log = {});
// Adds the end ids of generation_config.json, where `path` is a directory that holds one.
void read_generation_config(const std::filesystem::path& path, ModelConfig& config);

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

// The checked tensors of a directory in checkpoint order, read a few rows at a time; valid as long as
// `files`.
std::vector<TensorSource> model_dir_tensors(const std::filesystem::path& dir, const SafetensorsSet& files,
                                            const ModelConfig& config, const Log& log = {});

// That check alone; works for every config, MoE included.
void check_model_dir(const std::filesystem::path& dir, const ModelConfig& config, const Log& log = {});

// The weights alone, into `weights` of the same config: masters where there are any, and values.
void load_weights(const std::filesystem::path& dir, const ModelConfig& config, Weights& weights,
                  const Log& log = {});

// Publishes `dir` as a set; an existing model directory there is replaced. `as`: dtype of the file. Tokenizer
// files are copied from `tokenizer_dir` unless it is empty.
void save_model_dir(const std::filesystem::path& dir, const ModelConfig& config, Weights& weights, DType as,
                    const std::filesystem::path& tokenizer_dir = {});
// The same from tensors that are read as they are written; `also` adds further files to the set.
void save_model_dir(const std::filesystem::path& dir, const ModelConfig& config,
                    const std::vector<TensorSource>& tensors, DType as,
                    const std::function<void(const std::filesystem::path&)>& also);
// The tokenizer's files that a model directory may hold, as far as `from` has them.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace hysparse
