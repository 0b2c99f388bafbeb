#include "kernels/cuda/sm90/sparse_fwd/launch.h"

#include "kernels/cuda/common/tensor_map.h"
#include "kernels/cuda/sm90/sparse_fwd/instantiate.h"

namespace hysparse::cuda::sparse_fwd {

bool takes(const hysparse_cuda_sparse_params& p) {
  return find_kernel(p.head_dim, p.v_head_dim, p.selection->unions.list_block) != nullptr;
}

int run(const hysparse_cuda_sparse_params& p, cudaStream_t stream) {
  const int block = p.selection->unions.list_block;
  Params k{};
  if (int e = make_tensor_map(&k.k, p.k, p.kv_rows, p.kv_heads, p.head_dim, block, "k")) return e;
  if (int e = make_tensor_map(&k.v, p.v, p.kv_rows, p.kv_heads, p.v_head_dim, block, "v")) return e;
  k.lists = p.selection->unions;
  k.q = static_cast<const __nv_bfloat16*>(p.q.data);
  k.q_stride_row = p.q.stride_row;
  k.q_stride_head = p.q.stride_head;
  k.kv_heads = p.kv_heads;
  k.ratio = p.q_heads / p.kv_heads;
  k.scale_log2 = p.scale * 1.4426950408889634f;
  k.sinks = p.sinks;
  k.o = static_cast<__nv_bfloat16*>(p.o.data);
  k.o_stride_row = p.o.stride_row;
  k.o_stride_head = p.o.stride_head;
  k.lse = p.lse;
  return check_cuda(find_kernel(p.head_dim, p.v_head_dim, block)(k, stream), "sparse attention forward");
}

}  // namespace hysparse::cuda::sparse_fwd
