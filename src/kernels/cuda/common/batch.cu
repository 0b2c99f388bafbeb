#include "kernels/cuda/common/batch.h"

#include <algorithm>
#include <memory>

namespace hysparse::cuda {
namespace {

thread_local std::string last_error;

// Tiles start at multiples of `height` from the sequence's start, so that key tiles and query tiles line up.
std::vector<Tile> make_tiles(const hysparse_cuda_batch& b, int height) {
  std::vector<Tile> tiles;
  for (int s = 0; s < b.sequences; ++s) {
    const int begin = b.cu_q[size_t(s)], count = b.cu_q[size_t(s) + 1] - begin, past = b.past[size_t(s)];
    for (int i = 0; i < count;) {
      const int room = height - (past + i) % height;
      const int n = std::min(room, count - i);
      tiles.push_back({begin + i, n, b.cu_kv[size_t(s)], past + i});
      i += n;
    }
  }
  return tiles;
}

template <class T>
cudaError_t upload(const std::vector<T>& host, T** device, cudaStream_t stream) {
  if (host.empty()) return cudaSuccess;
  if (cudaError_t e = cudaMalloc(device, host.size() * sizeof(T))) return e;
  return cudaMemcpyAsync(*device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
}

}  // namespace

int fail(int code, const std::string& message) {
  last_error = message;
  return code;
}

int check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return HYSPARSE_OK;
  return fail(HYSPARSE_CUDA_ERROR, std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace hysparse::cuda

using namespace hysparse::cuda;

const TileList* hysparse_cuda_batch::tiles(int height) const {
  std::lock_guard lock(mutex);
  const auto found = lists.find(height);
  if (found != lists.end()) return &found->second;
  TileList list;
  list.host = make_tiles(*this, height);
  const size_t bytes = list.host.size() * sizeof(Tile);
  if (check_cuda(cudaMalloc(&list.device, bytes), "batch tiles") != HYSPARSE_OK) return nullptr;
  if (check_cuda(cudaMemcpy(list.device, list.host.data(), bytes, cudaMemcpyHostToDevice), "batch tiles") !=
      HYSPARSE_OK) {
    cudaFree(list.device);
    return nullptr;
  }
  return &lists.emplace(height, std::move(list)).first->second;
}

const KeyTileList* hysparse_cuda_batch::key_tiles(int height, int q_height) const {
  std::lock_guard lock(mutex);
  const auto found = key_lists.find({height, q_height});
  if (found != key_lists.end()) return &found->second;
  const std::vector<Tile> queries = make_tiles(*this, q_height);
  std::vector<KeyTile> keys;
  size_t begin = 0;
  for (int s = 0; s < sequences; ++s) {
    size_t end = begin;
    while (end < queries.size() && queries[end].q_row < cu_q[size_t(s) + 1]) ++end;
    const int length = past[size_t(s)] + cu_q[size_t(s) + 1] - cu_q[size_t(s)];
    size_t first = begin;
    for (int p = 0, order = 0; p < length; p += height, ++order) {
      while (queries[first].position + queries[first].q_count <= p) ++first;
      keys.push_back({cu_kv[size_t(s)] + p, std::min(height, length - p), p, order, int32_t(first),
                      int32_t(end - first), queries[first].q_row, queries[first].position});
    }
    begin = end;
  }
  std::stable_sort(keys.begin(), keys.end(),
                   [](const KeyTile& a, const KeyTile& b) { return a.q_tiles > b.q_tiles; });
  KeyTileList list;
  list.count = int(keys.size());
  if (check_cuda(upload(keys, &list.device, nullptr), "batch key tiles") != HYSPARSE_OK ||
      check_cuda(cudaStreamSynchronize(nullptr), "batch key tiles") != HYSPARSE_OK) {
    cudaFree(list.device);
    return nullptr;
  }
  return &key_lists.emplace(std::pair{height, q_height}, list).first->second;
}

const BlockTable* hysparse_cuda_batch::blocks(int block) const {
  std::lock_guard lock(mutex);
  const auto found = block_tables.find(block);
  if (found != block_tables.end()) return &found->second;
  std::vector<BlockSpan> spans;
  std::vector<int32_t> base;
  for (int s = 0; s < sequences; ++s) {
    const int count = cu_q[size_t(s) + 1] - cu_q[size_t(s)], length = past[size_t(s)] + count;
    base.insert(base.end(), size_t(count), int32_t(spans.size()));
    for (int p = 0; p < length; p += block) spans.push_back({cu_kv[size_t(s)] + p, p, length - p});
  }
  BlockTable table;
  table.count = int(spans.size());
  if (check_cuda(upload(spans, &table.spans, nullptr), "batch blocks") != HYSPARSE_OK ||
      check_cuda(upload(base, &table.base, nullptr), "batch blocks") != HYSPARSE_OK ||
      check_cuda(cudaStreamSynchronize(nullptr), "batch blocks") != HYSPARSE_OK) {
    cudaFree(table.spans);
    cudaFree(table.base);
    return nullptr;
  }
  return &block_tables.emplace(block, table).first->second;
}

extern "C" {

const char* hysparse_cuda_last_error(void) {
  return last_error.c_str();
}
const char* hysparse_cuda_version(void) {
  return HYSPARSE_VERSION;
}

int hysparse_cuda_batch_create(int32_t sequences, const int32_t* cu_q, const int32_t* past,
                               const int32_t* cu_kv, hysparse_stream stream, hysparse_cuda_batch** out) {
  if (sequences < 1 || !cu_q || !out)
    return fail(HYSPARSE_BAD_ARGUMENT, "batch: needs at least one sequence, cu_q and out");
  if (cu_q[0] != 0) return fail(HYSPARSE_BAD_ARGUMENT, "batch: cu_q[0] must be 0");
  struct Destroy {
    void operator()(hysparse_cuda_batch* b) const { hysparse_cuda_batch_destroy(b); }
  };
  std::unique_ptr<hysparse_cuda_batch, Destroy> b(new hysparse_cuda_batch);
  b->sequences = sequences;
  b->cu_q.assign(cu_q, cu_q + sequences + 1);
  b->past.assign(size_t(sequences), 0);
  if (past) b->past.assign(past, past + sequences);
  b->cu_kv.assign(cu_kv ? cu_kv : cu_q, (cu_kv ? cu_kv : cu_q) + sequences);
  std::vector<int32_t> position, start;
  for (int s = 0; s < sequences; ++s) {
    const int count = cu_q[s + 1] - cu_q[s];
    if (count < 1 || b->past[size_t(s)] < 0)
      return fail(HYSPARSE_BAD_ARGUMENT,
                  "batch: sequence " + std::to_string(s) + " has no rows or a negative past");
    b->max_kv = std::max(b->max_kv, b->past[size_t(s)] + count);
    for (int i = 0; i < count; ++i) {
      position.push_back(b->past[size_t(s)] + i);
      start.push_back(b->cu_kv[size_t(s)]);
    }
  }
  b->tokens = cu_q[sequences];
  if (!b->tiles(128)) return HYSPARSE_CUDA_ERROR;
  if (int e = check_cuda(upload(position, &b->position, stream), "batch upload")) return e;
  if (int e = check_cuda(upload(start, &b->kv_start, stream), "batch upload")) return e;
  if (int e = check_cuda(cudaStreamSynchronize(stream), "batch upload")) return e;
  *out = b.release();
  return HYSPARSE_OK;
}

void hysparse_cuda_batch_destroy(hysparse_cuda_batch* batch) {
  if (!batch) return;
  cudaFree(batch->position);
  cudaFree(batch->kv_start);
  for (auto& [height, list] : batch->lists) cudaFree(list.device);
  for (auto& [heights, list] : batch->key_lists) cudaFree(list.device);
  for (auto& [block, table] : batch->block_tables) {
    cudaFree(table.spans);
    cudaFree(table.base);
  }
  delete batch;
}

}  // extern "C"
