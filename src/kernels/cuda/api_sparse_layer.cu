// The C ABI of a sparse layer besides its sparse forward: sparse backward and window attention.
#include <algorithm>
#include <string>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm90/sparse_bwd/launch.h"
#include "kernels/cuda/sm90/window_fwd/launch.h"

using namespace hysparse::cuda;

namespace {

int bad(const char* what, const std::string& message) {
  return fail(HYSPARSE_BAD_ARGUMENT, std::string(what) + ": " + message);
}
int unsupported(const char* what, int head_dim, int v_head_dim) {
  return fail(HYSPARSE_UNSUPPORTED, std::string(what) + ": no kernel for head dims " +
                                        std::to_string(head_dim) + "/" + std::to_string(v_head_dim) +
                                        " on this GPU");
}

template <class P>
int check_backward(const char* what, const P& p) {
  if (!p.q.data || !p.k.data || !p.v.data || !p.o.data || !p.d_o.data || !p.lse || !p.dq.data || !p.dk.data ||
      !p.dv.data)
    return bad(what, "a null tensor");
  if (p.dsinks && !p.sinks) return bad(what, "dsinks without sinks");
  return HYSPARSE_OK;
}

// The fields that both backward calls have.
template <class P>
sparse_bwd::Arguments arguments(const P& p, const hysparse_cuda_batch* batch, const GatherIndex* index,
                                int window) {
  return {batch,   index, window,    p.q_heads, p.kv_heads, p.head_dim, p.v_head_dim, p.q,
          p.k,     p.v,   p.kv_rows, p.scale,   p.sinks,    p.o,        p.d_o,        p.lse,
          p.delta, p.dq,  p.dk,      p.dv,      p.dsinks,   p.workspace};
}
template <class P>
int run_backward(const char* what, const P& p, const sparse_bwd::Arguments& a, hysparse_stream stream) {
  if (compute_capability() / 10 != 9 || !sparse_bwd::takes(p.head_dim, p.v_head_dim))
    return unsupported(what, p.head_dim, p.v_head_dim);
  const size_t needs = sparse_bwd::workspace(a);
  if (!p.workspace || p.workspace_bytes < needs)
    return bad(
        what, "workspace of " + std::to_string(p.workspace_bytes) + " bytes, needs " + std::to_string(needs));
  return sparse_bwd::run(a, stream);
}

int check_selection(const hysparse_cuda_sparse_backward_params* p) {
  if (!p || !p->selection) return bad("sparse backward", "no parameters or no selection");
  if (!p->selection->backward) return bad("sparse backward", "the selection was made without backward = 1");
  if (p->q_heads != p->selection->q_heads || p->kv_heads != p->selection->kv_heads)
    return bad("sparse backward", "heads differ from the selection's");
  if (p->head_dim < 1 || p->v_head_dim < 1) return bad("sparse backward", "head dims must be positive");
  return HYSPARSE_OK;
}
sparse_bwd::Arguments arguments(const hysparse_cuda_sparse_backward_params& p) {
  return arguments(p, p.selection->batch, &p.selection->backward_index, 0);
}

template <class P>
int check_window(const char* what, const P* p) {
  if (!p || !p->batch) return bad(what, "no parameters or no batch");
  if (p->q_heads < 1 || p->kv_heads < 1 || p->q_heads % p->kv_heads != 0 || p->q_heads / p->kv_heads > 64)
    return bad(what, std::to_string(p->q_heads) + " query heads over " + std::to_string(p->kv_heads) +
                         " KV heads (a multiple, at most 64 a KV head)");
  if (p->window < 1) return bad(what, "window " + std::to_string(p->window) + " is not positive");
  if (p->head_dim < 1 || p->v_head_dim < 1) return bad(what, "head dims must be positive");
  return HYSPARSE_OK;
}
// index == null: the message is set.
sparse_bwd::Arguments arguments(const hysparse_cuda_window_backward_params& p) {
  return arguments(p, p.batch, p.batch->window_index(p.window, p.q_heads / p.kv_heads),
                   std::min(p.window, p.batch->max_kv));
}

}  // namespace

extern "C" {

size_t hysparse_cuda_sparse_backward_workspace(const hysparse_cuda_sparse_backward_params* p) {
  return check_selection(p) == HYSPARSE_OK ? sparse_bwd::workspace(arguments(*p)) : 0;
}

int hysparse_cuda_sparse_backward(const hysparse_cuda_sparse_backward_params* p, hysparse_stream stream) {
  if (int e = check_selection(p)) return e;
  if (int e = check_backward("sparse backward", *p)) return e;
  return run_backward("sparse backward", *p, arguments(*p), stream);
}

int hysparse_cuda_window_attention(const hysparse_cuda_window_params* p, hysparse_stream stream) {
  if (int e = check_window("window attention", p)) return e;
  if (!p->q.data || !p->k.data || !p->v.data || !p->o.data || !p->lse)
    return bad("window attention", "a null tensor");
  if (compute_capability() / 10 != 9 || !window_fwd::takes(p->head_dim, p->v_head_dim))
    return unsupported("window attention", p->head_dim, p->v_head_dim);
  return window_fwd::run(*p, stream);
}

size_t hysparse_cuda_window_backward_workspace(const hysparse_cuda_window_backward_params* p) {
  if (check_window("window backward", p) != HYSPARSE_OK) return 0;
  const sparse_bwd::Arguments a = arguments(*p);
  return a.index ? sparse_bwd::workspace(a) : 0;
}

int hysparse_cuda_window_backward(const hysparse_cuda_window_backward_params* p, hysparse_stream stream) {
  if (int e = check_window("window backward", p)) return e;
  if (int e = check_backward("window backward", *p)) return e;
  const sparse_bwd::Arguments a = arguments(*p);
  if (!a.index) return HYSPARSE_CUDA_ERROR;
  return run_backward("window backward", *p, a, stream);
}

}  // extern "C"
