// A counting sort in fixed order: pairs a (chunk of tokens, block), scans over chunks and bins, then each
// chunk writes its pairs token by token.
#include "kernels/cuda/common/gather_index.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 128;

struct Build {
  const int32_t* idx;
  int n, kv_heads, block;
  const int32_t* position;
  UnionLists hard;  // tiles == null: all tokens
  GatherIndex g;
};

// Calls visit(token) for the tokens of this chunk that are entered, in order. Tiles are in packed order.
template <class Visit>
__device__ void for_tokens(const Build& b, int head, Visit visit) {
  const int first = blockIdx.x * b.g.chunk_tokens, end = min(first + b.g.chunk_tokens, b.g.tokens);
  if (!b.hard.tiles) {
    for (int token = first; token < end; ++token) visit(token);
    return;
  }
  int low = 0, high = b.hard.tile_count - 1;  // last tile that starts at or before `first`
  while (low < high) {
    const int mid = (low + high + 1) / 2;
    if (b.hard.tiles[mid].q_row <= first)
      low = mid;
    else
      high = mid - 1;
  }
  for (int t = low; t < b.hard.tile_count; ++t) {
    const Tile tile = b.hard.tiles[t];
    if (tile.q_row >= end) break;
    if (b.hard.lengths[int64_t(head) * b.hard.tile_count + t] >= 0) continue;
    for (int token = max(first, tile.q_row); token < min(end, tile.q_row + tile.q_count); ++token)
      visit(token);
  }
}

// The block of 64 keys that slot s of a token stands for, numbered through the batch, -1 for none; which of
// its quarters are chosen.
__device__ int block_of_slot(const Build& b, int head, int token, int s, uint32_t* quarters) {
  const int32_t* idx = b.idx + (int64_t(token) * b.kv_heads + head) * b.n;
  *quarters = 0xf;
  int block = -1;
  if (b.block >= 64) {
    const int split = b.block / 64, entry = idx[s / split];
    if (entry >= 0) block = entry * split + s % split;
  } else {
    const int merge = 64 / b.block, entry = idx[s];
    const uint32_t part = (1u << (4 / merge)) - 1;
    if (entry >= 0) {
      block = entry / merge;
      *quarters = 0;
      for (int e = 0; e < b.n; ++e) {
        const int other = idx[e];
        if (other < 0 || other / merge != block) continue;
        if (e < s) return -1;  // an earlier entry speaks for the block
        *quarters |= part << (other % merge * (4 / merge));
      }
    }
  }
  return block >= 0 && block * 64 <= b.position[token] ? b.g.block_base[token] + block : -1;
}

__global__ void __launch_bounds__(kThreads) count_kernel(const Build b) {
  extern __shared__ int32_t histogram[];
  const int head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < b.g.blocks; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for_tokens(b, head, [&](int token) {
    if (token % (kThreads / 32) != warp) return;
    for (int s = lane; s < b.g.slots; s += 32) {
      uint32_t quarters;
      const int block = block_of_slot(b, head, token, s, &quarters);
      if (block >= 0) atomicAdd(&histogram[block], 1);
    }
  });
  __syncthreads();
  int32_t* out = b.g.counts + (int64_t(head) * b.g.chunks + blockIdx.x) * b.g.blocks;
  for (int i = threadIdx.x; i < b.g.blocks; i += kThreads) out[i] = histogram[i];
}

// A CTA a head: exclusive sums over the chunks of a pass, then over bins.
__global__ void __launch_bounds__(1024) scan_kernel(const Build b) {
  __shared__ int32_t warp_pairs[32], warp_items[32];
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int bins = b.g.bins();
  int32_t* counts = b.g.counts + int64_t(head) * b.g.chunks * b.g.blocks;
  int32_t* pair_start = b.g.pair_start + int64_t(head) * (bins + 1);
  int32_t* item_start = b.g.item_start + int64_t(head) * (bins + 1);
  int32_t pairs_before = 0, items_before = 0;
  for (int base = 0; base < bins; base += 1024) {
    const int bin = base + threadIdx.x;
    int32_t total = 0;
    if (bin < bins) {
      const int pass = bin / b.g.blocks, block = bin % b.g.blocks;
      const int end = min(b.g.chunks, (pass + 1) * b.g.pass_chunks);
      for (int c = pass * b.g.pass_chunks; c < end; ++c) {
        int32_t* at = counts + int64_t(c) * b.g.blocks + block;
        const int32_t x = *at;
        *at = total;
        total += x;
      }
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
    if (bin < bins) {
      pair_start[bin] = p0 + p - total;
      item_start[bin] = i0 + i - items;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    pair_start[bins] = pairs_before;
    item_start[bins] = items_before;
  }
}

// One warp a chunk, a token at a time. A token's slots stand for distinct blocks, so its lanes never meet in
// a counter and the order is fixed.
__global__ void __launch_bounds__(32) fill_kernel(const Build b) {
  extern __shared__ int32_t next[];
  const int head = blockIdx.y;
  const int32_t* before = b.g.counts + (int64_t(head) * b.g.chunks + blockIdx.x) * b.g.blocks;
  const int32_t* start =
      b.g.pair_start + int64_t(head) * (b.g.bins() + 1) + int64_t(blockIdx.x / b.g.pass_chunks) * b.g.blocks;
  for (int i = threadIdx.x; i < b.g.blocks; i += 32) next[i] = start[i] + before[i];
  __syncwarp();
  int32_t* out = b.g.pairs + head * b.g.head_pairs;
  uint8_t* subs = b.g.subs ? b.g.subs + head * b.g.head_pairs : nullptr;
  for_tokens(b, head, [&](int token) {
    for (int s0 = 0; s0 < b.g.slots; s0 += 32) {
      const int s = s0 + threadIdx.x;
      uint32_t quarters = 0;
      const int block = s < b.g.slots ? block_of_slot(b, head, token, s, &quarters) : -1;
      if (block >= 0) {
        const int at = atomicAdd(&next[block], 1);
        out[at] = token * b.g.slots + s;
        if (subs) subs[at] = uint8_t(quarters);
      }
      const uint32_t valid = __ballot_sync(0xffffffffu, block >= 0);
      if (b.g.valid && threadIdx.x == 0)
        b.g.valid[(int64_t(head) * b.g.tokens + token) * b.g.slot_words + s0 / 32] = valid;
    }
    __syncwarp();
  });
}

__global__ void __launch_bounds__(kThreads) items_kernel(const Build b) {
  const int bin = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y, bins = b.g.bins();
  if (bin >= bins) return;
  const int32_t* item_start = b.g.item_start + int64_t(head) * (bins + 1);
  const int32_t* pair_start = b.g.pair_start + int64_t(head) * (bins + 1);
  const int first = item_start[bin], count = item_start[bin + 1] - first;
  if (count == 0) return;
  const int pass_first = item_start[bin / b.g.blocks * b.g.blocks];
  const BlockSpan span = b.g.spans[bin % b.g.blocks];
  const int token = b.g.pairs[head * b.g.head_pairs + pair_start[bin]] / b.g.slots;
  KeyItem item{};
  item.kv_row = span.kv_row;
  item.token0 = token - b.position[token] + span.position;
  item.live = span.live;
  for (int i = 0; i < count; ++i) {
    item.first = pair_start[bin] + i * b.g.item_pairs;
    item.count = min(b.g.item_pairs, pair_start[bin + 1] - item.first);
    item.slot = count > 1 ? first + i - pass_first : -1;
    b.g.items[int64_t(head) * b.g.item_capacity + first + i] = item;
  }
}

}  // namespace

cudaError_t build_gather(const GatherBuild& build, cudaStream_t stream) {
  const GatherIndex& g = build.index;
  const Build b{build.idx,
                build.n,
                build.kv_heads,
                build.block,
                build.position,
                build.hard ? *build.hard : UnionLists{},
                g};
  const int bytes = g.blocks * 4;
  if (bytes > 48 * 1024) {
    if (cudaError_t e =
            cudaFuncSetAttribute(count_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return e;
    if (cudaError_t e = cudaFuncSetAttribute(fill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
      return e;
  }
  count_kernel<<<dim3(g.chunks, build.kv_heads), kThreads, bytes, stream>>>(b);
  scan_kernel<<<build.kv_heads, 1024, 0, stream>>>(b);
  fill_kernel<<<dim3(g.chunks, build.kv_heads), 32, bytes, stream>>>(b);
  if (g.items)
    items_kernel<<<dim3((g.bins() + kThreads - 1) / kThreads, build.kv_heads), kThreads, 0, stream>>>(b);
  return cudaGetLastError();
}

}  // namespace hysparse::cuda
