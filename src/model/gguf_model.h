// The model in a GGUF file under our names, and the other way round. The one place that knows llama.cpp's
// keys, tensor names and row order.
#pragma once

#include <vector>

#include "base/log.h"
#include "io/gguf.h"
#include "model/config.h"

namespace hysparse {

// The config of architectures llama, qwen2 and qwen3: all layers full attention. A key that could change what
// the model computes and is not known is an error.
ModelConfig gguf_config(const GgufFile& file);

// Every tensor that the config asks for, in checkpoint order, with rows in our order; valid as long as the
// file is open. Missing, unexpected and misshapen ones are named.
std::vector<TensorSource> gguf_tensors(const GgufFile& file, const ModelConfig& config);

// Whether bf16 holds every value of the file exactly.
bool fits_bf16(const GgufFile& file);

// Adds metadata and tensors (`tensors` as above, under our names) to a file that llama.cpp runs. Matrices are
// stored as `as`, vectors as f32; a matrix whose rows are no whole blocks is stored as f16 where `as` is
// q8_0, which `log` is told. Error(input) for a model that llama.cpp has no architecture for.
void add_gguf_model(GgufWriter& file, const ModelConfig& config, std::vector<TensorSource> tensors,
                    GgufDType as, const std::string& name, const Log& log);

}  // namespace hysparse
