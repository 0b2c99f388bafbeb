// Row kernels of the elementwise operations, norms, the loss and the optimiser, one copy a SIMD level. All
// arithmetic is f32 with one rounding at the end; `type` is the type of every tensor named T (f32 or bf16).
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace hysparse::elem {

// y += x, x of any of f32, bf16
void add_to_f32(const void* x, DType type, int64_t n, float* y);
// y = a + b; y may be a or b
void add(const void* a, const void* b, void* y, DType type, int64_t n);
// dst = src between f64, f32, bf16
void cast(const void* src, DType from, void* dst, DType to, int64_t n);

// Rows of d elements, `*_stride` elements apart.
struct RmsNormRows {
  DType type;
  int64_t rows, d;
  const void* x;
  int64_t x_stride;
  const void* weight;  // [d] T
  float eps;
  void* y;
  int64_t y_stride;
  float* rstd;  // optional
  int64_t rstd_stride;
  const void* delta = nullptr;  // optional: x += delta first, rounded to T
  int64_t delta_stride = 0;
};
void rmsnorm(const RmsNormRows& p);

struct RmsNormBackwardRows {
  DType type;
  int64_t rows, d;
  const void* x;
  int64_t x_stride;
  const void* weight;
  const float* rstd;
  int64_t rstd_stride;
  const void* dy;
  int64_t dy_stride;
  void* dx;  // may be dy
  int64_t dx_stride;
  bool accumulate;
  float* dweight;  // optional [d], +=
};
void rmsnorm_backward(const RmsNormBackwardRows& p);

// Rotates `heads` heads in place: pairs (i, i + half).
void rope(void* x, DType type, int64_t heads, int64_t head_stride, int64_t half, const float* cos,
          const float* sin, bool inverse);

// h = factor * silu(gate) * up; every output may be any input
void swiglu(const void* gate, const void* up, void* h, DType type, int64_t n, float factor = 1);
// Returns the factor's gradient.
float scaled_swiglu_backward(const void* gate, const void* up, const void* dh, float factor, void* dgate,
                             void* dup, DType type, int64_t n);
void swiglu_backward(const void* gate, const void* up, const void* dh, void* dgate, void* dup, DType type,
                     int64_t n);

void sigmoid(const float* x, float* y, int64_t n);

// Loss of one row, nats; dlogits (optional, f32 or bf16, may be logits) = scale * (softmax - onehot).
float cross_entropy(const float* logits, int64_t vocab, int64_t label, float scale, void* dlogits,
                    DType dlogits_type);

struct AdamWStep {
  float grad_scale, beta1, beta2;
  float inv_bias1, inv_bias2;  // 1 / (1 - beta^step)
  float eps, lr, weight_decay;
};
// value (optional) gets the new master rounded to value_type
void adamw(const AdamWStep& s, float* master, float* m, float* v, const float* grad, void* value,
           DType value_type, int64_t n);

// sum x^2 in f64; x of f32 or bf16
double sum_squares(const void* x, DType type, int64_t n);

}  // namespace hysparse::elem
