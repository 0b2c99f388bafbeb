#include "kernels/cuda_ops/resident.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace hysparse::cuda_calls {
namespace {

template <class Entries>
auto oldest(Entries& entries) {
  return std::min_element(entries.begin(), entries.end(),
                          [](const auto& a, const auto& b) { return a.used < b.used; });
}

}  // namespace

BlockPool::~BlockPool() {
  for (const auto& [size, p] : free_) cuda_library().free(p);
}

std::shared_ptr<void> BlockPool::take(size_t bytes) {
  // An eighth of slack at most above a MiB, a power of two below.
  const size_t step = bytes < (size_t(1) << 20) ? 0 : std::bit_floor(bytes) / 8;
  const size_t size = step ? (bytes + step - 1) / step * step : std::bit_ceil(std::max<size_t>(bytes, 4096));
  void* p = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = free_.find(size); found != free_.end()) {
      p = found->second;
      free_.erase(found);
    }
  }
  const CudaLibrary& cuda = cuda_library();
  if (!p) cuda.check(cuda.allocate(size, 0, &p), "GPU memory");
  return {p, [pool = shared_from_this(), size](void* block) {
            const std::lock_guard lock(pool->mutex_);
            pool->free_.emplace(size, block);
          }};
}

const void* TableCache::find(const void* host, size_t bytes) {
  if (const void* table = step_table(host, bytes)) return table;
  const std::lock_guard lock(mutex_);
  for (Entry& e : entries_)
    if (e.host.size() == bytes && (bytes == 0 || std::memcmp(e.host.data(), host, bytes) == 0)) {
      e.used = ++clock_;
      return e.device.get();
    }
  if (entries_.size() >= kEntries) entries_.erase(oldest(entries_));
  Entry e;
  e.host.resize(bytes);
  if (bytes > 0) std::memcpy(e.host.data(), host, bytes);
  e.device = pool_.take(bytes);
  e.used = ++clock_;
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.upload(e.device.get(), e.host.data(), bytes, cuda_stream()), "GPU memory");
  entries_.push_back(std::move(e));
  return entries_.back().device.get();
}

FastBatch BatchCache::get(const RaggedBatch& batch, const int64_t* cu_kv) {
  const auto sequences = static_cast<size_t>(batch.sequences());
  std::vector<int32_t> key(3 * sequences + 1);
  int32_t *cu_q = key.data(), *past = cu_q + sequences + 1, *start = past + sequences;
  for (size_t s = 0; s < sequences; ++s) {
    const int64_t rows = batch.q_len(static_cast<int64_t>(s));
    if (rows == 0 || cu_kv[s] + batch.past_len[s] + rows > INT32_MAX) return nullptr;
    cu_q[s + 1] = static_cast<int32_t>(batch.cu_q[s + 1]);
    past[s] = static_cast<int32_t>(batch.past_len[s]);
    start[s] = static_cast<int32_t>(cu_kv[s]);
  }
  const std::lock_guard lock(mutex_);
  for (Entry& e : entries_)
    if (e.key == key) {
      e.used = ++clock_;
      return e.batch;
    }
  if (entries_.size() >= kEntries) entries_.erase(oldest(entries_));
  hysparse_cuda_batch* made = nullptr;
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.batch_create(static_cast<int32_t>(sequences), cu_q, past, start, cuda_stream(), &made),
             "GPU batch");
  FastBatch shared(made, [](hysparse_cuda_batch* b) { cuda_library().batch_destroy(b); });
  entries_.push_back({std::move(key), std::move(shared), ++clock_});
  return entries_.back().batch;
}

}  // namespace hysparse::cuda_calls
