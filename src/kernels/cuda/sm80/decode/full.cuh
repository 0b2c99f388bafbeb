// A full layer's decode: each warp takes a run of keys, each CTA leaves the merged result of its warps and
// the raw block maxima; the combine kernel (combine.cu) does the rest.
#pragma once

#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/decode/key_pipe.cuh"

namespace hysparse::cuda::decode {

constexpr int kSplitWarps = 2;

// Keys a CTA takes, a multiple of the largest block for each of its warps: enough CTAs for short sequences,
// long runs for long ones. A function of the sequence's own length, so that its result does not depend on the
// batch.
__host__ __device__ constexpr int split_keys(int length) {
  return length <= 16384 ? 256 : length <= 65536 ? 512 : 1024;
}
__host__ __device__ constexpr int splits_of(int length) {
  return (length + split_keys(length) - 1) / split_keys(length);
}
// The most that any sequence of at most `longest` keys has.
constexpr int most_splits(int longest) {
  int most = splits_of(longest);
  for (const int at : {16384, 65536})
    if (longest > at && splits_of(at) > most) most = splits_of(at);
  return most;
}

struct FullParams {
  const int32_t* kv_len;
  int q_heads, kv_heads, dim, v_dim;
  const __nv_bfloat16* q;
  int64_t q_row, q_head;
  hysparse_cuda_pages kv;
  PageMath pages;
  float scale_log2;
  int block;
  float* raw;  // null or [batch, Hq, blocks]: maxima of scaled logits, log2 domain
  int64_t blocks;
  float* part_o;  // [batch, Hq, splits, dv] unnormalised
  float2* part;   // [batch, Hq, splits] (maximum, sum)
  int splits;
};

template <Code kCode, int kD, int kDv, int kRows, int kStages>
__global__ void __launch_bounds__(kSplitWarps * 32) full_kernel(const FullParams p) {
  using Pipe = KeyPipe<kCode, kD, kDv, kStages>;
  extern __shared__ __align__(128) uint8_t smem[];
  // Neighbours in the grid read the KV heads of the same tokens, which lie side by side in memory.
  const int g = blockIdx.x, split = blockIdx.y, b = blockIdx.z;
  join_stream();
  const int length = p.kv_len[b], keys = split_keys(length);
  if (split * keys >= length) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rows = p.q_heads / p.kv_heads;
  const int run = keys / kSplitWarps, begin = split * keys + warp * run, end = min(length, begin + run);
  const int steps = max(0, (end - begin + kKeys - 1) / kKeys);

  const bool runs = p.kv.page_size % kKeys == 0;  // the keys of a step lie in one page
  // Where the next step to fetch lies is looked up a step early.
  KeyRow next{};
  const auto look_up = [&](int step) {
    const int at = begin + step * kKeys + (runs ? 0 : lane % kKeys);
    if (at < end) next = paged_row<kCode>(p.kv, p.pages, p.kv_heads, b, at, g);
  };
  const auto mask_of = [&](int step) { return first_bits(min(kKeys, end - begin - step * kKeys)); };
  const RowStrides strides = row_strides<kCode>(p.kv, p.kv_heads);
  Pipe pipe(smem + warp * Pipe::kBytes, p.dim, p.v_dim);
  const auto fetch = [&](int step) {
    const KeyRow row = next;
    look_up(step + 1);
    if (runs)
      pipe.fetch(row, strides, min(kKeys, end - begin - step * kKeys));
    else
      pipe.fetch(row, mask_of(step));
  };
  look_up(0);
#pragma unroll
  for (int i = 0; i < kStages; ++i) fetch(i);
  WarpTile<kCode, kD, kDv, kRows> w;
  w.start();
  w.load_q(p.q + b * p.q_row + int64_t(g) * rows * p.q_head, p.q_head, rows, p.dim);

  float best[w.kHalves];  // of the block at hand
#pragma unroll
  for (int r = 0; r < w.kHalves; ++r) best[r] = -INFINITY;
  for (int i = 0; i < steps; ++i) {
    const uint32_t mask = mask_of(i);
    w.attend(pipe.wait(), mask, p.scale_log2);
    __syncwarp();
    fetch(i + kStages);
    if (!p.raw) continue;
    const int past = begin + (i + 1) * kKeys;
#pragma unroll
    for (int r = 0; r < w.kHalves; ++r) best[r] = fmaxf(best[r], w.step_max[r]);
    if ((past & (p.block - 1)) != 0 && i + 1 < steps) continue;
#pragma unroll
    for (int r = 0; r < w.kHalves; ++r) {
      const int head = lane / 4 + r * 8;
      if (lane % 4 == 0 && head < rows)
        p.raw[(int64_t(b) * p.q_heads + g * rows + head) * p.blocks + (past - 1) / p.block] = best[r];
      best[r] = -INFINITY;
    }
  }
  w.leave(pipe.result());
  __syncthreads();

  const auto partial = [&](int i) { return reinterpret_cast<const Partial<kDv>*>(smem + i * Pipe::kBytes); };
  const int64_t first = (int64_t(b) * p.q_heads + g * rows) * p.splits + split;
  for (int i = threadIdx.x; i < rows * (p.v_dim / 2); i += kSplitWarps * 32) {
    const int row = i / (p.v_dim / 2), c = i % (p.v_dim / 2) * 2;
    float m = -INFINITY, l = 0;
#pragma unroll
    for (int j = 0; j < kSplitWarps; ++j) m = fmaxf(m, partial(j)->m[row]);
    float2 o = {0, 0};
#pragma unroll
    for (int j = 0; j < kSplitWarps; ++j) {  // some key of the split is visible: m is finite
      const float f = exp2_fast(partial(j)->m[row] - m);
      const float2 x = *reinterpret_cast<const float2*>(&partial(j)->o[row][c]);
      o.x += f * x.x;
      o.y += f * x.y;
      l += f * partial(j)->l[row];
    }
    const int64_t at = first + int64_t(row) * p.splits;
    *reinterpret_cast<float2*>(p.part_o + at * p.v_dim + c) = o;
    if (c == 0) p.part[at] = {m, l};
  }
}

}  // namespace hysparse::cuda::decode
