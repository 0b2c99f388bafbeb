// libhysparse_cuda.so, opened at run time: a program runs without a GPU, a driver or the library, and says
// why when asked for them.
#pragma once

#include <string>

#include "hysparse/cuda.h"
#include "hysparse/cuda_decode.h"
#include "hysparse/cuda_experts.h"
#include "hysparse/cuda_ops.h"
#include "hysparse/cuda_step.h"

namespace hysparse {

// The functions of the library that the operations call; `name` here is hysparse_cuda_<name> there.
// clang-format off
#define HYSPARSE_CUDA_FUNCTIONS(X)                                                                          \
  X(last_error) X(version) X(device_count) X(allocate) X(free) X(memory) X(reserve) X(commit) X(release_range) X(zero) X(copy) X(copy_on_device) X(upload)           \
  X(synchronize) X(batch_create) X(batch_destroy) X(attention_workspace) X(attention)                       \
  X(attention_backward_workspace) X(attention_backward) X(selection_workspace) X(selection_create)          \
  X(selection_destroy) X(sparse_workspace) X(sparse_attention) X(sparse_backward_workspace)                 \
  X(sparse_backward) X(window_attention) X(window_backward_workspace) X(window_backward)                    \
  X(decode_full_workspace) X(decode_full) X(decode_sparse) X(embedding) X(embedding_backward_workspace)     \
  X(embedding_backward) X(rope) X(add) X(cast) X(gather_rows) X(rmsnorm) X(rmsnorm_backward_workspace)      \
  X(rmsnorm_backward) X(swiglu) X(swiglu_backward) X(gated_sum) X(gated_sum_backward) X(matmul)             \
  X(linear_group) X(draw_tokens) X(finish_product) X(column_sums) X(cross_entropy) X(adamw) X(sum_squares) X(plain_attention)              \
  X(plain_attention_backward) X(select_blocks) X(random_scores) X(kernel_name) X(scatter_rows) X(quantise_kv) X(widen_kv)            \
  X(recorder_create) X(record_begin) X(record_end) X(graph_launch) X(graph_destroy)                         \
  X(route) X(route_backward_workspace) X(route_backward) X(expert_tables_workspace) X(expert_tables)        \
  X(expert_gather) X(expert_sum) X(expert_swiglu) X(expert_swiglu_backward) X(grouped_linear)               \
  X(grouped_linear_pair) X(grouped_linear_pair_dx) X(grouped_linear_dx) X(grouped_linear_dw) X(widen_experts) \
  X(expert_mlp_workspace) X(expert_mlp)
// clang-format on

struct CudaLibrary {
#define HYSPARSE_DECLARE(name) decltype(&hysparse_cuda_##name) name = nullptr;
  HYSPARSE_CUDA_FUNCTIONS(HYSPARSE_DECLARE)
#undef HYSPARSE_DECLARE
  std::string path;

  // Throws Error where a call returned a code other than 0.
  void check(int code, const char* what) const;
};

// The library without asking for a GPU.
const CudaLibrary& cuda_library_alone();
// Opens it once: $HYSPARSE_CUDA_LIBRARY, else beside the program, in ../lib and ../cuda/lib of it, else where
// the loader looks. Throws Error(failure) saying what is missing: the library, a symbol of it (another
// version), a driver, a GPU.
const CudaLibrary& cuda_library();
// Whether that succeeds; if not, why not.
bool cuda_available(std::string* why = nullptr);

// The stream of this thread's calls: the null stream, but while a step is recorded.
hysparse_stream cuda_stream();
class CudaStreamScope {
 public:
  explicit CudaStreamScope(hysparse_stream stream);
  ~CudaStreamScope();
  CudaStreamScope(const CudaStreamScope&) = delete;
  CudaStreamScope& operator=(const CudaStreamScope&) = delete;
};

}  // namespace hysparse
