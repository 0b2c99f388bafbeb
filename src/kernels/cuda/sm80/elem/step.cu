// Steps that repeat: rows into a cache, and recordings of calls as CUDA graphs.
#include "hysparse/cuda_step.h"

#include "kernels/cuda/sm80/elem/launch.h"

using namespace hysparse::cuda;

struct hysparse_cuda_graph {
  cudaGraphExec_t exec = nullptr;
};

namespace {

constexpr int kThreads = 128;
struct Pairs {
  hysparse_cuda_row_pair pair[HYSPARSE_CUDA_ROW_PAIRS];
};

template <class Word>
__device__ void copy_row(const hysparse_cuda_row_pair& p, int64_t from, int64_t to) {
  const Word* src = reinterpret_cast<const Word*>(static_cast<const char*>(p.src) + from * p.src_stride);
  Word* dst = reinterpret_cast<Word*>(static_cast<char*>(p.dst) + to * p.dst_stride);
  for (int64_t i = threadIdx.x; i < p.row_bytes / int64_t(sizeof(Word)); i += kThreads) dst[i] = src[i];
}

// A CTA a row of a pair.
__global__ void scatter_kernel(const __grid_constant__ Pairs pairs, const int64_t* rows, bool wide) {
  join_stream();
  const int64_t to = rows[blockIdx.x];
  if (to < 0) return;
  const hysparse_cuda_row_pair& p = pairs.pair[blockIdx.y];
  if (wide)
    copy_row<int4>(p, blockIdx.x, to);
  else
    copy_row<char>(p, blockIdx.x, to);
}

}  // namespace

extern "C" {

int hysparse_cuda_scatter_rows(const hysparse_cuda_row_pair* pairs, int32_t pair_count, const int64_t* rows,
                               int64_t n, hysparse_stream stream) {
  const char* op = "scatter_rows";
  if (pair_count < 0 || pair_count > HYSPARSE_CUDA_ROW_PAIRS) return refuse(op, "more than 64 pairs");
  if (n < 0 || n > INT32_MAX) return refuse(op, "more than 2^31 - 1 rows");
  if (n == 0 || pair_count == 0) return HYSPARSE_OK;
  if (!pairs || !rows) return refuse(op, "no pairs or no rows");
  Pairs all{};
  uintptr_t bits = 0;
  for (int i = 0; i < pair_count; ++i) {
    const hysparse_cuda_row_pair& p = all.pair[i] = pairs[i];
    if (!p.src || !p.dst) return refuse(op, "a null tensor");
    bits |= reinterpret_cast<uintptr_t>(p.src) | reinterpret_cast<uintptr_t>(p.dst) | uintptr_t(p.row_bytes) |
            uintptr_t(p.src_stride) | uintptr_t(p.dst_stride);
  }
  launch_overlapped<scatter_kernel>(dim3(unsigned(n), unsigned(pair_count)), kThreads, stream, {}, all, rows,
                                    bits % 16 == 0);
  return launched(op);
}

int hysparse_cuda_recorder_create(hysparse_stream* out) {
  return check_cuda(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking), "recording");
}

int hysparse_cuda_record_begin(hysparse_stream recorder) {
  return check_cuda(cudaStreamBeginCapture(recorder, cudaStreamCaptureModeRelaxed), "recording");
}

int hysparse_cuda_record_end(hysparse_stream recorder, hysparse_cuda_graph** out) {
  cudaGraph_t graph = nullptr;
  cudaError_t e = cudaStreamEndCapture(recorder, &graph);
  if (!out) {
    if (graph) cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return HYSPARSE_OK;
  }
  *out = nullptr;
  cudaGraphExec_t exec = nullptr;
  if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (e == cudaSuccess) *out = new hysparse_cuda_graph{exec};
  return check_cuda(e, "recording");
}

int hysparse_cuda_graph_launch(const hysparse_cuda_graph* graph, hysparse_stream stream) {
  return check_cuda(cudaGraphLaunch(graph->exec, stream), "a recorded step");
}

int hysparse_cuda_graph_destroy(hysparse_cuda_graph* graph) {
  if (!graph) return HYSPARSE_OK;
  const cudaError_t e = cudaGraphExecDestroy(graph->exec);
  delete graph;
  return check_cuda(e, "a recorded step");
}

}  // extern "C"
