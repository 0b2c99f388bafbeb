// Rows of K and V to 8 bits and back.
#include <cuda_fp8.h>

#include "hysparse/cuda_step.h"
#include "kernels/cuda/sm80/elem/launch.h"

using namespace hysparse::cuda;

namespace {

constexpr int kWarps = 4;
constexpr uint32_t kAll = 0xffffffffu;

__device__ float wide(float x) {
  return x;
}
__device__ float wide(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ void put(float& to, float x) {
  to = x;
}
__device__ void put(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

// As quantise_kv_row of kernels/quantise.cpp, to the bit.
template <class T>
__device__ void quantise_row(const T* x, int dim, bool int8, uint8_t* codes, uint16_t* scale) {
  const int lane = threadIdx.x % 32;
  uint32_t top = 0;
  for (int c = lane; c < dim; c += 32) top = max(top, __float_as_uint(wide(x[c])) & 0x7fffffffu);
  top = __reduce_max_sync(kAll, top);
  const bool finite = top < 0x7f800000u;
  const int exponent =
      int(top >> 23) - (int8 ? 6 : 8) + ((top & 0x7fffffu) > (int8 ? 0x7e0000u : 0x600000u) ? 1 : 0);
  const bool zero = !finite || exponent < 1;
  if (lane == 0) *scale = uint16_t(!finite ? 0x7fc0 : zero ? 0 : exponent << 7);
  const float inverse = zero ? 0.0f : __uint_as_float(uint32_t(254 - exponent) << 23);
  for (int c = lane; c < dim; c += 32) {
    const float y = zero ? 0.0f : wide(x[c]) * inverse;
    codes[c] = int8 ? uint8_t(int8_t(__float2int_rn(y)))
                    : uint8_t(__nv_cvt_float_to_fp8(y, __NV_SATFINITE, __NV_E4M3));
  }
}

template <class T>
__device__ void widen_row(const uint8_t* codes, int dim, bool int8, const uint16_t* scale, T* x) {
  const float s = __uint_as_float(uint32_t(*scale) << 16);
  for (int c = threadIdx.x % 32; c < dim; c += 32) {
    const uint32_t code = codes[c];
    // e4m3 with its exponent where f32 has it, lifted by 120.
    const float y =
        int8 ? float(int8_t(code))
             : __uint_as_float((code & 0x80u) << 24 | (code & 0x7fu) << 20) * __uint_as_float(247u << 23);
    put(x[c], y * s);
  }
}

// A CTA a row; its warps share the heads of k and v.
template <class T, bool kBack>
__global__ void __launch_bounds__(kWarps * 32) kv_kernel(const __grid_constant__ hysparse_cuda_kv_8_bits p) {
  join_stream();
  const int64_t i = blockIdx.x, to = p.rows[i];
  for (int part = threadIdx.x / 32; part < 2 * p.heads; part += kWarps) {
    const int head = part / 2;
    const bool v = part % 2 != 0, int8 = p.code == HYSPARSE_CODE_INT8;
    const int dim = v ? p.v_head_dim : p.head_dim;
    T* x = static_cast<T*>(v ? p.v : p.k) + i * (v ? p.v_row : p.k_row) + head * (v ? p.v_head : p.k_head);
    uint8_t* codes = static_cast<uint8_t*>(v ? p.v_codes : p.k_codes) + (to * p.heads + head) * dim;
    uint16_t* scale = static_cast<uint16_t*>(p.scales) + (to * p.heads + head) * 2 + (v ? 1 : 0);
    if constexpr (kBack)
      widen_row(codes, dim, int8, scale, x);
    else
      quantise_row(static_cast<const T*>(x), dim, int8, codes, scale);
  }
}

template <bool kBack>
int run(const char* op, const hysparse_cuda_kv_8_bits* p, hysparse_stream stream) {
  if (!p) return refuse(op, "no parameters");
  if (p->n < 0 || p->n > INT32_MAX) return refuse(op, "more than 2^31 - 1 rows");
  if (p->heads < 1 || p->head_dim < 1 || p->v_head_dim < 1) return refuse(op, "no heads or dims");
  if (p->code != HYSPARSE_CODE_INT8 && p->code != HYSPARSE_CODE_FP8)
    return refuse(op, "codes are int8 or fp8");
  if (p->n == 0) return HYSPARSE_OK;
  if (!p->k || !p->v || !p->rows || !p->k_codes || !p->v_codes || !p->scales)
    return refuse(op, "a null tensor");
  const dim3 grid(static_cast<unsigned>(p->n));
  if (p->dtype == HYSPARSE_DTYPE_F32)
    launch_overlapped<kv_kernel<float, kBack>>(grid, kWarps * 32, stream, {}, *p);
  else if (p->dtype == HYSPARSE_DTYPE_BF16)
    launch_overlapped<kv_kernel<__nv_bfloat16, kBack>>(grid, kWarps * 32, stream, {}, *p);
  else
    return unsupported_dtype(op);
  return launched(op);
}

}  // namespace

extern "C" {

int hysparse_cuda_quantise_kv(const hysparse_cuda_kv_8_bits* params, hysparse_stream stream) {
  return run<false>("quantise_kv", params, stream);
}

int hysparse_cuda_widen_kv(const hysparse_cuda_kv_8_bits* params, hysparse_stream stream) {
  return run<true>("widen_kv", params, stream);
}

}  // extern "C"
