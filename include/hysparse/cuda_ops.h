/* The other operations of a HySparse model in libhysparse_cuda: rows, norms, products, losses, optimiser, and
 * attention for every legal shape on any GPU from compute capability 8.0 (plain kernels: where the fast ones
 * of hysparse/cuda.h and hysparse/cuda_decode.h do not take a shape). Part of the C ABI of hysparse/cuda.h
 * (codes, last_error). What each operation computes is said in src/kernels/ops.h, whose names these carry. T
 * is f32 or bf16, sums are f32. Everything is deterministic. Nothing allocates device memory: where a
 * workspace is needed its size is asked for first. Values of index tensors are not checked on the device: a
 * token or label out of range gives NaN. */
#ifndef HYSPARSE_CUDA_OPS_H
#define HYSPARSE_CUDA_OPS_H

#include "hysparse/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  HYSPARSE_DTYPE_F64 = 0,
  HYSPARSE_DTYPE_F32 = 1,
  HYSPARSE_DTYPE_BF16 = 2,
  HYSPARSE_DTYPE_I64 = 4,
  HYSPARSE_DTYPE_I32 = 5
};

/* A strided tensor of up to four dimensions; the last one is dense; strides count elements. data NULL:
 * absent. */
typedef struct {
  void* data;
  int32_t dtype, rank;
  int64_t shape[4], stride[4];
} hysparse_cuda_view;
typedef const hysparse_cuda_view* hysparse_view;

/* ---- device memory, for programs that do not link the CUDA runtime themselves */
HYSPARSE_API int hysparse_cuda_device_count(int32_t* count);
HYSPARSE_API int hysparse_cuda_allocate(size_t bytes, int32_t managed,
                                        void** out); /* managed: the host may touch it too */
HYSPARSE_API int hysparse_cuda_free(void* p);
/* A range of addresses without memory; commit() gives bytes [from, to) of it memory (multiples of 32 MiB). */
HYSPARSE_API int hysparse_cuda_reserve(size_t bytes, void** out);
HYSPARSE_API int hysparse_cuda_commit(void* range, size_t from, size_t to);
HYSPARSE_API int hysparse_cuda_release_range(void* range, size_t bytes, size_t committed);
HYSPARSE_API int hysparse_cuda_zero(void* p, size_t bytes, hysparse_stream stream);
/* Either side may be host memory; returns when host memory may be reused (from the host) or is filled (to the
 * host). */
HYSPARSE_API int hysparse_cuda_copy(void* dst, const void* src, size_t bytes, hysparse_stream stream);
/* From ordinary (pageable) host memory, which may be reused on return; the GPU's work before it is not waited
 * for. */
HYSPARSE_API int hysparse_cuda_upload(void* dst, const void* host, size_t bytes, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_copy_on_device(void* dst, const void* src, size_t bytes,
                                              hysparse_stream stream);
/* Of the current device. */
HYSPARSE_API int hysparse_cuda_memory(size_t* free_bytes, size_t* total_bytes);
HYSPARSE_API int hysparse_cuda_synchronize(hysparse_stream stream);

/* ---- rows */
HYSPARSE_API int hysparse_cuda_embedding(hysparse_view tokens, hysparse_view table, hysparse_view y,
                                         hysparse_stream stream);
/* grad [vocab, hidden] f32 += , summed in token order. */
HYSPARSE_API size_t hysparse_cuda_embedding_backward_workspace(int64_t tokens);
HYSPARSE_API int hysparse_cuda_embedding_backward(hysparse_view tokens, hysparse_view dy, hysparse_view grad,
                                                  void* workspace, size_t workspace_bytes,
                                                  hysparse_stream stream);
/* position: device [n]. more: NULL, or a second tensor of n rows that is rotated alike in the same launch. */
HYSPARSE_API int hysparse_cuda_rope(hysparse_view x, hysparse_view more, const int32_t* position,
                                    hysparse_view cos, hysparse_view sin, int32_t inverse,
                                    hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_add(hysparse_view a, hysparse_view b, hysparse_view y, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_cast(hysparse_view src, hysparse_view dst, hysparse_stream stream);
/* rows: device [m]. */
HYSPARSE_API int hysparse_cuda_gather_rows(hysparse_view src, const int64_t* rows, hysparse_view dst,
                                           hysparse_stream stream);

/* ---- norms, MLP, gates */
/* delta, where given, is added to x first, in place (AddRmsNorm). rstd optional. */
HYSPARSE_API int hysparse_cuda_rmsnorm(hysparse_view x, hysparse_view delta, hysparse_view weight, double eps,
                                       hysparse_view y, hysparse_view rstd, hysparse_stream stream);
/* dweight optional, [h] f32 +=. */
HYSPARSE_API size_t hysparse_cuda_rmsnorm_backward_workspace(int64_t rows, int64_t width);
HYSPARSE_API int hysparse_cuda_rmsnorm_backward(hysparse_view x, hysparse_view weight, hysparse_view rstd,
                                                hysparse_view dy, hysparse_view dx, int32_t accumulate,
                                                hysparse_view dweight, void* workspace,
                                                size_t workspace_bytes, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_swiglu(hysparse_view gate, hysparse_view up, hysparse_view h,
                                      hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_swiglu_backward(hysparse_view gate, hysparse_view up, hysparse_view dh,
                                               hysparse_view dgate, hysparse_view dup,
                                               hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_gated_sum(hysparse_view a, hysparse_view gate_a, hysparse_view b,
                                         hysparse_view gate_b, hysparse_view out, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_gated_sum_backward(hysparse_view a, hysparse_view gate_a, hysparse_view b,
                                                  hysparse_view gate_b, hysparse_view d_out, hysparse_view da,
                                                  hysparse_view db, hysparse_view dgate_a,
                                                  hysparse_view dgate_b, hysparse_stream stream);

/* ---- products through cuBLASLt (f32 accumulation, no TF32): c[i, j] = sum_k a(i, k) b(k, j) (+ c when
 * accumulate; a bf16 c then has its product rounded before the sum is), with a(i, k) = a[i, k], or a[k, i]
 * when a_transposed; b(k, j) = b[k, j], or b[j, k] when b_transposed. a, b of one dtype (f32 or bf16), c of
 * theirs or f32. */
#define HYSPARSE_CUDA_MATMUL_WORKSPACE ((size_t)32 << 20)
HYSPARSE_API int hysparse_cuda_matmul(hysparse_view a, int32_t a_transposed, hysparse_view b,
                                      int32_t b_transposed, hysparse_view c, int32_t accumulate,
                                      void* workspace, size_t workspace_bytes, hysparse_stream stream);
/* y[n, out] = x w^T (+ bias) (+ y when accumulate), rounded once. w, bias: bf16. */
typedef struct {
  const void* w;    /* [out, depth], w_stride elements from row to row */
  const void* bias; /* [out] or NULL */
  void* y;          /* [n, out], y_stride elements from row to row; f32 or bf16 */
  int64_t w_stride, y_stride;
  int32_t out, y_dtype, accumulate;
} hysparse_cuda_product;
enum { HYSPARSE_CUDA_PRODUCTS = 8 }; /* the most of one call */
/* Products of one x [n, depth] in one launch, none of which reads another's y: for decoding. products: host.
 * constant: no kernel of the program writes these w; they are read before the kernels ahead have ended.
 * HYSPARSE_UNSUPPORTED: more than 4 rows, another dtype than bf16, rows that are no groups of 16 bytes. */
HYSPARSE_API int hysparse_cuda_linear_group(hysparse_view x, const hysparse_cuda_product* products,
                                            int32_t count, int32_t constant, hysparse_stream stream);
/* c = sum (+ bias[j]) (+ c when accumulate), rounded once; sum f32, c f32 or bf16, bias optional. */
HYSPARSE_API int hysparse_cuda_finish_product(hysparse_view sum, hysparse_view bias, hysparse_view c,
                                              int32_t accumulate, hysparse_stream stream);
/* out [columns] f32 += sums of x's columns. */
HYSPARSE_API int hysparse_cuda_column_sums(hysparse_view x, hysparse_view out, hysparse_stream stream);

/* ---- drawing tokens */
/* How a row's token is drawn: of the first `vocab` logits, the top_k largest (0: all), then the fewest of
 * them whose probabilities reach top_p, then those at least min_p times as likely as the likeliest; equal
 * logits rank by the lower id. `uniform` in [0, 1) picks one by its share, in the order of ids. */
typedef struct {
  double uniform, top_p;
  float inverse_temperature; /* 0: the likeliest */
  float min_p;
  int32_t top_k, vocab; /* vocab: 1 to the columns; not checked */
} hysparse_cuda_draw;
/* tokens[i] = the token of row i of logits [n, columns] f32; -1: NaN or +inf, or nothing above -inf. rows,
 * tokens: device [n]. */
HYSPARSE_API int hysparse_cuda_draw_tokens(hysparse_view logits, const hysparse_cuda_draw* rows,
                                           int32_t* tokens, hysparse_stream stream);

/* ---- loss and optimiser */
HYSPARSE_API int hysparse_cuda_cross_entropy(hysparse_view logits, hysparse_view labels, double grad_scale,
                                             hysparse_view loss, hysparse_view dlogits,
                                             hysparse_stream stream);
typedef struct {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step; /* 1-based */
} hysparse_cuda_adamw_settings;
/* master, grad, m, v f32; value T, or the same memory as master; all contiguous. */
HYSPARSE_API int hysparse_cuda_adamw(hysparse_view master, hysparse_view value, hysparse_view grad,
                                     hysparse_view m, hysparse_view v,
                                     const hysparse_cuda_adamw_settings* settings, hysparse_stream stream);
/* out [1] f64 += sum x^2; contiguous f64, f32 or bf16. */
#define HYSPARSE_CUDA_SUM_SQUARES_WORKSPACE ((size_t)4096)
HYSPARSE_API int hysparse_cuda_sum_squares(hysparse_view x, hysparse_view out, void* workspace,
                                           hysparse_stream stream);

/* ---- attention for every legal shape. Device tables of a ragged batch: sequence and position a query row;
 * cu_q [S + 1]; past [S]. */
typedef struct {
  int64_t sequences, tokens;
  const int32_t* sequence; /* [tokens] */
  const int32_t* position; /* [tokens] */
  const int64_t* cu_q;     /* [S + 1] */
  const int64_t* past;     /* [S] */
} hysparse_cuda_rows_of_batch;
enum { HYSPARSE_KV_CONTIGUOUS = 0, HYSPARSE_KV_PAGED = 1, HYSPARSE_KV_RING = 2 };
/* As KvView of kernels/kv_view.h, its tables on the device. */
typedef struct {
  int32_t kind;
  hysparse_cuda_view k, v, fresh_k, fresh_v;
  const int64_t* cu_kv;
  const int32_t* page_table;
  int64_t page_table_stride, page_size;
  const int32_t* slot;
  int64_t ring_len;
} hysparse_cuda_kv;
/* Which keys a query at position t sees: all to t; with `window`, the last window of them; with idx, those of
 * its blocks. */
typedef struct {
  hysparse_cuda_rows_of_batch batch;
  hysparse_cuda_view q;
  hysparse_cuda_kv kv;
  double scale;
  int64_t window;         /* 0: no window */
  hysparse_cuda_view idx; /* optional [tokens, Hkv, entries] i32 */
  int64_t block;          /* of idx, or of block_scores */
  hysparse_cuda_view sinks;
  hysparse_cuda_view o, lse;
  hysparse_cuda_view block_scores; /* forward, all keys: optional [tokens, Hkv, nblocks] f32 */
  /* backward alone; kv contiguous; dk, dv f32 +=, dsinks optional f32 += */
  hysparse_cuda_view d_o, dq, dk, dv, dsinks;
} hysparse_cuda_plain_attention_params;
HYSPARSE_API int hysparse_cuda_plain_attention(const hysparse_cuda_plain_attention_params* params,
                                               hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_plain_attention_backward(const hysparse_cuda_plain_attention_params* params,
                                                        hysparse_stream stream);

/* idx [tokens, Hkv, entries] i32 from scores [tokens, Hkv, nblocks] f32. */
HYSPARSE_API int hysparse_cuda_select_blocks(const hysparse_cuda_rows_of_batch* batch, hysparse_view scores,
                                             int64_t block, int32_t force_first, int32_t force_diagonal,
                                             hysparse_view idx, hysparse_stream stream);
/* row: device [S], the training row of each sequence. */
HYSPARSE_API int hysparse_cuda_random_scores(const hysparse_cuda_rows_of_batch* batch, uint64_t seed,
                                             uint64_t step, const int64_t* row, int64_t layer, int64_t block,
                                             hysparse_view scores, hysparse_stream stream);

#ifdef __cplusplus
}
#endif
#endif
