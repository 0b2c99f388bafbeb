// Drawing a token a row: one CTA reads its row a few times. Weights are integers (of 2^-40 of the likeliest
// token's), so that every sum is exact and no order of threads changes what is drawn.
#include <algorithm>

#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kBuckets = 2048;  // by distance from the peak
constexpr float kReach = 32;    // of all buckets but the last: e^-32 of the peak's weight
constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits;
constexpr int kSorted = 1024;  // candidates that are sorted; more are told apart digit by digit first
constexpr float kUnit = 1099511627776.0f;  // 2^40

using Sum = unsigned long long;
static_assert(sizeof(Sum) == 8);

struct Shared {
  Sum weight[kBuckets];  // of a bucket's members
  unsigned count[kBuckets];
  union {
    struct {
      Sum measure[kDigits];
      unsigned count[kDigits];
    } digit;
    Sum key[kSorted];
  };
  Sum warp_sum[kWarps];
  float warp_high[kWarps], warp_low[kWarps];
  int warp_index[kWarps];
  Sum found_before;
  int found, members;
};

// Ascending: the higher logit first, of equal ones the lower id. No two are equal.
__device__ Sum rank_key(float x, int id) {
  const unsigned bits = __float_as_uint(x == 0 ? 0.0f : x);
  const unsigned ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return Sum(~ascending) << 32 | unsigned(id);
}

struct Row {
  const float* x;
  int n;
  float peak, inverse, bucket_scale;
  __device__ float weight(int i) const {
    const float below = x[i] - peak;
    return x[i] > -INFINITY ? expf(fmaxf(below, -1e30f) * inverse) : 0.0f;
  }
  __device__ static Sum exact(float weight) { return Sum(weight * kUnit); }
  __device__ int bucket(int i) const {
    const float at = (peak - x[i]) * bucket_scale;
    return int(at < kBuckets - 1 ? at : kBuckets - 1.0f);  // NaN, of -inf in a row of equals, goes last
  }
};

__device__ Sum warp_scan(Sum v) {  // inclusive
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const Sum other = __shfl_up_sync(~0u, v, i);
    if (lane >= i) v += other;
  }
  return v;
}
// Inclusive over the CTA's threads; all of them see `total`. Ends with the shared memory free again.
__device__ Sum cta_scan(Shared& s, Sum v, Sum& total) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  v = warp_scan(v);
  if (lane == 31) s.warp_sum[warp] = v;
  __syncthreads();
  if (warp == 0) s.warp_sum[lane] = warp_scan(s.warp_sum[lane]);
  __syncthreads();
  if (warp > 0) v += s.warp_sum[warp - 1];
  total = s.warp_sum[kWarps - 1];
  __syncthreads();
  return v;
}

// Where the running sum of measure(0), measure(1), ... reaches `target`, 1 <= target <= the whole: s.found,
// and the sum before it in s.found_before. kCount: a multiple of kThreads, or fewer than them.
template <int kCount, class Measure>
__device__ void find_sum(Shared& s, Measure measure, Sum target) {
  constexpr int kEach = (kCount + kThreads - 1) / kThreads;
  Sum own[kEach], sum = 0, total;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = threadIdx.x * kEach + j;
    sum += own[j] = i < kCount ? measure(i) : 0;
  }
  Sum before = cta_scan(s, sum, total) - sum;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (before < target && before + own[j] >= target) {
      s.found = threadIdx.x * kEach + j;
      s.found_before = before;
    }
    before += own[j];
  }
  __syncthreads();
}

// Of the row's tokens in order of rank: the key of the first up to which the measure (tokens, or their
// weight) reaches `target`. Buckets have been counted.
template <bool kByWeight>
__device__ Sum cut_at(Shared& s, const Row& row, Sum target) {
  find_sum<kBuckets>(
      s, [&](int b) { return kByWeight ? s.weight[b] : Sum(s.count[b]); }, target);
  const int bucket = s.found;
  target -= s.found_before;
  unsigned members = s.count[bucket];
  int shift = 64;
  Sum prefix = 0;
  const auto each_member = [&](auto visit) {
    for (int i = threadIdx.x; i < row.n; i += kThreads) {
      if (row.bucket(i) != bucket) continue;
      const Sum key = rank_key(row.x[i], i);
      if (shift == 64 || key >> shift == prefix) visit(i, key);
    }
  };
  const auto measure = [&](int i) { return kByWeight ? Row::exact(row.weight(i)) : Sum(1); };
  while (members > kSorted) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) s.digit.measure[i] = s.digit.count[i] = 0;
    __syncthreads();
    const int next = max(0, shift - kDigitBits);
    each_member([&](int i, Sum key) {
      const int digit = int(key >> next & ((Sum(1) << (shift - next)) - 1));
      atomicAdd(&s.digit.measure[digit], measure(i));
      atomicAdd(&s.digit.count[digit], 1u);
    });
    __syncthreads();
    find_sum<kDigits>(
        s, [&](int d) { return s.digit.measure[d]; }, target);
    target -= s.found_before;
    members = s.digit.count[s.found];
    prefix = (shift == 64 ? 0 : prefix << (shift - next)) | unsigned(s.found);
    shift = next;
    __syncthreads();
  }
  if (threadIdx.x == 0) s.members = 0;
  __syncthreads();
  each_member([&](int, Sum key) { s.key[atomicAdd(&s.members, 1)] = key; });
  __syncthreads();
  static_assert(kSorted == kThreads);
  Sum key = threadIdx.x < members ? s.key[threadIdx.x] : ~Sum(0);
  for (int size = 2; size <= kSorted; size *= 2)  // bitonic
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      s.key[threadIdx.x] = key;
      __syncthreads();
      const Sum other = s.key[threadIdx.x ^ stride];
      const bool lower = (threadIdx.x & stride) == 0, ascending = (threadIdx.x & size) == 0;
      key = lower == ascending ? min(key, other) : max(key, other);
    }
  __syncthreads();
  s.key[threadIdx.x] = key;
  __syncthreads();
  find_sum<kSorted>(
      s, [&](int i) { return unsigned(i) < members ? measure(int(unsigned(s.key[i]))) : Sum(0); }, target);
  return s.key[s.found];
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(const float* logits, int64_t stride, const hysparse_cuda_draw* rows, int32_t* tokens) {
  __shared__ Shared s;
  join_stream();
  const hysparse_cuda_draw set = rows[blockIdx.x];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Row row{logits + blockIdx.x * stride, set.vocab};

  // The peak, the first token that has it, the least above -inf.
  float high = -INFINITY, low = INFINITY;
  int index = INT32_MAX;
  bool broken = false;
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const float x = row.x[i];
    broken |= !(x < INFINITY);
    if (x > high) high = x, index = i;
    if (x > -INFINITY) low = fminf(low, x);
  }
  for (int i = 16; i > 0; i /= 2) {
    const float h = __shfl_xor_sync(~0u, high, i);
    const int at = __shfl_xor_sync(~0u, index, i);
    if (h > high || (h == high && at < index)) high = h, index = at;
    low = fminf(low, __shfl_xor_sync(~0u, low, i));
  }
  if (lane == 0) s.warp_high[warp] = high, s.warp_low[warp] = low, s.warp_index[warp] = index;
  broken = __syncthreads_or(broken);
  high = s.warp_high[0], low = s.warp_low[0], index = s.warp_index[0];
  for (int w = 1; w < kWarps; ++w) {
    const float h = s.warp_high[w];
    if (h > high || (h == high && s.warp_index[w] < index)) high = h, index = s.warp_index[w];
    low = fminf(low, s.warp_low[w]);
  }
  if (broken || high == -INFINITY || set.inverse_temperature == 0) {
    if (threadIdx.x == 0) tokens[blockIdx.x] = broken || high == -INFINITY ? -1 : index;
    return;
  }
  row.peak = high;
  row.inverse = set.inverse_temperature;

  Sum last = ~Sum(0);  // the key of the last that stays
  const bool top_k = set.top_k > 0 && set.top_k < row.n;
  if (top_k || set.top_p < 1) {
    const double range = fmin(double(high - low) * double(row.inverse), double(kReach));
    row.bucket_scale = range > 0 ? float((kBuckets - 1) / range * double(row.inverse)) : 0.0f;
    for (int b = threadIdx.x; b < kBuckets; b += kThreads) s.weight[b] = s.count[b] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.n; i += kThreads) {
      const int b = row.bucket(i);
      const Sum w = Row::exact(row.weight(i));
      atomicAdd(&s.count[b], 1u);
      if (w > 0) atomicAdd(&s.weight[b], w);
    }
    __syncthreads();
    if (top_k) last = cut_at<false>(s, row, Sum(set.top_k));
    if (set.top_p < 1) {
      Sum own = 0, total;
      for (int i = threadIdx.x; i < row.n; i += kThreads)
        if (!top_k || rank_key(row.x[i], i) <= last) own += Row::exact(row.weight(i));
      cta_scan(s, own, total);
      const Sum target = Sum(ceil(set.top_p * double(total)));
      last = min(last, cut_at<true>(s, row, max(Sum(1), min(target, total))));
    }
  }

  // Each warp sums a run of tokens; the one in whose run the target lies goes through it in order.
  const auto kept = [&](int i) {
    const float w = row.weight(i);
    return w >= set.min_p && rank_key(row.x[i], i) <= last ? Row::exact(w) : Sum(0);
  };
  const int run = (row.n + kWarps - 1) / kWarps, begin = min(row.n, warp * run),
            end = min(row.n, begin + run);
  Sum own = 0, total;
  for (int i = begin + lane; i < end; i += 32) own += kept(i);
  const Sum through = cta_scan(s, own, total);
  Sum before = __shfl_sync(~0u, through - own, 0);
  const Sum after = __shfl_sync(~0u, through, 31);
  const Sum target = min(Sum(set.uniform * double(total)), total - 1);
  if (target < before || target >= after) return;
  for (int from = begin; from < end; from += 32) {
    const int i = from + lane;
    const Sum sum = before + warp_scan(i < end ? kept(i) : 0);
    const unsigned past = __ballot_sync(~0u, sum > target);
    if (past) {
      if (lane == 0) tokens[blockIdx.x] = from + __ffs(int(past)) - 1;
      return;
    }
    before = __shfl_sync(~0u, sum, 31);
  }
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_draw_tokens(hysparse_view logits, const hysparse_cuda_draw* rows, int32_t* tokens,
                              hysparse_stream stream) {
  constexpr const char* op = "draw_tokens";
  if (logits->rank != 2 || logits->dtype != HYSPARSE_DTYPE_F32)
    return refuse(op, "logits are f32 [n, vocab]");
  if (logits->shape[1] > 1 << 22 || logits->shape[0] > INT32_MAX) return refuse(op, "more than 2^22 tokens");
  if (logits->shape[0] == 0) return HYSPARSE_OK;
  if (!rows || !tokens) return refuse(op, "no rows or no tokens");
  return check_cuda(launch_overlapped<draw_kernel>(unsigned(logits->shape[0]), kThreads, stream, {},
                                                   static_cast<const float*>(logits->data), logits->stride[0],
                                                   rows, tokens),
                    op);
}

}  // extern "C"
