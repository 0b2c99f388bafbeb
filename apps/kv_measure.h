// The KV cache of a model, measured: real cache objects are filled and asked for their bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "tensor/dtype.h"

namespace hysparse {

struct KvMeasured {
  int64_t context = 0;     // tokens in the cache
  int64_t page_bytes = 0;  // full layers: grows with the context
  int64_t ring_bytes = 0;  // window branches: constant
  int64_t total() const { return page_bytes + ring_bytes; }
};

// Fills one sequence to each context in turn (ascending), beyond max_position_embeddings too: no model runs.
std::vector<KvMeasured> measure_kv(const ModelConfig& config, DType dtype,
                                   const std::vector<int64_t>& contexts);

}  // namespace hysparse
