// The router of a mixture of experts: a warp a token, an expert every 32nd lane.
#include "hysparse/cuda_experts.h"
#include "kernels/cuda/common/overlap.cuh"
#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int32_t kIgnore = -100;  // kIgnoreLabel of ops.h
constexpr unsigned kAll = 0xffffffffu;

__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ float rank_of(float logit, float bias) {
  const float r = sigmoid(logit) + bias;
  return isnan(r) ? -INFINITY : r;
}

// An expert's place in the order of choice: larger ranks first, equal ones by number.
struct Place {
  float rank;
  int expert;
};
__device__ bool before(const Place& a, const Place& b) {
  return a.rank > b.rank || (a.rank == b.rank && a.expert < b.expert);
}
__device__ Place first_of_warp(Place p) {
  for (int i = 16; i > 0; i /= 2) {
    const Place o{__shfl_xor_sync(kAll, p.rank, i), __shfl_xor_sync(kAll, p.expert, i)};
    if (before(o, p)) p = o;
  }
  return p;
}

// Any E and k: ranks are made again in every round.
__device__ void choose(const float* logits, const float* bias, int experts, int k, int32_t* chosen) {
  const int lane = threadIdx.x % 32;
  Place last{INFINITY, -1};
  for (int round = 0; round < k; ++round) {
    Place best{-INFINITY, experts};
    for (int e = lane; e < experts; e += 32) {
      const Place p{rank_of(logits[e], bias[e]), e};
      if (before(last, p) && before(p, best)) best = p;
    }
    last = first_of_warp(best);
  }
  // The chosen are those up to `last`; in ascending order.
  int count = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const bool mine = e < experts && !before(last, {rank_of(logits[e], bias[e]), e});
    const unsigned all = __ballot_sync(kAll, mine);
    const int at = count + __popc(all & ((1u << lane) - 1));
    if (mine && at < k) chosen[at] = e;
    count += __popc(all);
  }
  __syncwarp();
}

// The order of floats as one of integers; no number is 0.
__device__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 is 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The same for k <= 32 of E <= 32 kCached: a round takes the warp's largest and strikes it out.
template <int kCached>
__device__ void choose_few(const float* logits, const float* bias, int experts, int k, int32_t* chosen) {
  const int lane = threadIdx.x % 32;
  uint32_t key[kCached], best = 0;
  int at = 0;  // i of this lane's best, the lower one of equals
#pragma unroll
  for (int i = 0; i < kCached; ++i) {
    const int e = i * 32 + lane;
    key[i] = e < experts ? ordered(rank_of(logits[e], bias[e])) : 0;
    if (key[i] > best) best = key[i], at = i;
  }
  int mine = INT32_MAX;
  for (int round = 0; round < k; ++round) {
    const uint32_t most = __reduce_max_sync(kAll, best);
    const int expert = __reduce_min_sync(kAll, best == most ? at * 32 + lane : INT32_MAX);
    if (lane == round) mine = expert;
    if (expert % 32 == lane) {
      best = 0;
#pragma unroll
      for (int i = 0; i < kCached; ++i) {
        if (i == expert / 32) key[i] = 0;
        if (key[i] > best) best = key[i], at = i;
      }
    }
  }
  int place = 0;
  for (int j = 0; j < k; ++j) place += __shfl_sync(kAll, mine, j) < mine;
  if (lane < k) chosen[place] = mine;
  __syncwarp();
}

template <int kCached>
__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(View logits, const float* bias, bool normalise, float scale, bool pinned, int32_t* experts,
                 View weights) {
  join_stream();
  const int64_t t = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (t >= logits.shape[0]) return;
  const int e_count = int(logits.shape[1]), k = int(weights.shape[1]), lane = threadIdx.x % 32;
  const float* x = row_at<float>(logits, t);
  int32_t* chosen = experts + t * k;
  if (!pinned) {
    if constexpr (kCached > 0)
      choose_few<kCached>(x, bias, e_count, k, chosen);
    else
      choose(x, bias, e_count, k, chosen);
  }
  float* out = row_at<float>(weights, t);
  float sum = 0;
  for (int j = lane; j < k; j += 32) {
    const int e = chosen[j];
    const float s = e >= 0 && e < e_count ? sigmoid(x[e]) : NAN;
    out[j] = s;
    sum += s;
  }
  const float by = normalise ? warp_total(sum) + 1e-20f : 1.0f;
  for (int j = lane; j < k; j += 32) out[j] = scale * (out[j] / by);
}

struct BackwardMemory {
  int32_t* chosen;  // [sequences, E]
  int32_t* counts;  // [sequences]: tokens that count
};

__device__ int64_t sequence_of(const int64_t* cu_q, int64_t sequences, int64_t t) {
  int64_t low = 0, high = sequences;  // cu_q[low] <= t < cu_q[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (cu_q[middle] <= t ? low : high) = middle;
  }
  return low;
}

__global__ void count_kernel(const int32_t* experts, int64_t n, int k, int e_count, const int32_t* labels,
                             const int64_t* cu_q, int64_t sequences, BackwardMemory m) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, t = i / k;
  if (t >= n || labels[t] == kIgnore) return;
  const int64_t q = sequence_of(cu_q, sequences, t);
  const int32_t e = experts[i];
  if (e >= 0 && e < e_count) atomicAdd(m.chosen + q * e_count + e, 1);
  if (i % k == 0) atomicAdd(m.counts + q, 1);
}

struct Backward {
  View logits, dweights, dlogits;
  const int32_t *experts, *labels;
  const int64_t* cu_q;
  int64_t sequences;
  bool normalise;
  float scale, balance, z;
  BackwardMemory memory;
};

// ops.h and kernels/ref/experts.cpp say what is computed.
__global__ void __launch_bounds__(kWarps * 32) route_backward_kernel(const __grid_constant__ Backward p) {
  const int64_t t = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
  if (t >= p.logits.shape[0]) return;
  const int e_count = int(p.logits.shape[1]), k = int(p.dweights.shape[1]), lane = threadIdx.x % 32;
  const float *x = row_at<float>(p.logits, t), *dw = row_at<float>(p.dweights, t);
  float* out = row_at<float>(p.dlogits, t);
  const int32_t* chosen = p.experts + t * k;
  const bool counts = p.labels && p.labels[t] != kIgnore;

  // Of the losses, which reach every expert.
  const int32_t* even = nullptr;
  float even_factor = 0, sum = 0, expected = 0, lse = 0;
  if (counts && p.balance != 0) {
    const int64_t q = sequence_of(p.cu_q, p.sequences, t);
    even = p.memory.chosen + q * e_count;
    even_factor = float(double(e_count) / (double(k) * double(p.memory.counts[q])));
    for (int e = lane; e < e_count; e += 32) {
      const float s = sigmoid(x[e]);
      sum += s;
      expected += even_factor * float(even[e]) * s;
    }
    sum = warp_total(sum);
    expected = warp_total(expected);
  }
  if (counts && p.z != 0) {
    float most = -INFINITY, total = 0;
    for (int e = lane; e < e_count; e += 32) most = fmaxf(most, x[e]);
    most = warp_largest(most);
    for (int e = lane; e < e_count; e += 32) total += expf(x[e] - most);
    lse = most + logf(warp_total(total));
  }
  for (int e = lane; e < e_count; e += 32) {
    const float s = sigmoid(x[e]);
    float d = 0;
    if (even && sum > 0) d = p.balance * (even_factor * float(even[e]) - expected / sum) / sum * s * (1 - s);
    if (counts && p.z != 0) d += p.z * 2 * lse * expf(x[e] - lse);
    out[e] = d;
  }
  __syncwarp();

  // Through the weights of the chosen.
  float by = 1, mean = 0;
  if (p.normalise) {
    float chosen_sum = 0, weighted = 0;
    for (int j = lane; j < k; j += 32) {
      const float s = sigmoid(x[chosen[j]]);
      chosen_sum += s;
      weighted += dw[j] * s;
    }
    by = warp_total(chosen_sum) + 1e-20f;
    mean = warp_total(weighted) / by;
  }
  for (int j = lane; j < k; j += 32) {
    const int e = chosen[j];
    const float s = sigmoid(x[e]);
    out[e] += p.scale * (dw[j] - mean) / by * s * (1 - s);
  }
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_route(hysparse_view logits, hysparse_view bias, int32_t normalise, double scale,
                        int32_t pinned, hysparse_view experts, hysparse_view weights,
                        hysparse_stream stream) {
  constexpr const char* op = "route";
  const int64_t n = logits->shape[0], e = logits->shape[1], k = weights->shape[1];
  if (logits->dtype != HYSPARSE_DTYPE_F32 || bias->dtype != HYSPARSE_DTYPE_F32 ||
      weights->dtype != HYSPARSE_DTYPE_F32 || experts->dtype != HYSPARSE_DTYPE_I32)
    return refuse(op, "logits, bias and weights are f32, experts i32");
  if (k < 1 || k > e || e > INT32_MAX / 2 || experts->shape[0] != n || experts->shape[1] != k)
    return refuse(op, "shapes do not fit");
  if (n == 0) return HYSPARSE_OK;
  const auto launch = [&](auto cached) {
    constexpr int kCached = decltype(cached)::value;
    return check_cuda(launch_overlapped<route_kernel<kCached>>(
                          unsigned(ceil_div(n, kWarps)), kWarps * 32, stream, {}, *logits,
                          static_cast<const float*>(bias->data), normalise != 0, float(scale), pinned != 0,
                          static_cast<int32_t*>(experts->data), *weights),
                      op);
  };
  if (k > 32 || e > 512) return launch(std::integral_constant<int, 0>{});
  if (e <= 64) return launch(std::integral_constant<int, 2>{});
  if (e <= 256) return launch(std::integral_constant<int, 8>{});
  return launch(std::integral_constant<int, 16>{});
}

size_t hysparse_cuda_route_backward_workspace(int64_t sequences, int64_t experts) {
  return size_t(sequences) * size_t(experts + 1) * sizeof(int32_t);
}

int hysparse_cuda_route_backward(const hysparse_cuda_route_backward_params* p, void* workspace,
                                 size_t workspace_bytes, hysparse_stream stream) {
  constexpr const char* op = "route_backward";
  const int64_t n = p->logits.shape[0], e = p->logits.shape[1], k = p->dweights.shape[1];
  const bool balanced = p->balance != 0;
  if (p->logits.dtype != HYSPARSE_DTYPE_F32 || p->dweights.dtype != HYSPARSE_DTYPE_F32 ||
      p->dlogits.dtype != HYSPARSE_DTYPE_F32)
    return refuse(op, "logits and gradients are f32");
  if (k < 1 || k > e || e > INT32_MAX / 2 || !same_shape(p->logits, p->dlogits))
    return refuse(op, "shapes do not fit");
  if ((balanced || p->z != 0) && !p->labels.data) return refuse(op, "losses of the router without labels");
  if (n == 0) return HYSPARSE_OK;
  Backward b{p->logits,
             p->dweights,
             p->dlogits,
             static_cast<const int32_t*>(p->experts.data),
             static_cast<const int32_t*>(p->labels.data),
             p->cu_q,
             p->sequences,
             p->normalise != 0,
             float(p->scale),
             float(p->balance),
             float(p->z),
             {}};
  if (balanced) {
    const size_t bytes = hysparse_cuda_route_backward_workspace(p->sequences, e);
    if (!workspace || workspace_bytes < bytes || !p->cu_q) return refuse(op, "the workspace is too small");
    b.memory.chosen = static_cast<int32_t*>(workspace);
    b.memory.counts = b.memory.chosen + p->sequences * e;
    if (int code = check_cuda(cudaMemsetAsync(workspace, 0, bytes, stream), op)) return code;
    count_kernel<<<unsigned(ceil_div(n * k, 256)), 256, 0, stream>>>(b.experts, n, int(k), int(e), b.labels,
                                                                     b.cu_q, p->sequences, b.memory);
  }
  route_backward_kernel<<<unsigned(ceil_div(n, kWarps)), kWarps * 32, 0, stream>>>(b);
  return launched(op);
}

}  // extern "C"
