// Grouped products for Hopper: sizes of tiles and what a launch hands to the kernels.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace hysparse::cuda::experts {

inline constexpr int kThreads = 384;       // a producer warpgroup, two that multiply
inline constexpr int kMostExperts = 2048;  // of which the kernels keep tables in shared memory
inline constexpr int kDepth = 64;          // of the sum that a stage holds: 128 bytes of bf16

// c[r, m] = sum over k of W_e(m, k) a[r, k]: the weights stand on the side of the accumulators' 64 rows,
// which is cut at multiples of 64, and the rows of an expert on that of N, which is cut at multiples of 16;
// so an expert with 130 rows costs 144.
struct Rows {
  static constexpr int kM = 256, kN = 160, kBox = 32, kStages = 4;
  static constexpr int kWeightBytes = kM * 128, kRowBytes = kN * 128, kStageBytes = kWeightBytes + kRowBytes;
  static constexpr int kScratch = kStages * kStageBytes;  // 2 x 8 rows of a warpgroup's 128 columns, each
  static constexpr int kScratchPitch = 128 * 2 + 16;      // against bank conflicts
  static constexpr int kFirst = kScratch + 2 * 2 * 8 * kScratchPitch;  // tiles before each expert
  static constexpr int kBarriers = kFirst + (kMostExperts + 2) * 4;
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;  // + alignment of the stages
};
static_assert(Rows::kBarriers % 8 == 0 && Rows::kBytes <= 232448 - 128);

// One product; or two of the same a (outputs 2), or the sum of two (sources 2).
struct RowsParams {
  CUtensorMap weights[2];  // forward: boxes of kM rows; dx: of kDepth
  CUtensorMap a[2];        // boxes of kBox rows
  int sources, outputs;
  const int32_t* offset;
  int experts, m, k;  // m: columns of each c
  __nv_bfloat16* c[2];
  int64_t c_stride[2];
  bool accumulate;
};

// grad_e[o, i] += sum over the rows r of e of dy[r, o] x[r, i]
struct Gradient {
  static constexpr int kM = 128, kN = 256, kStages = 4;
  static constexpr int kChunk = kDepth * 128;  // bytes of 64 rows and columns
  static constexpr int kABytes = kM / 64 * kChunk, kBBytes = kN / 64 * kChunk,
                       kStageBytes = kABytes + kBBytes;
  static constexpr int kScratch = kStages * kStageBytes;  // 8 rows of 64 f32 a consumer warp
  static constexpr int kScratchPitch = 64 + 8;            // f32; against bank conflicts
  static constexpr int kFirst = kScratch + 8 * 8 * kScratchPitch * 4;
  static constexpr int kBarriers = kFirst + (kMostExperts + 2) * 4;
  static constexpr int kBytes = kBarriers + 2 * kStages * 8 + 1024;
};
static_assert(Gradient::kBarriers % 8 == 0 && Gradient::kBytes <= 232448 - 128);

struct GradientParams {
  CUtensorMap dy, x;  // boxes of kDepth rows
  const int32_t* offset;
  int experts, m, n;  // out, in
  void* grad;         // f32 or bf16
  int64_t expert_stride, row_stride;
};

}  // namespace hysparse::cuda::experts
