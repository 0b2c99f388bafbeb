/* Steps that repeat in libhysparse_cuda: rows into a cache, and a recording of calls as one CUDA graph. Part
 * of the C ABI of hysparse/cuda.h (codes, last_error). */
#ifndef HYSPARSE_CUDA_STEP_H
#define HYSPARSE_CUDA_STEP_H

#include "hysparse/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of `row_bytes` bytes, `src_stride` and `dst_stride` bytes apart; device memory. */
typedef struct {
  const void* src;
  void* dst;
  int64_t row_bytes, src_stride, dst_stride;
} hysparse_cuda_row_pair;
enum { HYSPARSE_CUDA_ROW_PAIRS = 64 }; /* the most of one call */

/* For each pair: row rows[i] of dst = row i of src, 0 <= i < n; rows[i] = -1 leaves row i out. rows: device
 * [n]; its other values are not checked. pairs: host. */
HYSPARSE_API int hysparse_cuda_scatter_rows(const hysparse_cuda_row_pair* pairs, int32_t pair_count,
                                            const int64_t* rows, int64_t n, hysparse_stream stream);

/* K and V in 8 bits: an element is code * scale, a scale for each row of a head, of k and of v. Scales are
 * powers of two, 0 or NaN, so that code * scale is exact in bf16: int8 the smallest that is at least the
 * largest magnitude / 127, fp8 (e4m3) / 448; codes the nearest. */
enum { HYSPARSE_CODE_NONE = 0, HYSPARSE_CODE_INT8 = 1, HYSPARSE_CODE_FP8 = 2 };
typedef struct {
  int64_t n;
  int32_t heads, head_dim, v_head_dim;
  int32_t dtype; /* of k and v: HYSPARSE_DTYPE_F32 or _BF16 */
  int32_t code;  /* HYSPARSE_CODE_INT8 or _FP8 */
  void *k, *v;   /* [n, heads, d | dv], strides in elements, the last dimension dense */
  int64_t k_row, k_head, v_row, v_head;
  const int64_t* rows;     /* device [n]: row i of k and v is row rows[i] of codes and scales; not checked */
  void *k_codes, *v_codes; /* [m, heads, d | dv], contiguous */
  void* scales;            /* [m, heads, 2] bf16, contiguous, 4-byte aligned */
} hysparse_cuda_kv_8_bits;
/* To codes and scales... */
HYSPARSE_API int hysparse_cuda_quantise_kv(const hysparse_cuda_kv_8_bits* params, hysparse_stream stream);
/* ...and back. */
HYSPARSE_API int hysparse_cuda_widen_kv(const hysparse_cuda_kv_8_bits* params, hysparse_stream stream);

/* A stream for recordings, which nothing waits for and which waits for nothing. */
HYSPARSE_API int hysparse_cuda_recorder_create(hysparse_stream* out);
/* From here on calls on `recorder` are kept instead of run. Nothing of a recording may wait for the GPU. */
HYSPARSE_API int hysparse_cuda_record_begin(hysparse_stream recorder);
typedef struct hysparse_cuda_graph hysparse_cuda_graph;
/* Ends the recording. out NULL: throws it away, whatever has gone wrong in it. */
HYSPARSE_API int hysparse_cuda_record_end(hysparse_stream recorder, hysparse_cuda_graph** out);
HYSPARSE_API int hysparse_cuda_graph_launch(const hysparse_cuda_graph* graph, hysparse_stream stream);
HYSPARSE_API int hysparse_cuda_graph_destroy(hysparse_cuda_graph* graph);

#ifdef __cplusplus
}
#endif
#endif
