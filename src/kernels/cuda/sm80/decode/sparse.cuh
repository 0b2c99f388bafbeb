// A sparse layer's decode in one launch: a cluster of CTAs per sequence and KV head takes the selected tokens
// and the window's, both softmaxes are merged through distributed shared memory, gated and written once. On
// GPUs without clusters one CTA does it all.
#pragma once

#include <cooperative_groups.h>

#include "hysparse/cuda_decode.h"
#include "kernels/cuda/sm80/decode/warp_tile.cuh"

namespace hysparse::cuda::decode {

constexpr int kSparseStages = 2, kSparseWarps = 4,
              kSparseThreads = (kSparseWarps + 1) * 32;  // the last warp takes the window

struct SparseParams {
  const int32_t* kv_len;
  int q_heads, kv_heads, dim, v_dim;
  const __nv_bfloat16* q;
  int64_t q_row, q_head;
  float scale_log2;
  hysparse_cuda_pages kv;
  int block, entries;
  const int32_t* idx;
  const float *sparse_sinks, *window_sinks;
  int window;
  bool shared_window;
  hysparse_cuda_ring ring;
  const float *gate_sparse, *gate_window;
  int64_t gate_stride;
  bool gate_channels;
  __nv_bfloat16* out;
  int64_t out_row, out_head;
};

template <int kD, int kDv>
constexpr int kSparseSmem = kSparseThreads / 32 * kSparseStages* WarpTile<kD, kDv>::kStage * 2 +
                            int(sizeof(Partial<kDv>));

__device__ inline float merge_factor(float m, float all) {
  return m == -INFINITY ? 0.0f : exp2_fast(m - all);
}

template <int kD, int kDv, int kCluster>
__global__ void __launch_bounds__(kSparseThreads) sparse_kernel(const SparseParams p) {
  using Warp = WarpTile<kD, kDv>;
  extern __shared__ __align__(128) uint8_t smem[];
  const int rank = blockIdx.x % kCluster, g = blockIdx.x / kCluster, b = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = p.kv_len[b], rows = p.q_heads / p.kv_heads;
  uint8_t* mine = smem + warp * kSparseStages * Warp::kStage * 2;
  const uint32_t stage = smem_address(mine);
  Partial<kDv>& sparse =
      *reinterpret_cast<Partial<kDv>*>(smem + kSparseThreads / 32 * kSparseStages * Warp::kStage * 2);
  Partial<kDv>& window =
      *reinterpret_cast<Partial<kDv>*>(smem + kSparseWarps * kSparseStages * Warp::kStage * 2);

  Warp w;
  w.start();
  // fetch(step, stage) brings a step's keys on their way and returns which are there.
  const auto walk = [&](int steps, const auto& fetch) {
    uint32_t masks[kSparseStages] = {};
    const auto begin = [&](int step) {
      if (step < steps)
        masks[step % kSparseStages] = fetch(step, stage + step % kSparseStages * Warp::kStage * 2);
      copy_async_commit();
    };
#pragma unroll
    for (int i = 0; i < kSparseStages; ++i) begin(i);
    if (steps > 0) w.load_q(p.q + b * p.q_row + int64_t(g) * rows * p.q_head, p.q_head, rows, p.dim);
    for (int i0 = 0; i0 < steps; i0 += kSparseStages)
#pragma unroll
      for (int j = 0; j < kSparseStages; ++j) {
        copy_async_wait<kSparseStages - 1>();
        __syncwarp();
        if (masks[j]) w.attend(stage + j * Warp::kStage * 2, masks[j], p.scale_log2);
        masks[j] = 0;
        __syncwarp();
        begin(i0 + j + kSparseStages);
      }
  };
  if (warp < kSparseWarps) {
    const int tokens = p.entries * p.block;
    const int32_t* idx = p.idx + (int64_t(b) * p.kv_heads + g) * p.entries;
    const bool runs = p.block % kKeys == 0 && p.kv.page_size % kKeys == 0;
    const int first = rank * kSparseWarps + warp, stride = kCluster * kSparseWarps;
    const int steps = (tokens + kKeys - 1) / kKeys;
    walk(steps > first ? (steps - first - 1) / stride + 1 : 0, [&](int step, uint32_t to) {
      const int i = (first + step * stride) * kKeys + (runs ? 0 : lane % kKeys);
      const int block = i < tokens ? idx[i / p.block] : -1;
      const int64_t at = int64_t(block) * p.block + i % p.block;
      const bool seen = block >= 0 && at < length;
      if (runs) {
        if (!seen) return 0u;
        const int there = int(min(int64_t(kKeys), length - at));
        Warp::fetch(to, paged_run(p.kv, b, int(at), there, g), p.dim, p.v_dim);
        return first_bits(there);
      }
      const uint32_t mask = __ballot_sync(kAll, seen) & first_bits(kKeys);
      if (mask) Warp::fetch(to, seen ? paged_row(p.kv, b, int(at), g) : KeyRow{}, mask, p.dim, p.v_dim);
      return mask;
    });
  } else {
    const int begin = max(0, length - p.window), fresh = p.ring.fresh_k.data ? length - 1 : length;
    const int steps = p.window > 0 ? (length - begin + kKeys - 1) / kKeys : 0;
    walk(steps > rank ? (steps - rank - 1) / kCluster + 1 : 0, [&](int step, uint32_t to) {
      const int at = begin + (rank + step * kCluster) * kKeys + lane % kKeys;
      const bool seen = at < length;
      KeyRow row{};
      if (seen && p.shared_window)
        row = paged_row(p.kv, b, at, g);
      else if (seen && at < fresh)
        row = {row_of(p.ring.k, p.ring.slot[b], at % p.ring.length, g),
               row_of(p.ring.v, p.ring.slot[b], at % p.ring.length, g)};
      else if (seen)
        row = {static_cast<const __nv_bfloat16*>(p.ring.fresh_k.data) + b * p.ring.fresh_k.stride_row +
                   g * p.ring.fresh_k.stride_head,
               static_cast<const __nv_bfloat16*>(p.ring.fresh_v.data) + b * p.ring.fresh_v.stride_row +
                   g * p.ring.fresh_v.stride_head};
      const uint32_t mask = __ballot_sync(kAll, seen) & first_bits(kKeys);
      Warp::fetch(to, row, mask, p.dim, p.v_dim);
      return mask;
    });
  }
  copy_async_wait<0>();
  __syncwarp();
  w.leave(*reinterpret_cast<Partial<kDv>*>(mine));
  __syncthreads();

  // The CTA's sparse warps into one.
  const auto of_warp = [&](int i) {
    return reinterpret_cast<const Partial<kDv>*>(smem + i * kSparseStages * Warp::kStage * 2);
  };
  for (int i = threadIdx.x; i < rows * kDv; i += kSparseThreads) {
    const int row = i / kDv, c = i % kDv;
    float m = -INFINITY, l = 0, o = 0;
#pragma unroll
    for (int j = 0; j < kSparseWarps; ++j) m = fmaxf(m, of_warp(j)->m[row]);
#pragma unroll
    for (int j = 0; j < kSparseWarps; ++j) {
      const float f = merge_factor(of_warp(j)->m[row], m);
      l += f * of_warp(j)->l[row];
      o += f * of_warp(j)->o[row][c];
    }
    sparse.o[row][c] = o;
    if (c == 0) {
      sparse.m[row] = m;
      sparse.l[row] = l;
    }
  }

  const Partial<kDv>* all_sparse[kCluster];
  const Partial<kDv>* all_window[kCluster];
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      all_sparse[i] = cluster.map_shared_rank(&sparse, i);
      all_window[i] = cluster.map_shared_rank(&window, i);
    }
  } else
#endif
  {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      all_sparse[i] = &sparse;
      all_window[i] = &window;
    }
  }
  // Each CTA writes its share of the channels.
  const auto branch = [&](const Partial<kDv>* const(&all)[kCluster], const float* sinks, int row, int c) {
    const float sink = sinks ? sinks[g * rows + row] * kLog2e : -INFINITY;
    float ms[kCluster], m = sink;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) m = fmaxf(m, ms[i] = all[i]->m[row]);
    float l = merge_factor(sink, m), o = 0;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      const float f = merge_factor(ms[i], m);
      l += f * all[i]->l[row];
      o += f * all[i]->o[row][c];
    }
    return l > 0 ? o / l : 0.0f;
  };
  const auto gate = [&](const float* gates, int head, int c) {
    if (!gates) return 1.0f;
    const float x = gates[b * p.gate_stride + (p.gate_channels ? head * p.v_dim + c : head)];
    return 1.0f / (1.0f + __expf(-x));
  };
  constexpr int kShare = kDv / kCluster;
  for (int i = threadIdx.x; i < rows * kShare; i += kSparseThreads) {
    const int row = i / kShare, c = rank * kShare + i % kShare, head = g * rows + row;
    if (c >= p.v_dim) continue;
    float y = 0;
    if (p.entries > 0) y += gate(p.gate_sparse, head, c) * branch(all_sparse, p.sparse_sinks, row, c);
    if (p.window > 0) y += gate(p.gate_window, head, c) * branch(all_window, p.window_sinks, row, c);
    p.out[b * p.out_row + head * p.out_head + c] = __float2bfloat16_rn(y);
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1)
    cooperative_groups::this_cluster().sync();  // nobody leaves while others read its shared memory
#endif
}

}  // namespace hysparse::cuda::decode
