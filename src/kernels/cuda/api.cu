// The C ABI: argument checks, then the kernel that takes the shape on this GPU.
#include <string>

#include "kernels/cuda/common/batch.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm90/attention_bwd/launch.h"
#include "kernels/cuda/sm90/attention_fwd/launch.h"
#include "kernels/cuda/sm90/sparse_fwd/launch.h"

using namespace hysparse::cuda;

namespace {

int check(const hysparse_cuda_attention_params* p) {
  if (!p || !p->batch) return fail(HYSPARSE_BAD_ARGUMENT, "attention: no parameters or no batch");
  if (p->q_heads < 1 || p->kv_heads < 1 || p->q_heads % p->kv_heads != 0)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention: " + std::to_string(p->q_heads) +
                                           " query heads do not divide over " + std::to_string(p->kv_heads) +
                                           " KV heads");
  if (!p->q.data || !p->k.data || !p->v.data || !p->o.data || !p->lse)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention: a null tensor");
  if (p->entries < 0 || p->entries > 64)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention: entries must be 0 to 64");
  if (p->entries > 0 && !p->idx) return fail(HYSPARSE_BAD_ARGUMENT, "attention: entries without idx");
  if ((p->entries > 0 || p->block_scores) && p->block != 16 && p->block != 32 && p->block != 64 &&
      p->block != 128)
    return fail(HYSPARSE_UNSUPPORTED,
                "attention: block " + std::to_string(p->block) + " is not 16, 32, 64 or 128");
  if (p->block_scores && p->score_stride < (p->batch->max_kv + p->block - 1) / p->block)
    return fail(HYSPARSE_BAD_ARGUMENT,
                "attention: score_stride is shorter than the blocks of the longest sequence");
  return HYSPARSE_OK;
}

int check(const hysparse_cuda_attention_backward_params* p) {
  if (!p || !p->batch) return fail(HYSPARSE_BAD_ARGUMENT, "attention backward: no parameters or no batch");
  if (p->q_heads < 1 || p->kv_heads < 1 || p->q_heads % p->kv_heads != 0)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention backward: " + std::to_string(p->q_heads) +
                                           " query heads do not divide over " + std::to_string(p->kv_heads) +
                                           " KV heads");
  if (!p->q.data || !p->k.data || !p->v.data || !p->o.data || !p->lse || !p->d_o.data || !p->dq.data ||
      !p->dk.data || !p->dv.data)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention backward: a null tensor");
  return HYSPARSE_OK;
}

}  // namespace

extern "C" {

size_t hysparse_cuda_attention_workspace(const hysparse_cuda_attention_params* p) {
  return check(p) == HYSPARSE_OK ? attention_fwd::workspace(*p) : 0;
}

int hysparse_cuda_attention(const hysparse_cuda_attention_params* p, hysparse_stream stream) {
  if (int e = check(p)) return e;
  if (p->workspace_bytes < attention_fwd::workspace(*p))
    return fail(HYSPARSE_BAD_ARGUMENT, "attention: workspace of " + std::to_string(p->workspace_bytes) +
                                           " bytes, needs " + std::to_string(attention_fwd::workspace(*p)));
  if (compute_capability() / 10 != 9 || !attention_fwd::takes(*p))
    return fail(HYSPARSE_UNSUPPORTED, "attention: no kernel for head dims " + std::to_string(p->head_dim) +
                                          "/" + std::to_string(p->v_head_dim) + " on this GPU");
  return attention_fwd::run(*p, stream);
}

size_t hysparse_cuda_attention_backward_workspace(const hysparse_cuda_attention_backward_params* p) {
  return p && p->batch && p->q_heads > 0 ? attention_bwd::workspace(*p) : 0;
}

int hysparse_cuda_attention_backward(const hysparse_cuda_attention_backward_params* p,
                                     hysparse_stream stream) {
  if (int e = check(p)) return e;
  if (compute_capability() / 10 != 9 || !attention_bwd::takes(*p))
    return fail(HYSPARSE_UNSUPPORTED, "attention backward: no kernel for head dims " +
                                          std::to_string(p->head_dim) + "/" + std::to_string(p->v_head_dim) +
                                          " on this GPU");
  if (p->workspace_bytes < attention_bwd::workspace(*p) || !p->workspace)
    return fail(HYSPARSE_BAD_ARGUMENT, "attention backward: workspace of " +
                                           std::to_string(p->workspace_bytes) + " bytes, needs " +
                                           std::to_string(attention_bwd::workspace(*p)));
  return attention_bwd::run(*p, stream);
}

size_t hysparse_cuda_sparse_workspace(const hysparse_cuda_sparse_params* p) {
  return p && p->selection && p->kv_heads > 0 && p->v_head_dim > 0 ? sparse_fwd::workspace(*p) : 0;
}

int hysparse_cuda_sparse_attention(const hysparse_cuda_sparse_params* p, hysparse_stream stream) {
  if (!p || !p->selection)
    return fail(HYSPARSE_BAD_ARGUMENT, "sparse attention: no parameters or no selection");
  if (p->q_heads != p->selection->q_heads || p->kv_heads != p->selection->kv_heads)
    return fail(HYSPARSE_BAD_ARGUMENT, "sparse attention: heads differ from the selection's");
  if (!p->q.data || !p->k.data || !p->v.data || !p->o.data || !p->lse)
    return fail(HYSPARSE_BAD_ARGUMENT, "sparse attention: a null tensor");
  if (compute_capability() / 10 != 9 || !sparse_fwd::takes(*p))
    return fail(HYSPARSE_UNSUPPORTED, "sparse attention: no kernel for head dims " +
                                          std::to_string(p->head_dim) + "/" + std::to_string(p->v_head_dim) +
                                          " on this GPU");
  if (p->workspace_bytes < sparse_fwd::workspace(*p))
    return fail(HYSPARSE_BAD_ARGUMENT, "sparse attention: workspace of " +
                                           std::to_string(p->workspace_bytes) + " bytes, needs " +
                                           std::to_string(sparse_fwd::workspace(*p)));
  return sparse_fwd::run(*p, stream);
}

}  // extern "C"
