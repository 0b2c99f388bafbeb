// A sparse layer's decode in one launch: a cluster of CTAs per sequence and KV head takes the selected tokens
// and the window's, both softmaxes are merged through distributed shared memory, gated and written once. On
// GPUs without clusters one CTA does it all.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/decode/key_pipe.cuh"

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
  PageMath pages, blocks;
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

// Rings keep bf16 beside pages of codes.
template <Code kCode, int kD, int kDv>
struct SparseSmem {
  static constexpr int kPages = KeyPipe<kCode, kD, kDv, kSparseStages>::kBytes,
                       kRing = KeyPipe<Code::bf16, kD, kDv, kSparseStages>::kBytes,
                       kWindow = kSparseWarps * kPages, kMerged = kWindow + (kPages > kRing ? kPages : kRing),
                       kAll = kMerged + int(sizeof(Partial<kDv>));
};

__device__ inline float merge_factor(float m, float all) {
  return m == -INFINITY ? 0.0f : exp2_fast(m - all);
}

template <Code kCode, int kD, int kDv, int kRows, int kCluster>
__global__ void __launch_bounds__(kSparseThreads) sparse_kernel(const SparseParams p) {
  using Smem = SparseSmem<kCode, kD, kDv>;
  extern __shared__ __align__(128) uint8_t smem[];
  const int rank = blockIdx.x % kCluster, g = blockIdx.x / kCluster, b = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  join_stream();
  const int length = p.kv_len[b], rows = p.q_heads / p.kv_heads;
  const auto of_warp = [&](int i) { return reinterpret_cast<Partial<kDv>*>(smem + i * Smem::kPages); };
  Partial<kDv>& sparse = *reinterpret_cast<Partial<kDv>*>(smem + Smem::kMerged);
  Partial<kDv>& window = *of_warp(kSparseWarps);

  // row_at(step, row) says whether this lane's row of a step is there and where.
  const auto walk = [&]<Code kOf>(int steps, const auto& row_at) {
    KeyPipe<kOf, kD, kDv, kSparseStages> pipe(smem + warp * Smem::kPages, p.dim, p.v_dim);
    WarpTile<kOf, kD, kDv, kRows> w;
    w.start();
    uint32_t masks[kSparseStages] = {};
    const auto begin = [&](int step) {
      KeyRow row{};
      const bool seen = step < steps && row_at(step, row);
      const uint32_t mask = __ballot_sync(kAll, seen) & first_bits(kKeys);
      pipe.fetch(row, mask);
      return mask;
    };
#pragma unroll
    for (int i = 0; i < kSparseStages; ++i) masks[i] = begin(i);
    if (steps > 0) w.load_q(p.q + b * p.q_row + int64_t(g) * rows * p.q_head, p.q_head, rows, p.dim);
    for (int i0 = 0; i0 < steps; i0 += kSparseStages)
#pragma unroll
      for (int j = 0; j < kSparseStages; ++j) {
        const uint32_t keys = pipe.wait();
        if (masks[j]) w.attend(keys, masks[j], p.scale_log2);
        __syncwarp();
        masks[j] = begin(i0 + j + kSparseStages);
      }
    w.leave(pipe.result());
  };
  if (warp < kSparseWarps) {
    const int tokens = p.entries * p.block;
    const int32_t* idx = p.idx + (int64_t(b) * p.kv_heads + g) * p.entries;
    const int first = rank * kSparseWarps + warp, stride = kCluster * kSparseWarps;
    const int steps = (tokens + kKeys - 1) / kKeys;
    walk.template operator()<kCode>(steps > first ? (steps - first - 1) / stride + 1 : 0,
                                    [&](int step, KeyRow& row) {
                                      const int i = (first + step * stride) * kKeys + lane % kKeys;
                                      const int block = i < tokens ? idx[p.blocks.page(i)] : -1;
                                      const int64_t at = int64_t(block) * p.block + p.blocks.inner(i);
                                      if (block < 0 || at >= length) return false;
                                      row = paged_row<kCode>(p.kv, p.pages, p.kv_heads, b, int(at), g);
                                      return true;
                                    });
  } else {
    const int begin = max(0, length - p.window), fresh = p.ring.fresh_k.data ? length - 1 : length;
    const int all = p.window > 0 ? (length - begin + kKeys - 1) / kKeys : 0;
    const int steps = all > rank ? (all - rank - 1) / kCluster + 1 : 0;
    const auto key_of = [&](int step) { return begin + (rank + step * kCluster) * kKeys + lane % kKeys; };
    const auto shared_row = [&](int step, KeyRow& row) {
      const int at = key_of(step);
      if (at >= length) return false;
      row = paged_row<kCode>(p.kv, p.pages, p.kv_heads, b, at, g);
      return true;
    };
    const auto ring_row = [&](int step, KeyRow& row) {
      const int at = key_of(step);
      if (at >= length) return false;
      if (at < fresh) {
        const int slot = p.ring.slot[b], inner = at % p.ring.length;
        row = {row_of<2>(p.ring.k, slot, inner, g), row_of<2>(p.ring.v, slot, inner, g), nullptr};
      } else {
        const auto fresh_row = [&](const hysparse_cuda_tensor& t) {
          return static_cast<const uint8_t*>(t.data) + (b * t.stride_row + g * t.stride_head) * 2;
        };
        row = {fresh_row(p.ring.fresh_k), fresh_row(p.ring.fresh_v), nullptr};
      }
      return true;
    };
    if constexpr (kCode == Code::bf16) {
      walk.template operator()<kCode>(steps, [&](int step, KeyRow& row) {
        return p.shared_window ? shared_row(step, row) : ring_row(step, row);
      });
    } else if (p.shared_window) {
      walk.template operator()<kCode>(steps, shared_row);
    } else {
      walk.template operator()<Code::bf16>(steps, ring_row);
    }
  }
  __syncthreads();

  // The CTA's sparse warps into one.
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
