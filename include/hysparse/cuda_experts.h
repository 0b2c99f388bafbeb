/* Mixture of experts in libhysparse_cuda: the router, the tables of its assignments, rows to and from the
 * experts, and products over groups of rows. Part of the C ABI of hysparse/cuda.h (codes, last_error) with
 * the views of hysparse/cuda_ops.h. What each operation computes is said in src/kernels/ops.h, whose names
 * these carry. n tokens, E experts, k of them active a token, R = n * k rows in the order of experts; T is
 * f32 or bf16, sums are f32. Everything is deterministic, nothing waits for the GPU, and nothing but the
 * shapes is known to the host: where the rows of an expert begin (offset) is read on the device. */
#ifndef HYSPARSE_CUDA_EXPERTS_H
#define HYSPARSE_CUDA_EXPERTS_H

#include "hysparse/cuda_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Further dtypes of views: of weights alone. */
enum { HYSPARSE_DTYPE_I8 = 7, HYSPARSE_DTYPE_F8 = 9 /* e4m3 */ };

/* ---- router */
/* logits [n, E] f32, bias [E] f32, experts [n, k] i32 contiguous (an input where pinned), weights [n, k] f32.
 */
HYSPARSE_API int hysparse_cuda_route(hysparse_view logits, hysparse_view bias, int32_t normalise,
                                     double scale, int32_t pinned, hysparse_view experts,
                                     hysparse_view weights, hysparse_stream stream);
typedef struct {
  hysparse_cuda_view logits, experts; /* as forward */
  int32_t normalise;
  double scale;
  hysparse_cuda_view dweights, labels; /* [n, k] f32; [n] i32, optional where balance and z are 0 */
  double balance, z;
  const int64_t* cu_q; /* device [sequences + 1]; where balance is not 0 */
  int64_t sequences;
  hysparse_cuda_view dlogits; /* [n, E] f32 */
} hysparse_cuda_route_backward_params;
HYSPARSE_API size_t hysparse_cuda_route_backward_workspace(int64_t sequences, int64_t experts);
HYSPARSE_API int hysparse_cuda_route_backward(const hysparse_cuda_route_backward_params* params,
                                              void* workspace, size_t workspace_bytes,
                                              hysparse_stream stream);

/* ---- tables */
/* experts [n, k], offset [E + 1], source [R], slot [n, k]: i32, contiguous; labels optional [n] i32; load
 * optional [E] i64 +=. Experts out of range give tables without meaning, but no access out of bounds here. */
HYSPARSE_API size_t hysparse_cuda_expert_tables_workspace(int64_t rows, int64_t experts);
HYSPARSE_API int hysparse_cuda_expert_tables(hysparse_view experts, hysparse_view labels,
                                             hysparse_view offset, hysparse_view source, hysparse_view slot,
                                             hysparse_view load, void* workspace, size_t workspace_bytes,
                                             hysparse_stream stream);

/* ---- rows */
/* y[row] = x[source[row] / k] */
HYSPARSE_API int hysparse_cuda_expert_gather(hysparse_view x, hysparse_view source, int64_t k,
                                             hysparse_view y, hysparse_stream stream);
/* y[t] = sum over j of x[slot[t, j]] (+ y[t] when accumulate) */
HYSPARSE_API int hysparse_cuda_expert_sum(hysparse_view x, hysparse_view slot, hysparse_view y,
                                          int32_t accumulate, hysparse_stream stream);
/* h[row] = weights[source[row]] silu(gate[row]) up[row]; weights: contiguous [n, k] f32 */
HYSPARSE_API int hysparse_cuda_expert_swiglu(hysparse_view gate, hysparse_view up, hysparse_view source,
                                             hysparse_view weights, hysparse_view h, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_expert_swiglu_backward(hysparse_view gate, hysparse_view up,
                                                      hysparse_view source, hysparse_view weights,
                                                      hysparse_view dh, hysparse_view dgate,
                                                      hysparse_view dup, hysparse_view dweights,
                                                      hysparse_stream stream);

/* ---- products: weights and gradients are [E, out, in] views, experts at equal distances; offset [E + 1]
 * i32, ascending, the last at most R. Rows beyond it are left alone. */
/* y[row] = W_e x[row] */
HYSPARSE_API int hysparse_cuda_grouped_linear(hysparse_view x, hysparse_view offset, hysparse_view weights,
                                              hysparse_view y, hysparse_stream stream);
/* dx[row] = dy[row] W_e (+ dx[row] when accumulate; a bf16 product is rounded before the sum is) */
HYSPARSE_API int hysparse_cuda_grouped_linear_dx(hysparse_view dy, hysparse_view offset,
                                                 hysparse_view weights, hysparse_view dx, int32_t accumulate,
                                                 hysparse_stream stream);
/* Two products of the same rows, each as above, and the sum of two input gradients. */
HYSPARSE_API int hysparse_cuda_grouped_linear_pair(hysparse_view x, hysparse_view offset, hysparse_view first,
                                                   hysparse_view second, hysparse_view y_first,
                                                   hysparse_view y_second, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_grouped_linear_pair_dx(hysparse_view dy_first, hysparse_view dy_second,
                                                      hysparse_view offset, hysparse_view first,
                                                      hysparse_view second, hysparse_view dx,
                                                      hysparse_stream stream);
/* Weights in 8 bits, of the experts that have rows, as T: values [E, out, in] i8 with scales [E, out, groups
 * of 64] or f8 with scales [E, out, 1], f32, to wide [E, out, in] T. */
HYSPARSE_API int hysparse_cuda_widen_experts(hysparse_view values, hysparse_view scales, hysparse_view offset,
                                             hysparse_view wide, hysparse_stream stream);
/* A layer's experts for few tokens (decoding): y[t] = sum over j of down_e (weights[t, j] silu(gate_e x[t])
 * up_e x[t]), e the j-th expert of t; bf16, the matrices bf16 or f8 with scales [E, out, 1] f32.
 * HYSPARSE_UNSUPPORTED where there are more than 64 rows (f8: 128), or the shapes have no vectors of 16
 * bytes: the operations one by one do those. */
typedef struct {
  hysparse_cuda_view x, y;                 /* [n, h] */
  hysparse_cuda_view offset, source, slot; /* tables */
  hysparse_cuda_view weights;              /* [n, k] f32, contiguous */
  hysparse_cuda_view gate, up, down;       /* [E, f, h], [E, f, h], [E, h, f] */
  hysparse_cuda_view gate_scales, up_scales, down_scales;
} hysparse_cuda_expert_mlp_params;
HYSPARSE_API size_t hysparse_cuda_expert_mlp_workspace(int64_t rows, int64_t f);
HYSPARSE_API int hysparse_cuda_expert_mlp(const hysparse_cuda_expert_mlp_params* params, void* workspace,
                                          size_t workspace_bytes, hysparse_stream stream);
/* grad_e += dy_e^T x_e, grad f32 or T; gradients of experts without rows are not touched */
HYSPARSE_API int hysparse_cuda_grouped_linear_dw(hysparse_view dy, hysparse_view x, hysparse_view offset,
                                                 hysparse_view grad, hysparse_stream stream);

#ifdef __cplusplus
}
#endif
#endif
