// What the rows of a cache hold, and codes of 8 bits as bf16.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "hysparse/cuda_step.h"

namespace hysparse::cuda::decode {

enum class Code { bf16 = HYSPARSE_CODE_NONE, int8 = HYSPARSE_CODE_INT8, fp8 = HYSPARSE_CODE_FP8 };

// Pitches of rows in shared memory, in bytes, such that the reads of a warp meet no bank twice: of 16-byte
// rows of ldmatrix an odd multiple of 16; of codes, keys are read 16 bytes a lane, eight lanes at a time from
// two rows (an odd multiple of 64), values 8 bytes a lane from four rows two apart (an odd multiple of 16).
constexpr int key_pitch(Code code, int dim) {
  return code == Code::bf16 ? dim * 2 + 16 : dim % 128 == 0 ? dim + 64 : dim;
}
constexpr int value_pitch(Code code, int dim) {
  return code == Code::bf16 ? dim * 2 + 16 : dim + 16;
}

__device__ inline uint32_t bf16x2_bits(__nv_bfloat162 x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ inline __nv_bfloat162 as_bf16x2(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

// Codes 0, 1 (kHigh: 2, 3) of a word as a pair of bf16, exactly.
template <Code kCode, bool kHigh>
__device__ inline uint32_t pair_of(uint32_t word) {
  if constexpr (kCode == Code::int8) {
    // 128 + the lower seven bits, less 128 or, of a negative code, 256.
    const uint32_t x = __byte_perm(word, 0x43434343u, kHigh ? 0x4342 : 0x4140);
    return bf16x2_bits(__hsub2(as_bf16x2(x & 0xff7fff7fu), as_bf16x2(x & 0xff80ff80u)));
  } else {
    // The exponent where bf16 has it, lifted by 120.
    const uint32_t x = __byte_perm(word, 0u, kHigh ? 0x3424 : 0x1404);
    const uint32_t bits = (x & 0x80008000u) | (x >> 4 & 0x07f007f0u);
    return bf16x2_bits(__hmul2(as_bf16x2(bits), as_bf16x2(0x7b807b80u)));
  }
}

__device__ inline uint4 shared_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ inline uint2 shared_8(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}

}  // namespace hysparse::cuda::decode
