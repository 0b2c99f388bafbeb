/* Decode attention of libhysparse_cuda: one new token a sequence, K and V in a paged cache and in rings. Part
 * of the C ABI of hysparse/cuda.h (codes, last_error, names). Lengths, page tables and slots are read on the
 * device, so that one captured CUDA graph serves every step up to max_kv_len. bf16 in and out, f32 inside;
 * deterministic, and a sequence's result does not depend on the batch around it: keys are cut at fixed
 * multiples. Source: arXiv 2602.03560, docs/hysparse.md sections 3, 4 and 6. */
#ifndef HYSPARSE_CUDA_DECODE_H
#define HYSPARSE_CUDA_DECODE_H

#include "hysparse/cuda.h"
#include "hysparse/cuda_step.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strides of [outer, rows, Hkv, dim] in elements; the last dimension is dense; rows are 16-byte aligned. */
typedef struct {
  const void* data;
  int64_t stride_outer, stride_row, stride_head;
} hysparse_cuda_rows;

/* Key position p of sequence b lies in row p % page_size of page page_table[b * page_table_stride + p /
 * page_size]. */
typedef struct {
  hysparse_cuda_rows k,
      v; /* [pages, page_size, Hkv, d | dv] bf16, or codes of 8 bits (hysparse/cuda_step.h) */
  const int32_t* page_table;
  int64_t page_table_stride;
  int32_t page_size;
  int32_t code;       /* HYSPARSE_CODE_...; with codes: dims multiples of 16, at most 192 / 128 */
  const void* scales; /* of codes: [pages, page_size, Hkv, 2] bf16, of k and of v; contiguous */
} hysparse_cuda_pages;

/* Key position p of sequence b lies in row p % length of ring slot[b]; the newest position, where fresh_k is
 * given, in row b of fresh_k and fresh_v instead (a ring holds committed tokens only). length >= window. */
typedef struct {
  hysparse_cuda_rows k, v; /* [slots, length, Hkv, d | dv] */
  const int32_t* slot;     /* [batch] */
  int32_t length;
  hysparse_cuda_tensor fresh_k, fresh_v; /* optional [batch, Hkv, d | dv] */
} hysparse_cuda_ring;

/* A full layer: attention of the newest token (position kv_len - 1, its K and V already in the cache) to all,
 * and, with entries > 0, its block selection as in hysparse_cuda_attention. */
typedef struct {
  int32_t batch, q_heads, kv_heads, head_dim,
      v_head_dim;        /* Hq / Hkv at most 16; dims multiples of 8, at most 256 */
  const int32_t* kv_len; /* device [batch], at most max_kv_len; 0 = an idle slot: o = 0, idx = -1 */
  int32_t max_kv_len;
  hysparse_cuda_tensor q; /* [batch, Hq, d] */
  hysparse_cuda_pages kv;
  float scale;
  hysparse_cuda_tensor o; /* [batch, Hq, dv] */
  float* lse;             /* optional [batch, Hq], natural log */
  int32_t block, entries; /* block 16, 32, 64 or 128; entries 0 (no selection) to 2048 */
  int32_t force_first, force_diagonal;
  int32_t* idx;        /* [batch, Hkv, entries] */
  float* block_scores; /* optional [batch, Hkv, score_stride] log-scores, -inf beyond the token's block */
  int64_t score_stride;
  void* workspace; /* hysparse_cuda_decode_full_workspace bytes, 256-byte aligned */
  size_t workspace_bytes;
} hysparse_cuda_decode_full_params;
HYSPARSE_API size_t hysparse_cuda_decode_full_workspace(const hysparse_cuda_decode_full_params* params);
HYSPARSE_API int hysparse_cuda_decode_full(const hysparse_cuda_decode_full_params* params,
                                           hysparse_stream stream);

/* A sparse layer in one launch: out = sigmoid(gate_sparse) * sparse + sigmoid(gate_window) * window. Either
 * branch may be absent (entries 0; window 0); a null gate multiplies by 1, so a sliding-window layer is this
 * call with entries 0 and no gates. */
typedef struct {
  int32_t batch, q_heads, kv_heads, head_dim, v_head_dim;
  const int32_t* kv_len; /* device [batch] */
  hysparse_cuda_tensor q;
  float scale;
  /* sparse branch, and the window branch's keys where shared_window */
  hysparse_cuda_pages kv;
  int32_t block, entries;    /* any block >= 1, entries up to 2048 */
  const int32_t* idx;        /* [batch, Hkv, entries], -1 = none */
  const float* sparse_sinks; /* optional [Hq], natural log */
  /* window branch: positions max(0, kv_len - window) .. kv_len - 1 */
  int32_t window, shared_window;
  hysparse_cuda_ring ring; /* unless shared_window */
  const float* window_sinks;
  /* gates: f32 logits, row b at gate + b * gate_stride; one a head, or with gate_channels one a channel (head
   * * dv + c) */
  const float *gate_sparse, *gate_window;
  int64_t gate_stride;
  int32_t gate_channels;
  hysparse_cuda_tensor out; /* [batch, Hq, dv] */
} hysparse_cuda_decode_sparse_params;
HYSPARSE_API int hysparse_cuda_decode_sparse(const hysparse_cuda_decode_sparse_params* params,
                                             hysparse_stream stream);

#ifdef __cplusplus
}
#endif
#endif
