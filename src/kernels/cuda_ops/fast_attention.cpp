#include "kernels/cuda_ops/fast_attention.h"

#include <algorithm>

#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/fast_kv.h"

namespace hysparse::cuda_calls {
namespace {

template <class Args>
bool suits(const Args& a) {
  return a.q.dtype == DType::bf16 && a.batch.tokens() > 0 && a.lse.contiguous() && aligned_rows(a.q) &&
         aligned_rows(a.o);
}
template <class Args>
bool backward_suits(const Args& a) {
  return suits(a) && aligned_rows(a.d_o) && aligned_rows(a.dq) && aligned_rows(a.dk) && aligned_rows(a.dv);
}
bool block_suits(int64_t block) {
  return block == 16 || block == 32 || block == 64 || block == 128;
}

// The fields that all parameter lists of hysparse/cuda.h share.
template <class Params, class Args>
Params params_of(const Args& a, const FastKv& kv) {
  Params p{};
  p.q_heads = static_cast<int32_t>(a.q.dim(1));
  p.kv_heads = static_cast<int32_t>(kv.k.dim(1));
  p.head_dim = static_cast<int32_t>(a.q.dim(2));
  p.v_head_dim = static_cast<int32_t>(kv.v.dim(2));
  p.q = fast_tensor(a.q);
  p.k = fast_tensor(kv.k);
  p.v = fast_tensor(kv.v);
  p.kv_rows = kv.k.dim(0);
  p.scale = static_cast<float>(a.scale);
  p.o = fast_tensor(a.o);
  p.lse = a.lse.template as<float>();
  if constexpr (requires { p.dq; }) {
    p.d_o = fast_tensor(a.d_o);
    p.dq = fast_tensor(a.dq);
    p.dk = fast_tensor(a.dk);
    p.dv = fast_tensor(a.dv);
  }
  if constexpr (requires { a.sinks; }) p.sinks = a.sinks ? a.sinks.template as<float>() : nullptr;
  if constexpr (requires { a.dsinks; }) p.dsinks = a.dsinks ? a.dsinks.template as<float>() : nullptr;
  return p;
}

bool forward(Resident& resident, Runtime& rt, const AttentionForward& a, const AttentionSelect* select) {
  const TensorView& scores = a.block_scores;
  const int64_t block = select ? select->block : a.score_block;
  if (!suits(a) || (scores && scores.stride[1] * a.kv.heads() != scores.stride[0])) return false;
  if ((scores || select) && !block_suits(block)) return false;
  const auto kv = fast_kv(resident, rt, a.batch, a.kv);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_attention_params>(a, *kv);
  p.batch = kv->batch.get();
  set_scores(p, a, select);
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.attention_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.attention(&p, cuda_stream()), "attention");
}

// The index lists of a selection; kept in selection.prepared where the caller keeps one.
const FastSelection* prepare(Resident& resident, const Selection& selection, const FastKv& kv, int q_heads,
                             bool backward, FastSelection& own) {
  if (!selection.idx.contiguous() || selection.entries() < 1 || selection.entries() > 64 ||
      !block_suits(selection.block))
    return nullptr;
  PreparedSelection* kept = selection.prepared.get();
  if (kept && kept->data) {
    const auto* have = static_cast<const FastSelection*>(kept->data.get());
    if (have->batch == kv.batch && have->idx == selection.idx.data && have->block == selection.block &&
        have->q_heads == q_heads && (have->backward || !backward))
      return have;
  }
  FastSelection made;
  made.batch = kv.batch;
  made.idx = selection.idx.data;
  made.block = selection.block;
  made.q_heads = q_heads;
  made.backward = backward;
  hysparse_cuda_selection_params s{};
  s.batch = kv.batch.get();
  s.idx = selection.idx.as<int32_t>();
  s.q_heads = q_heads;
  s.kv_heads = static_cast<int32_t>(kv.k.dim(1));
  s.block = static_cast<int32_t>(selection.block);
  s.entries = static_cast<int32_t>(selection.entries());
  s.backward = backward;
  const CudaLibrary& cuda = cuda_library();
  s.workspace_bytes = cuda.selection_workspace(&s);
  if (s.workspace_bytes == 0) return nullptr;
  made.memory = resident.pool->take(s.workspace_bytes);
  s.workspace = made.memory.get();
  hysparse_cuda_selection* handle = nullptr;
  if (!taken(cuda.selection_create(&s, cuda_stream(), &handle), "selection")) return nullptr;
  made.selection.reset(handle, [](hysparse_cuda_selection* p) { cuda_library().selection_destroy(p); });
  if (!kept) {
    own = std::move(made);
    return &own;
  }
  kept->data = std::make_shared<FastSelection>(std::move(made));
  return static_cast<const FastSelection*>(kept->data.get());
}

}  // namespace

bool fast_attention(Resident& resident, Runtime& rt, const AttentionForward& a) {
  return forward(resident, rt, a, nullptr);
}

bool fast_attention_select(Resident& resident, Runtime& rt, const AttentionSelect& a) {
  if (a.random || a.idx.dtype != DType::i32 || !a.idx.contiguous() || a.idx.dim(2) < 1 || a.idx.dim(2) > 64)
    return false;
  return forward(resident, rt, a.attention, &a);
}

bool fast_attention_backward(Resident& resident, Runtime& rt, const AttentionBackward& a) {
  if (!backward_suits(a)) return false;
  const auto kv = fast_kv(resident, rt, a.batch, a.kv);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_attention_backward_params>(a, *kv);
  p.batch = kv->batch.get();
  p.deterministic = resident.deterministic;
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.attention_backward_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.attention_backward(&p, cuda_stream()), "attention backward");
}

bool fast_sparse_attention(Resident& resident, Runtime& rt, const SparseAttentionForward& a) {
  if (!suits(a)) return false;
  const auto kv = fast_kv(resident, rt, a.batch, a.kv);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_sparse_params>(a, *kv);
  FastSelection own;
  const FastSelection* selection = prepare(resident, a.selection, *kv, p.q_heads, false, own);
  if (!selection) return false;
  p.selection = selection->selection.get();
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.sparse_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.sparse_attention(&p, cuda_stream()), "sparse attention");
}

bool fast_sparse_attention_backward(Resident& resident, Runtime& rt, const SparseAttentionBackward& a) {
  if (!backward_suits(a)) return false;
  const auto kv = fast_kv(resident, rt, a.batch, a.kv);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_sparse_backward_params>(a, *kv);
  FastSelection own;
  const FastSelection* selection = prepare(resident, a.selection, *kv, p.q_heads, true, own);
  if (!selection) return false;
  p.selection = selection->selection.get();
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.sparse_backward_workspace(&p);
  if (p.workspace_bytes == 0) return false;
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.sparse_backward(&p, cuda_stream()), "sparse attention backward");
}

bool fast_window_attention(Resident& resident, Runtime& rt, const WindowAttentionForward& a) {
  if (!suits(a)) return false;
  const auto kv = fast_window_kv(resident, rt, a.batch, a.kv, a.window);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_window_params>(a, *kv);
  p.batch = kv->batch.get();
  p.window = static_cast<int32_t>(std::min<int64_t>(a.window, INT32_MAX));
  return taken(cuda_library().window_attention(&p, cuda_stream()), "window attention");
}

bool fast_window_attention_backward(Resident& resident, Runtime& rt, const WindowAttentionBackward& a) {
  if (!backward_suits(a)) return false;
  const auto kv = fast_kv(resident, rt, a.batch, a.kv);
  if (!kv) return false;
  auto p = params_of<hysparse_cuda_window_backward_params>(a, *kv);
  p.batch = kv->batch.get();
  p.window = static_cast<int32_t>(std::min<int64_t>(a.window, INT32_MAX));
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.window_backward_workspace(&p);
  if (p.workspace_bytes == 0) return false;
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.window_backward(&p, cuda_stream()), "window attention backward");
}

}  // namespace hysparse::cuda_calls
