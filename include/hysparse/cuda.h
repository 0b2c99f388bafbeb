/* libhysparse_cuda: GPU attention kernels for HySparse models behind a plain C ABI. Raw device pointers,
 * strides, a stream and a workspace query; no framework. Every function returns 0, or a negative code and a
 * message in hysparse_cuda_last_error() (of the calling thread). Nothing here allocates device memory except
 * hysparse_cuda_batch_create. Source: arXiv 2602.03560, docs/kernels.md.
 *
 * Names: Hq, Hkv query and KV heads (Hq % Hkv == 0); d head dim of q and k; dv of v; block = tokens a
 * selection block. */
#ifndef HYSPARSE_CUDA_H
#define HYSPARSE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "hysparse/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st* hysparse_stream; /* a cudaStream_t */

HYSPARSE_API const char* hysparse_cuda_last_error(void);
HYSPARSE_API const char* hysparse_cuda_version(void);

/* A ragged batch: `sequences` documents packed back to back. Sequence s owns query rows [cu_q[s], cu_q[s +
 * 1]) at positions past[s]..., and key rows [cu_kv[s], cu_kv[s] + past[s] + (cu_q[s + 1] - cu_q[s])) of
 * contiguous K, V. Host arrays; past NULL = zeros; cu_kv NULL = cu_q. Made once a step and used by all its
 * layers; holds small device tables (index lists of tiles) on the current device. */
typedef struct hysparse_cuda_batch hysparse_cuda_batch;
HYSPARSE_API int hysparse_cuda_batch_create(int32_t sequences, const int32_t* cu_q, const int32_t* past,
                                            const int32_t* cu_kv, hysparse_stream stream,
                                            hysparse_cuda_batch** out);
HYSPARSE_API void hysparse_cuda_batch_destroy(hysparse_cuda_batch* batch);

/* Which kernel an operation takes for a shape on a GPU of a compute capability (90: 9.0; 0: the current
 * device), in words. op: attention, attention_select, attention_backward, sparse_attention,
 * sparse_attention_backward, window_attention, window_attention_backward, decode, decode_sparse_layer; NULL
 * for another one. */
typedef struct {
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  int32_t block, entries; /* of the selection; entries 0: none */
  int32_t bf16;           /* 0: f32 */
} hysparse_cuda_shape;
HYSPARSE_API const char* hysparse_cuda_kernel_name(const char* op, const hysparse_cuda_shape* shape,
                                                   int32_t capability);

/* A strided [rows, heads, dim] tensor; the last dimension is dense; strides count elements; 16-byte aligned
 * rows. */
typedef struct {
  void* data;
  int64_t stride_row, stride_head;
} hysparse_cuda_tensor;

/* Causal dense GQA attention, bf16 in and out, f32 inside. With entries > 0 also the indices of the `entries`
 * blocks of largest block log-score a token and KV head (the paper's Eq. 3: max over the group's heads of max
 * over the block of scale q.k - lse): equal scores -> lower index, ascending, padded with -1. Score memory
 * comes from the workspace and does not grow with T x T / block. */
typedef struct {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q;    /* [tokens, Hq, d] */
  hysparse_cuda_tensor k, v; /* [kv rows, Hkv, d | dv] */
  int64_t kv_rows;           /* rows that k and v really have */
  float scale;
  hysparse_cuda_tensor o; /* [tokens, Hq, dv] */
  float* lse;             /* [tokens, Hq], natural log */
  int32_t block;          /* selection block: 16, 32, 64 or 128 */
  int32_t entries;        /* 0: no selection; at most 64 */
  int32_t force_first, force_diagonal;
  int32_t* idx;         /* [tokens, Hkv, entries] */
  float* block_scores;  /* optional [tokens, Hkv, score_stride] log-scores, -inf beyond the token's block */
  int64_t score_stride; /* >= ceil(longest sequence / block) */
  void* workspace;      /* hysparse_cuda_attention_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_attention_params;
HYSPARSE_API size_t hysparse_cuda_attention_workspace(const hysparse_cuda_attention_params* params);
HYSPARSE_API int hysparse_cuda_attention(const hysparse_cuda_attention_params* params,
                                         hysparse_stream stream);

/* Backward of the dense attention (no selection): dq is written; dk and dv, f32, are added to, so that the
 * sparse layers that share K and V can add theirs to the same buffers. A row whose lse is -inf gets dq = 0
 * and adds nothing. `deterministic`: equal inputs give equal bits, at some cost in speed; otherwise the order
 * of f32 sums is free. */
typedef struct {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q;    /* [tokens, Hq, d] bf16 */
  hysparse_cuda_tensor k, v; /* [kv rows, Hkv, d | dv] bf16 */
  int64_t kv_rows;
  float scale;
  hysparse_cuda_tensor o;      /* [tokens, Hq, dv] bf16, of the forward */
  const float* lse;            /* [tokens, Hq], of the forward */
  hysparse_cuda_tensor d_o;    /* [tokens, Hq, dv] bf16 */
  hysparse_cuda_tensor dq;     /* [tokens, Hq, d] bf16 */
  hysparse_cuda_tensor dk, dv; /* [kv rows, Hkv, d | dv] f32, += */
  int32_t deterministic;
  void* workspace; /* hysparse_cuda_attention_backward_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_attention_backward_params;
HYSPARSE_API size_t
hysparse_cuda_attention_backward_workspace(const hysparse_cuda_attention_backward_params* params);
HYSPARSE_API int hysparse_cuda_attention_backward(const hysparse_cuda_attention_backward_params* params,
                                                  hysparse_stream stream);

/* Block indices prepared for the sparse kernels: once a full layer, for all its sparse layers. Keeps pointers
 * to the batch, to idx and into the workspace. */
typedef struct hysparse_cuda_selection hysparse_cuda_selection;
typedef struct {
  const hysparse_cuda_batch* batch;
  const int32_t* idx; /* [tokens, Hkv, entries], -1 = no block; each block at or before its token's own */
  int32_t q_heads, kv_heads;
  int32_t block, entries; /* block 16, 32, 64 or 128; at most 64 entries */
  int32_t backward;       /* 1: also prepare what hysparse_cuda_sparse_backward reads */
  void* workspace;        /* hysparse_cuda_selection_workspace bytes, 256-byte aligned; lives as long as the
                             selection */
  size_t workspace_bytes;
} hysparse_cuda_selection_params;
HYSPARSE_API size_t hysparse_cuda_selection_workspace(const hysparse_cuda_selection_params* params);
HYSPARSE_API int hysparse_cuda_selection_create(const hysparse_cuda_selection_params* params,
                                                hysparse_stream stream, hysparse_cuda_selection** out);
HYSPARSE_API void hysparse_cuda_selection_destroy(hysparse_cuda_selection* selection);

/* Attention over the selected blocks, causal, with an optional per-head sink in the denominator; bf16 in and
 * out, f32 inside. A row with no visible key gives o = 0 and lse = sink (-inf without one). */
typedef struct {
  const hysparse_cuda_selection* selection;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q;    /* [tokens, Hq, d] */
  hysparse_cuda_tensor k, v; /* the source layer's, [kv rows, Hkv, d | dv] */
  int64_t kv_rows;
  float scale;
  const float* sinks;     /* optional [Hq], natural-log logits, -inf allowed */
  hysparse_cuda_tensor o; /* [tokens, Hq, dv] */
  float* lse;             /* [tokens, Hq], sink included */
  void* workspace;        /* hysparse_cuda_sparse_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_sparse_params;
HYSPARSE_API size_t hysparse_cuda_sparse_workspace(const hysparse_cuda_sparse_params* params);
HYSPARSE_API int hysparse_cuda_sparse_attention(const hysparse_cuda_sparse_params* params,
                                                hysparse_stream stream);

/* Gradients of hysparse_cuda_sparse_attention; the selection was made with backward = 1. dk, dv are added to
 * (rows of blocks that nobody chose are not touched), dq is overwritten. Deterministic. q and d_o: strides
 * are not negative and span at most 64 GiB. The workspace takes 2 GB, more where one KV head of a pass of
 * tokens needs more. */
typedef struct {
  const hysparse_cuda_selection* selection;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q, k, v;
  int64_t kv_rows;
  float scale;
  const float* sinks;          /* as in the forward */
  hysparse_cuda_tensor o, d_o; /* bf16 [tokens, Hq, dv] */
  const float* lse;            /* from the forward */
  const float* delta;          /* optional [tokens, Hq] sum of o * d_o a row; NULL: computed here */
  hysparse_cuda_tensor dq;     /* bf16 [tokens, Hq, d] */
  hysparse_cuda_tensor dk, dv; /* f32 [kv rows, Hkv, d | dv], += */
  float* dsinks;               /* optional [Hq], += -sum_t exp(sink - lse) (o . d_o); needs sinks */
  void* workspace;             /* hysparse_cuda_sparse_backward_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_sparse_backward_params;
HYSPARSE_API size_t
hysparse_cuda_sparse_backward_workspace(const hysparse_cuda_sparse_backward_params* params);
HYSPARSE_API int hysparse_cuda_sparse_backward(const hysparse_cuda_sparse_backward_params* params,
                                               hysparse_stream stream);

/* Sliding-window attention: the query at position t sees keys max(0, t - window + 1)..t; optional per-head
 * sink in the denominator; bf16 in and out, f32 inside. */
typedef struct {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q;    /* [tokens, Hq, d] */
  hysparse_cuda_tensor k, v; /* [kv rows, Hkv, d | dv] */
  int64_t kv_rows;
  int32_t window;
  float scale;
  const float* sinks;     /* optional [Hq], natural-log logits, -inf allowed */
  hysparse_cuda_tensor o; /* [tokens, Hq, dv] */
  float* lse;             /* [tokens, Hq], sink included */
} hysparse_cuda_window_params;
HYSPARSE_API int hysparse_cuda_window_attention(const hysparse_cuda_window_params* params,
                                                hysparse_stream stream);

/* Its gradients, as hysparse_cuda_sparse_backward's. */
typedef struct {
  const hysparse_cuda_batch* batch;
  int32_t q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q, k, v;
  int64_t kv_rows;
  int32_t window;
  float scale;
  const float* sinks;
  hysparse_cuda_tensor o, d_o;
  const float* lse;
  const float* delta; /* optional */
  hysparse_cuda_tensor dq, dk, dv;
  float* dsinks;   /* optional */
  void* workspace; /* hysparse_cuda_window_backward_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_window_backward_params;
HYSPARSE_API size_t
hysparse_cuda_window_backward_workspace(const hysparse_cuda_window_backward_params* params);
HYSPARSE_API int hysparse_cuda_window_backward(const hysparse_cuda_window_backward_params* params,
                                               hysparse_stream stream);

#ifdef __cplusplus
}
#endif
#endif
