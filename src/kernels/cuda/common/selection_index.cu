#include "kernels/cuda/common/selection_index.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 256;

// A CTA a (tile, KV head): a bitmap of chosen blocks in shared memory, ranks by popcount, then the token
// bits.
__global__ void __launch_bounds__(kThreads) union_kernel(const UnionParams p, int words) {
  extern __shared__ uint32_t smem[];
  uint32_t* bitmap = smem;          // [words]
  uint32_t* before = smem + words;  // [words]: chosen blocks in earlier words
  const UnionLists& u = p.lists;
  __shared__ int32_t total;
  const int tile_index = blockIdx.x, head = blockIdx.y;
  const Tile tile = u.tiles[tile_index];
  const int64_t list = int64_t(head) * u.tile_count + tile_index;
  UnionEntry* out = u.entries + list * u.capacity;
  const int split = p.block / u.list_block, half = u.tile_tokens / 2;

  for (int i = threadIdx.x; i < words; i += kThreads) bitmap[i] = 0;
  __syncthreads();
  const int pairs = tile.q_count * p.n;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int block = p.idx[(int64_t(tile.q_row + i / p.n) * p.kv_heads + head) * p.n + i % p.n];
    for (int c = 0; block >= 0 && c < split; ++c) {
      const int b = block * split + c;
      atomicOr(&bitmap[b / 32], 1u << (b % 32));
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // exclusive prefix of popcounts
    uint32_t base = 0;
    for (int w0 = 0; w0 < words; w0 += 32) {
      const int w = w0 + threadIdx.x;
      const uint32_t own = w < words ? __popc(bitmap[w]) : 0;
      uint32_t sum = own;
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t y = __shfl_up_sync(0xffffffffu, sum, step);
        if (threadIdx.x >= step) sum += y;
      }
      if (w < words) before[w] = base + sum - own;
      base += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (threadIdx.x == 0) {
      total = int32_t(base) <= p.longest ? int32_t(base) : -1;
      u.lengths[list] = total;
    }
  }
  __syncthreads();
  if (total < 0) return;
  for (int w = threadIdx.x; w < words; w += kThreads) {
    uint32_t bits = bitmap[w];
    for (uint32_t rank = before[w]; bits; bits &= bits - 1, ++rank) {
      out[rank].block = w * 32 + __ffs(int(bits)) - 1;
      out[rank].mask[0] = out[rank].mask[1] = 0;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int token = i / p.n;
    const int block = p.idx[(int64_t(tile.q_row + token) * p.kv_heads + head) * p.n + i % p.n];
    for (int c = 0; block >= 0 && c < split; ++c) {
      const int b = block * split + c;
      const uint32_t rank = before[b / 32] + __popc(bitmap[b / 32] & ((1u << (b % 32)) - 1));
      atomicOr(reinterpret_cast<unsigned long long*>(&out[rank].mask[token >= half]), 1ull << (token % half));
    }
  }
}

}  // namespace

cudaError_t build_unions(const UnionParams& p, int max_blocks, cudaStream_t stream) {
  const int words = (max_blocks * (p.block / p.lists.list_block) + 31) / 32;
  const int bytes = words * 8;
  if (bytes > 48 * 1024) {
    if (cudaError_t e =
            cudaFuncSetAttribute(union_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return e;
  }
  union_kernel<<<dim3(p.lists.tile_count, p.kv_heads), kThreads, bytes, stream>>>(p, words);
  return cudaGetLastError();
}

}  // namespace hysparse::cuda
