// A counting sort in fixed order: pairs a (chunk of tokens, block), scans over chunks and blocks, then each
// chunk writes its pairs token by token.
#include "kernels/cuda/common/gather_index.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 128;

struct Build {
  const int32_t* idx;
  int n, kv_heads;
  UnionLists unions;
  GatherIndex g;
};

// Calls visit(token, lane work) for the tokens of this chunk that stand in hard tiles, in order. Tiles are in
// packed order.
template <class Visit>
__device__ void for_tokens(const Build& b, int head, Visit visit) {
  const int first = blockIdx.x * b.g.chunk_tokens, end = min(first + b.g.chunk_tokens, b.g.tokens);
  int low = 0, high = b.unions.tile_count - 1;  // last tile that starts at or before `first`
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (b.unions.tiles[mid].q_row <= first)
      low = mid;
    else
      high = mid - 1;
  }
  for (int t = low; t < b.unions.tile_count; ++t) {
    const Tile tile = b.unions.tiles[t];
    if (tile.q_row >= end) break;
    if (b.unions.lengths[int64_t(head) * b.unions.tile_count + t] >= 0) continue;
    for (int token = max(first, tile.q_row); token < min(end, tile.q_row + tile.q_count); ++token)
      visit(token);
  }
}

__global__ void __launch_bounds__(kThreads) count_kernel(const Build b) {
  extern __shared__ int32_t histogram[];
  const int head = blockIdx.y;
  for (int i = threadIdx.x; i < b.g.blocks; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for_tokens(b, head, [&](int token) {
    for (int e = threadIdx.x; e < b.n; e += kThreads) {
      const int block = b.idx[(int64_t(token) * b.kv_heads + head) * b.n + e];
      if (block >= 0) atomicAdd(&histogram[b.g.block_base[token] + block], 1);
    }
  });
  __syncthreads();
  int32_t* out = b.g.counts + (int64_t(head) * b.g.chunks + blockIdx.x) * b.g.blocks;
  for (int i = threadIdx.x; i < b.g.blocks; i += kThreads) out[i] = histogram[i];
}

// A CTA a head: exclusive sums over chunks, then over blocks.
__global__ void __launch_bounds__(1024) scan_kernel(const Build b) {
  __shared__ int32_t warp_pairs[32], warp_items[32];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t* counts = b.g.counts + int64_t(head) * b.g.chunks * b.g.blocks;
  int32_t* pair_start = b.g.pair_start + int64_t(head) * (b.g.blocks + 1);
  int32_t* item_start = b.g.item_start + int64_t(head) * (b.g.blocks + 1);
  int32_t pairs_before = 0, items_before = 0;
  for (int base = 0; base < b.g.blocks; base += 1024) {
    const int block = base + threadIdx.x;
    int32_t total = 0;
    if (block < b.g.blocks)
      for (int c = 0; c < b.g.chunks; ++c) {
        int32_t* at = counts + int64_t(c) * b.g.blocks + block;
        const int32_t x = *at;
        *at = total;
        total += x;
      }
    const int32_t items = (total + b.g.item_pairs - 1) / b.g.item_pairs;
    int32_t p = total, i = items;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t py = __shfl_up_sync(0xffffffffu, p, step), iy = __shfl_up_sync(0xffffffffu, i, step);
      if (lane >= step) {
        p += py;
        i += iy;
      }
    }
    if (lane == 31) {
      warp_pairs[warp] = p;
      warp_items[warp] = i;
    }
    __syncthreads();
    int32_t p0 = pairs_before, i0 = items_before;
    for (int w = 0; w < 32; ++w) {
      if (w < warp) {
        p0 += warp_pairs[w];
        i0 += warp_items[w];
      }
      pairs_before += warp_pairs[w];
      items_before += warp_items[w];
    }
    if (block < b.g.blocks) {
      pair_start[block] = p0 + p - total;
      item_start[block] = i0 + i - items;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    pair_start[b.g.blocks] = pairs_before;
    item_start[b.g.blocks] = items_before;
  }
}

// One warp a chunk, a token at a time. A token's entries are distinct blocks, so its lanes never meet in a
// counter and the order is fixed.
__global__ void __launch_bounds__(32) fill_kernel(const Build b) {
  extern __shared__ int32_t next[];
  const int head = blockIdx.y;
  const int32_t* before = b.g.counts + (int64_t(head) * b.g.chunks + blockIdx.x) * b.g.blocks;
  const int32_t* start = b.g.pair_start + int64_t(head) * (b.g.blocks + 1);
  for (int i = threadIdx.x; i < b.g.blocks; i += 32) next[i] = start[i] + before[i];
  __syncwarp();
  int32_t* out = b.g.pairs + int64_t(head) * b.g.tokens * b.g.slots;
  for_tokens(b, head, [&](int token) {
    for (int e = threadIdx.x; e < b.n; e += 32) {
      const int block = b.idx[(int64_t(token) * b.kv_heads + head) * b.n + e];
      if (block >= 0) out[atomicAdd(&next[b.g.block_base[token] + block], 1)] = token * b.g.slots + e;
    }
    __syncwarp();
  });
}

}  // namespace

cudaError_t build_gather(const int32_t* idx, int n, int kv_heads, const UnionLists& unions,
                         const GatherIndex& index, cudaStream_t stream) {
  const Build b{idx, n, kv_heads, unions, index};
  const int bytes = index.blocks * 4;
  if (bytes > 48 * 1024) {
    if (cudaError_t e =
            cudaFuncSetAttribute(count_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return e;
    if (cudaError_t e = cudaFuncSetAttribute(fill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return e;
  }
  count_kernel<<<dim3(index.chunks, kv_heads), kThreads, bytes, stream>>>(b);
  scan_kernel<<<kv_heads, 1024, 0, stream>>>(b);
  fill_kernel<<<dim3(index.chunks, kv_heads), 32, bytes, stream>>>(b);
  return cudaGetLastError();
}

}  // namespace hysparse::cuda
