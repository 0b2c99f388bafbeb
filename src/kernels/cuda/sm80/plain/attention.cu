// Attention for every legal shape, dtype and cache layout, forward and backward: one warp a query row and
// head (forward, dq) or a key row and KV head (dk, dv). Simple before fast; sums in f32, a fixed order
// everywhere.
#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

using Params = hysparse_cuda_plain_attention_params;
constexpr int kWarps = 4, kMaxDim = 256, kLaneDims = kMaxDim / 32;
constexpr uint32_t kAll = 0xffffffffu;

// Row of key position p of sequence s, KV head g.
struct KeyRow {
  int64_t k, v;
  bool fresh;
};
__device__ KeyRow key_row(const Params& a, int64_t s, int64_t p, int64_t g) {
  const hysparse_cuda_kv& kv = a.kv;
  const auto in = [g](const View& t, int64_t outer, int64_t inner) {
    return t.rank == 4 ? outer * t.stride[0] + inner * t.stride[1] + g * t.stride[2]
                       : inner * t.stride[0] + g * t.stride[1];
  };
  if (kv.kind == HYSPARSE_KV_CONTIGUOUS)
    return {in(kv.k, 0, kv.cu_kv[s] + p), in(kv.v, 0, kv.cu_kv[s] + p), false};
  if (kv.kind == HYSPARSE_KV_PAGED) {
    const int64_t page = kv.page_table[s * kv.page_table_stride + p / kv.page_size], inner = p % kv.page_size;
    return {in(kv.k, page, inner), in(kv.v, page, inner), false};
  }
  const int64_t past = a.batch.past[s];
  if (p < past) return {in(kv.k, kv.slot[s], p % kv.ring_len), in(kv.v, kv.slot[s], p % kv.ring_len), false};
  const int64_t row = a.batch.cu_q[s] + (p - past);
  return {in(kv.fresh_k, 0, row), in(kv.fresh_v, 0, row), true};
}
template <class T>
__device__ const T* k_of(const Params& a, const KeyRow& r) {
  return static_cast<const T*>(r.fresh ? a.kv.fresh_k.data : a.kv.k.data) + r.k;
}
template <class T>
__device__ const T* v_of(const Params& a, const KeyRow& r) {
  return static_cast<const T*>(r.fresh ? a.kv.fresh_v.data : a.kv.v.data) + r.v;
}
__device__ int64_t kv_heads(const Params& a) {
  return a.kv.k.shape[a.kv.k.rank - 2];
}
__device__ int64_t v_dim(const Params& a) {
  return a.kv.v.shape[a.kv.v.rank - 1];
}

template <class T>
__device__ float dot(const float* q, const T* k, int64_t d) {
  float sum = 0;
  for (int64_t c = 0; c < d; ++c) sum += q[c] * to_float(k[c]);
  return sum;
}

// Calls step(p, seen) for the keys of a query row and KV head, 32 at a time, a key a lane.
template <class Step>
__device__ void for_keys(const Params& a, int64_t row, int64_t g, Step step) {
  const int lane = threadIdx.x % 32;
  const int64_t t = a.batch.position[row];
  if (!a.idx.data) {
    for (int64_t p = a.window > 0 ? max(int64_t(0), t - a.window + 1) : 0; p <= t; p += 32)
      step(p + lane, p + lane <= t);
    return;
  }
  const int32_t* idx = static_cast<const int32_t*>(a.idx.data) + row * a.idx.stride[0] + g * a.idx.stride[1];
  const int64_t tokens = a.idx.shape[2] * a.block;
  for (int64_t i = lane; i - lane < tokens; i += 32) {
    const int64_t block = i < tokens ? idx[i / a.block] : -1, p = block * a.block + i % a.block;
    const bool seen = block >= 0 && p <= t;
    if (__any_sync(kAll, seen)) step(p, seen);
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) forward_kernel(const Params a) {
  __shared__ float q_of[kWarps][kMaxDim];
  const int lane = threadIdx.x % 32;
  const int64_t heads = a.q.shape[1], item = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (item >= a.batch.tokens * heads) return;
  const int64_t row = item / heads, h = item % heads, g = h / (heads / kv_heads(a)),
                s = a.batch.sequence[row];
  const int64_t d = a.q.shape[2], dv = v_dim(a);
  float* q = q_of[threadIdx.x / 32];
  for (int64_t c = lane; c < d; c += 32) q[c] = to_float(row_at<T>(a.q, item)[c]);
  __syncwarp();
  const float scale = float(a.scale);
  float m = -INFINITY, l = 0, o[kLaneDims] = {};
  for_keys(a, row, g, [&](int64_t p, bool seen) {
    KeyRow r{};
    float x = -INFINITY;
    if (seen) {
      r = key_row(a, s, p, g);
      x = scale * dot(q, k_of<T>(a, r), d);
    }
    const float next = fmaxf(m, warp_largest(x)), base = next == -INFINITY ? 0.0f : next;
    const float shrink = expf(m - base), e = expf(x - base);
    m = next;
    l = l * shrink + warp_total(e);
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) o[i] *= shrink;
    for (int j = 0; j < 32; ++j) {
      const float weight = __shfl_sync(kAll, e, j);
      const KeyRow at{0, __shfl_sync(kAll, r.v, j), bool(__shfl_sync(kAll, int(r.fresh), j))};
      if (!__shfl_sync(kAll, int(seen), j)) continue;
      const T* v = v_of<T>(a, at);
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i)
        if (lane + i * 32 < dv) o[i] += weight * to_float(v[lane + i * 32]);
    }
  });
  const float sink = a.sinks.data ? static_cast<const float*>(a.sinks.data)[h] : -INFINITY;
  const float most = fmaxf(m, sink);
  const float keep = m == -INFINITY ? 0.0f : expf(m - most);
  const float total = l * keep + (sink == -INFINITY ? 0.0f : expf(sink - most));
#pragma unroll
  for (int i = 0; i < kLaneDims; ++i)
    if (lane + i * 32 < dv)
      row_at<T>(a.o, item)[lane + i * 32] = from_float<T>(l > 0 ? o[i] * keep / total : 0.0f);
  if (lane == 0) row_at<float>(a.lse, row)[h] = total > 0 ? most + logf(total) : -INFINITY;
}

// A thread a block, KV head and query row.
template <class T>
__global__ void scores_kernel(const Params a) {
  const int64_t hkv = kv_heads(a), ratio = a.q.shape[1] / hkv, blocks = a.block_scores.shape[2],
                d = a.q.shape[2];
  const int64_t item = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (item >= a.batch.tokens * hkv * blocks) return;
  const int64_t j = item % blocks, g = item / blocks % hkv, row = item / blocks / hkv,
                s = a.batch.sequence[row];
  const int64_t t = a.batch.position[row];
  float score = -INFINITY;
  for (int64_t p = j * a.block; p < (j + 1) * a.block && p <= t; ++p) {
    const T* k = k_of<T>(a, key_row(a, s, p, g));
    for (int64_t r = 0; r < ratio; ++r) {
      const int64_t h = g * ratio + r;
      const T* q = row_at<T>(a.q, row * a.q.shape[1] + h);
      float sum = 0;
      for (int64_t c = 0; c < d; ++c) sum += to_float(q[c]) * to_float(k[c]);
      score = fmaxf(score, float(a.scale) * sum - row_at<float>(a.lse, row)[h]);
    }
  }
  *(static_cast<float*>(a.block_scores.data) + row * a.block_scores.stride[0] + g * a.block_scores.stride[1] +
    j) = score;
}

template <class T>
__device__ float delta_of(const Params& a, int64_t item, int64_t dv) {  // o . d_o, by a warp
  float sum = 0;
  for (int64_t c = threadIdx.x % 32; c < dv; c += 32)
    sum += to_float(row_at<T>(a.o, item)[c]) * to_float(row_at<T>(a.d_o, item)[c]);
  return warp_total(sum);
}

template <class T>
__global__ void __launch_bounds__(kWarps * 32) dq_kernel(const Params a) {
  __shared__ float q_of[kWarps][kMaxDim], d_o_of[kWarps][kMaxDim];
  const int lane = threadIdx.x % 32;
  const int64_t heads = a.q.shape[1], item = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (item >= a.batch.tokens * heads) return;
  const int64_t row = item / heads, h = item % heads, g = h / (heads / kv_heads(a)),
                s = a.batch.sequence[row];
  const int64_t d = a.q.shape[2], dv = v_dim(a);
  float* q = q_of[threadIdx.x / 32];
  float* d_o = d_o_of[threadIdx.x / 32];
  for (int64_t c = lane; c < d; c += 32) q[c] = to_float(row_at<T>(a.q, item)[c]);
  for (int64_t c = lane; c < dv; c += 32) d_o[c] = to_float(row_at<T>(a.d_o, item)[c]);
  const float delta = delta_of<T>(a, item, dv), lse = row_at<float>(a.lse, row)[h], scale = float(a.scale);
  __syncwarp();
  float dq[kLaneDims] = {};
  for_keys(a, row, g, [&](int64_t p, bool seen) {
    KeyRow r{};
    float ds = 0;
    if (seen) {
      r = key_row(a, s, p, g);
      const float weight = expf(scale * dot(q, k_of<T>(a, r), d) - lse);
      ds = scale * weight * (dot(d_o, v_of<T>(a, r), dv) - delta);
    }
    for (int j = 0; j < 32; ++j) {
      const float x = __shfl_sync(kAll, ds, j);
      const int64_t at = __shfl_sync(kAll, r.k, j);
      if (!__shfl_sync(kAll, int(seen), j)) continue;
      const T* k = static_cast<const T*>(a.kv.k.data) + at;
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i)
        if (lane + i * 32 < d) dq[i] += x * to_float(k[lane + i * 32]);
    }
  });
#pragma unroll
  for (int i = 0; i < kLaneDims; ++i)
    if (lane + i * 32 < d) row_at<T>(a.dq, item)[lane + i * 32] = from_float<T>(dq[i]);
}

__device__ bool sees(const Params& a, int64_t row, int64_t g, int64_t t, int64_t p) {
  if (p > t || (a.window > 0 && p <= t - a.window)) return false;
  if (!a.idx.data) return true;
  const int32_t* idx = static_cast<const int32_t*>(a.idx.data) + row * a.idx.stride[0] + g * a.idx.stride[1];
  for (int64_t e = 0; e < a.idx.shape[2]; ++e)
    if (idx[e] == p / a.block) return true;
  return false;
}

// A warp a key and KV head of sequence blockIdx.y: all queries that see it, 32 at a time.
template <class T>
__global__ void __launch_bounds__(kWarps * 32) dkv_kernel(const Params a) {
  __shared__ float k_of_warp[kWarps][kMaxDim], v_of_warp[kWarps][kMaxDim];
  const int lane = threadIdx.x % 32;
  const int64_t s = blockIdx.y, hkv = kv_heads(a), heads = a.q.shape[1], ratio = heads / hkv;
  const int64_t first = a.batch.cu_q[s], queries = a.batch.cu_q[s + 1] - first, past = a.batch.past[s];
  const int64_t d = a.q.shape[2], dv = v_dim(a);
  for (int64_t item = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32; item < (past + queries) * hkv;
       item += int64_t(gridDim.x) * kWarps) {
    const int64_t p = item / hkv, g = item % hkv;
    const KeyRow r = key_row(a, s, p, g);
    float* k = k_of_warp[threadIdx.x / 32];
    float* v = v_of_warp[threadIdx.x / 32];
    __syncwarp();
    for (int64_t c = lane; c < d; c += 32) k[c] = to_float(k_of<T>(a, r)[c]);
    for (int64_t c = lane; c < dv; c += 32) v[c] = to_float(v_of<T>(a, r)[c]);
    __syncwarp();
    float dk[kLaneDims] = {}, d_v[kLaneDims] = {};
    bool any = false;
    const int64_t from = max(int64_t(0), p - past),
                  to = a.window > 0 ? min(queries, p - past + a.window) : queries;
    for (int64_t i0 = from; i0 < to; i0 += 32) {
      const int64_t row = first + i0 + lane;
      const bool seen = i0 + lane < to && sees(a, row, g, past + i0 + lane, p);
      const uint32_t who = __ballot_sync(kAll, seen);
      if (who == 0) continue;
      any = true;
      for (int64_t h = g * ratio; h < (g + 1) * ratio; ++h) {
        float weight = 0, ds = 0;
        if (seen) {
          const int64_t at = row * heads + h;
          const T *q = row_at<T>(a.q, at), *d_o = row_at<T>(a.d_o, at), *o = row_at<T>(a.o, at);
          float x = 0, dp = 0, delta = 0;
          for (int64_t c = 0; c < d; ++c) x += to_float(q[c]) * k[c];
          for (int64_t c = 0; c < dv; ++c) {
            dp += to_float(d_o[c]) * v[c];
            delta += to_float(d_o[c]) * to_float(o[c]);
          }
          weight = expf(float(a.scale) * x - row_at<float>(a.lse, row)[h]);
          ds = float(a.scale) * weight * (dp - delta);
        }
        for (uint32_t rest = who; rest; rest &= rest - 1) {
          const int j = __ffs(int(rest)) - 1;
          const float w = __shfl_sync(kAll, weight, j), x = __shfl_sync(kAll, ds, j);
          const int64_t at = (first + i0 + j) * heads + h;
          const T *q = row_at<T>(a.q, at), *d_o = row_at<T>(a.d_o, at);
#pragma unroll
          for (int i = 0; i < kLaneDims; ++i) {
            const int c = lane + i * 32;
            if (c < d) dk[i] += x * to_float(q[c]);
            if (c < dv) d_v[i] += w * to_float(d_o[c]);
          }
        }
      }
    }
    if (!any) continue;  // rows that nobody reads are not touched
    const int64_t row = a.kv.cu_kv[s] + p;
#pragma unroll
    for (int i = 0; i < kLaneDims; ++i) {
      const int c = lane + i * 32;
      if (c < d) static_cast<float*>(a.dk.data)[row * a.dk.stride[0] + g * a.dk.stride[1] + c] += dk[i];
      if (c < dv) static_cast<float*>(a.dv.data)[row * a.dv.stride[0] + g * a.dv.stride[1] + c] += d_v[i];
    }
  }
}

// dsink_h += -sum_t exp(sink - lse) (o . d_o); a CTA a head.
template <class T>
__global__ void dsinks_kernel(const Params a) {
  const int64_t h = blockIdx.x, heads = a.q.shape[1], dv = v_dim(a);
  const float sink = static_cast<const float*>(a.sinks.data)[h];
  double sum = 0;
  if (sink != -INFINITY)
    for (int64_t row = threadIdx.x / 32; row < a.batch.tokens; row += blockDim.x / 32) {
      const float delta = delta_of<T>(a, row * heads + h, dv);
      if (threadIdx.x % 32 == 0) sum += double(expf(sink - row_at<float>(a.lse, row)[h])) * double(delta);
    }
  sum = cta_total(sum);
  if (threadIdx.x == 0) static_cast<float*>(a.dsinks.data)[h * a.dsinks.stride[0]] -= float(sum);
}

int check(const char* op, const Params* a) {
  if (!a || !a->q.data || !a->kv.k.data || !a->kv.v.data || !a->o.data || !a->lse.data)
    return refuse(op, "a null tensor");
  if (a->q.rank != 3 || a->kv.k.rank < 3 || a->q.shape[1] % a->kv.k.shape[a->kv.k.rank - 2] != 0)
    return refuse(op, "query heads do not divide over KV heads");
  if (a->q.shape[2] > kMaxDim || width_of(a->kv.v) > kMaxDim)
    return fail(HYSPARSE_UNSUPPORTED, std::string(op) + ": head dims beyond 256");
  if ((a->idx.data || a->block_scores.data) && a->block < 1) return refuse(op, "block must be at least 1");
  return HYSPARSE_OK;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_plain_attention(const hysparse_cuda_plain_attention_params* a, hysparse_stream stream) {
  constexpr const char* op = "attention";
  if (int e = check(op, a)) return e;
  const int64_t items = a->batch.tokens * a->q.shape[1];
  if (items == 0) return HYSPARSE_OK;
  const bool ok = with_type(a->q.dtype, [&](auto t) {
    using T = decltype(t);
    forward_kernel<T><<<unsigned(ceil_div(items, kWarps)), kWarps * 32, 0, stream>>>(*a);
    if (!a->block_scores.data) return;
    const int64_t scores = a->batch.tokens * a->block_scores.shape[1] * a->block_scores.shape[2];
    scores_kernel<T><<<unsigned(ceil_div(scores, 128)), 128, 0, stream>>>(*a);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

int hysparse_cuda_plain_attention_backward(const hysparse_cuda_plain_attention_params* a,
                                           hysparse_stream stream) {
  constexpr const char* op = "attention backward";
  if (int e = check(op, a)) return e;
  if (!a->d_o.data || !a->dq.data || !a->dk.data || !a->dv.data) return refuse(op, "a null gradient");
  if (a->kv.kind != HYSPARSE_KV_CONTIGUOUS) return refuse(op, "needs contiguous K and V");
  const int64_t items = a->batch.tokens * a->q.shape[1];
  if (items == 0) return HYSPARSE_OK;
  const bool ok = with_type(a->q.dtype, [&](auto t) {
    using T = decltype(t);
    dq_kernel<T><<<unsigned(ceil_div(items, kWarps)), kWarps * 32, 0, stream>>>(*a);
    const int64_t keys = a->kv.k.shape[0] * a->kv.k.shape[1];
    dkv_kernel<T><<<dim3(grid_for(keys, kWarps), unsigned(a->batch.sequences)), kWarps * 32, 0, stream>>>(*a);
    if (a->dsinks.data && a->sinks.data) dsinks_kernel<T><<<unsigned(a->q.shape[1]), 256, 0, stream>>>(*a);
  });
  return ok ? launched(op) : unsupported_dtype(op);
}

}  // extern "C"
