// Block selection from scores that lie in memory, and the scores of its random control.
#include "base/rng.h"
#include "kernels/cuda/common/select_cta.cuh"
#include "kernels/cuda/sm80/elem/launch.h"

namespace hysparse::cuda {
namespace {

constexpr int kWarps = 8;

// A CTA a query row and KV head.
__global__ void __launch_bounds__(kWarps * 32)
    select_kernel(hysparse_cuda_rows_of_batch batch, View scores, int64_t block, bool first, bool diagonal,
                  View idx) {
  const int64_t heads = idx.shape[1], row = blockIdx.x / heads, g = blockIdx.x % heads;
  const int last = int(batch.position[row] / block);
  const float* score = static_cast<const float*>(scores.data) + row * scores.stride[0] + g * scores.stride[1];
  int32_t* out = static_cast<int32_t*>(idx.data) + row * idx.stride[0] + g * idx.stride[1];
  select_cta<kWarps>(
      [=](int j) {
        if (first && j == 0) return 0xffffffffu;
        if (diagonal && j == last) return 0xfffffffeu;
        return sortable_score(score[j]);
      },
      last + 1, int(idx.shape[2]), out);
}

__global__ void random_kernel(hysparse_cuda_rows_of_batch batch, uint64_t seed, uint64_t step,
                              const int64_t* row_of, int64_t layer, int64_t block, View scores) {
  const int64_t heads = scores.shape[1], blocks = scores.shape[2],
                item = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (item >= batch.tokens * heads * blocks) return;
  const int64_t j = item % blocks, g = item / blocks % heads, row = item / blocks / heads;
  const int64_t position = batch.position[row];
  float score = -INFINITY;
  if (j <= position / block) {
    const uint64_t words[] = {seed,
                              step,
                              uint64_t(row_of[batch.sequence[row]]),
                              uint64_t(layer),
                              uint64_t(g),
                              uint64_t(position),
                              uint64_t(j)};
    uint64_t h = hash_words({});
    for (const uint64_t w : words) h = mix64(h ^ w);
    score = float(to_unit(h));
  }
  static_cast<float*>(scores.data)[row * scores.stride[0] + g * scores.stride[1] + j] = score;
}

}  // namespace
}  // namespace hysparse::cuda

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_select_blocks(const hysparse_cuda_rows_of_batch* batch, hysparse_view scores, int64_t block,
                                int32_t force_first, int32_t force_diagonal, hysparse_view idx,
                                hysparse_stream stream) {
  if (scores->dtype != HYSPARSE_DTYPE_F32 || idx->dtype != HYSPARSE_DTYPE_I32)
    return unsupported_dtype("select_blocks");
  const int64_t items = idx->shape[0] * idx->shape[1];
  if (items == 0 || idx->shape[2] == 0) return HYSPARSE_OK;
  select_kernel<<<unsigned(items), kWarps * 32, 0, stream>>>(*batch, *scores, block, force_first != 0,
                                                             force_diagonal != 0, *idx);
  return launched("select_blocks");
}

int hysparse_cuda_random_scores(const hysparse_cuda_rows_of_batch* batch, uint64_t seed, uint64_t step,
                                const int64_t* row, int64_t layer, int64_t block, hysparse_view scores,
                                hysparse_stream stream) {
  if (scores->dtype != HYSPARSE_DTYPE_F32) return unsupported_dtype("random_scores");
  const int64_t items = batch->tokens * scores->shape[1] * scores->shape[2];
  if (items == 0) return HYSPARSE_OK;
  random_kernel<<<unsigned(ceil_div(items, 256)), 256, 0, stream>>>(*batch, seed, step, row, layer, block,
                                                                    *scores);
  return launched("random_scores");
}

}  // extern "C"
