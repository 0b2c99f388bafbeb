#pragma once

#include "kernels/cuda/common/selection.h"

namespace hysparse::cuda::sparse_bwd {

// The arguments of both users: the block-sparse backward, and the window's over an index of its own.
struct Arguments {
  const hysparse_cuda_batch* batch;
  const GatherIndex* index;
  int window;  // 0: none
  int q_heads, kv_heads, head_dim, v_head_dim;
  hysparse_cuda_tensor q, k, v;
  int64_t kv_rows;
  float scale;
  const float* sinks;
  hysparse_cuda_tensor o, d_o;
  const float *lse, *delta;
  hysparse_cuda_tensor dq, dk, dv;
  float* dsinks;
  void* workspace;
};

bool takes(int head_dim, int v_head_dim);
size_t workspace(const Arguments& a);
int run(const Arguments& a, cudaStream_t stream);

}  // namespace hysparse::cuda::sparse_bwd
