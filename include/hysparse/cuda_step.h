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
