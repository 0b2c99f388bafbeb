// LayerPlan: what each layer is and whose K, V and selections it reads; built once from the config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/kv_dtype.h"

namespace hysparse {

enum class LayerKind { full, sparse, window };

struct LayerPlanEntry {
  LayerKind kind = LayerKind::full;
  int kv_source = -1;          // sparse: the layer whose K, V it shares; else itself
  int selection_source = -1;   // sparse: the layer whose block indices it reads; else -1
  int64_t window = 0;          // > 0: has a window branch of this many tokens
  bool own_window_kv = false;  // its window branch has k', v' projections and a ring
  bool emits_scores = false;   // full: some sparse layer reads its selection
  bool gated = false;          // full with full_attention_gate, or sparse
  bool moe = false;
};

using LayerPlan = std::vector<LayerPlanEntry>;

// `config` must be finalized. Throws where a sparse layer has no full layer before it, naming the layer.
LayerPlan build_layer_plan(const ModelConfig& config);

// a * b, a + b; Error(input) naming `what` where the result would pass int64.
int64_t checked_product(int64_t a, int64_t b, const char* what);
int64_t checked_sum(int64_t a, int64_t b, const char* what);

// Bytes of KV cache at `context` tokens a sequence, element of `dtype_bytes` (2 = bf16) but for pages in 8
// bits: there a row of a head is d codes and two bytes of scale.
struct KvBytes {
  int64_t per_token = 0;              // what one more token adds
  int64_t rings = 0;                  // constant
  int64_t at(int64_t context) const;  // Error(input) where it would pass int64
};
KvBytes kv_bytes(const ModelConfig& config, const LayerPlan& plan, int dtype_bytes,
                 KvDtype kv = KvDtype::compute);

// `config` with another attention kind (its twin): same backbone, other layer_types (replace_layout).
ModelConfig twin(const ModelConfig& config, AttentionKind kind);

}  // namespace hysparse
