#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/common/gather_index.h"

using namespace hysparse::cuda;

namespace {

template <class T>
bool upload(const std::vector<T>& host, T** device) {
  const size_t bytes = host.size() * sizeof(T);
  return cudaMalloc(device, std::max<size_t>(bytes, 1)) == cudaSuccess &&
         cudaMemcpy(*device, host.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess;
}

void release(GatherIndex* g) {
  cudaFree(g->item_start);
  cudaFree(g->pairs);
  cudaFree(g->items);
  cudaFree(g->valid);
  delete g;
}

}  // namespace

const GatherIndex* hysparse_cuda_batch::window_index(int window, int ratio) const {
  window = std::min(window, max_kv);  // longer ones see no more
  const BlockTable* table = blocks(64);
  if (!table) return nullptr;
  std::lock_guard lock(mutex);
  const std::pair<int, int> key{window, ratio};
  if (const auto found = windows.find(key); found != windows.end()) return found->second.get();

  std::shared_ptr<GatherIndex> g(new GatherIndex{}, release);
  g->spans = table->spans;
  g->block_base = table->base;
  g->blocks = table->count;
  g->slots = (window + 62) / 64 + 1;
  g->tokens = tokens;
  if (int64_t(tokens) * g->slots > INT32_MAX) {
    fail(HYSPARSE_UNSUPPORTED, "window attention backward: more than 2^31 (token, block) pairs");
    return nullptr;
  }
  g->item_pairs = window + 63;
  g->chunk_tokens = 1;
  // What a block needs stands side by side: passes only bound the workspace.
  g->pass_chunks = std::min(std::max((1 << 18) / ratio, 4096), tokens);
  g->chunks = tokens;
  g->passes = (tokens + g->pass_chunks - 1) / g->pass_chunks;
  g->head_pairs = 0;
  g->slot_words = (g->slots + 31) / 32;

  // Pairs by (pass, block) in token order: a block's tokens are one run of its sequence.
  std::vector<int32_t> pairs, item_start{0};
  std::vector<KeyItem> items;
  std::vector<uint32_t> valid(size_t(tokens) * size_t(g->slot_words), 0);
  for (int pass = 0; pass < g->passes; ++pass) {
    const int pass_first = pass * g->pass_chunks, pass_end = std::min(tokens, pass_first + g->pass_chunks);
    for (int s = 0; s < sequences; ++s) {
      const int row0 = cu_q[size_t(s)] - past[size_t(s)];  // packed token of position 0
      const int length = past[size_t(s)] + cu_q[size_t(s) + 1] - cu_q[size_t(s)];
      for (int p = 0; p < length; p += 64) {
        const int block_end = std::min(p + 64, length);
        const int first = std::max({row0 + p, cu_q[size_t(s)], pass_first});
        const int end = std::min({row0 + block_end - 1 + window, cu_q[size_t(s) + 1], pass_end});
        if (first < end) {
          KeyItem item{};
          item.first = int(pairs.size());
          item.count = end - first;
          item.kv_row = cu_kv[size_t(s)] + p;
          item.token0 = row0 + p;
          item.live = length - p;
          item.slot = -1;
          items.push_back(item);
          for (int t = first; t < end; ++t) {
            const int lowest = std::max(t - row0 - window + 1, 0) / 64, slot = p / 64 - lowest;
            pairs.push_back(t * g->slots + slot);
            valid[size_t(t) * size_t(g->slot_words) + size_t(slot / 32)] |= 1u << (slot % 32);
          }
        }
        item_start.push_back(int32_t(items.size()));
      }
    }
  }
  g->item_capacity = int(items.size());
  if (!upload(item_start, &g->item_start) || !upload(pairs, &g->pairs) || !upload(items, &g->items) ||
      !upload(valid, &g->valid)) {
    fail(HYSPARSE_CUDA_ERROR, std::string("window index: ") + cudaGetErrorString(cudaGetLastError()));
    return nullptr;
  }
  return windows.emplace(key, std::move(g)).first->second.get();
}
