#include "kv_measure.h"

#include <algorithm>

#include "engine/paged_kv.h"
#include "model/plan.h"

namespace hysparse {

std::vector<KvMeasured> measure_kv(const ModelConfig& config, DType dtype,
                                   const std::vector<int64_t>& contexts) {
  constexpr int64_t kChunk = 1024;
  const LayerPlan plan = build_layer_plan(config);
  PagedKvOptions options;
  options.max_tokens = contexts.back();
  options.dtype = dtype;
  PagedKv cache(config, plan, options);
  const Tensor k(dtype, {kChunk, config.kv_heads(), config.d()}),
      v(dtype, {kChunk, config.kv_heads(), config.dv()});
  std::vector<KvMeasured> out;
  int64_t length = 0;
  for (int64_t context : contexts) {
    while (length < context) {
      const int64_t n = std::min(kChunk, context - length);
      RaggedBatch batch;
      batch.add_sequence(n, length);
      cache.begin_step({0}, batch);
      for (size_t layer = 0; layer < plan.size(); ++layer)
        if (plan[layer].kind != LayerKind::sparse || plan[layer].own_window_kv)
          cache.append(static_cast<int>(layer), batch, k.view().rows(0, n), v.view().rows(0, n));
      cache.commit();
      length += n;
    }
    out.push_back({context, cache.page_bytes(), cache.ring_bytes()});
  }
  return out;
}

}  // namespace hysparse
