#include <algorithm>

#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/fast_attention.h"
#include "kernels/cuda_ops/fast_kv.h"

namespace hysparse::cuda_calls {
namespace {

bool one_token_each(const RaggedBatch& batch) {
  return batch.tokens() > 0 && batch.tokens() == batch.sequences() && batch.sequences() <= 65535;
}

hysparse_cuda_rows rows_of(const TensorView& t) {
  return {t.data, t.stride[0], t.stride[1], t.stride[2]};
}
// Rows of 16-byte pieces.
bool aligned_groups(const TensorView& t) {
  const int64_t piece = 16 / static_cast<int64_t>(size_of(t.dtype));
  return t.rank == 4 && reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % piece == 0 &&
         t.stride[1] % piece == 0 && t.stride[2] % piece == 0;
}

bool heads_suit(const TensorView& q, const KvView& kv) {
  const int64_t d = q.dim(2), dv = kv.v_head_dim();
  return q.dtype == DType::bf16 && aligned_rows(q) && q.dim(1) / kv.heads() <= 16 && d % 8 == 0 &&
         dv % 8 == 0 && d <= 256 && dv <= 256;
}
bool pages_suit(const KvView& kv) {
  return kv.kind == KvView::Kind::paged && aligned_groups(kv.k) && aligned_groups(kv.v);
}

hysparse_cuda_pages pages_of(Resident& resident, const RaggedBatch& batch, const KvView& kv) {
  hysparse_cuda_pages pages{};
  pages.k = rows_of(kv.k);
  pages.v = rows_of(kv.v);
  pages.page_table = resident.tables.on_device(
      kv.page_table, static_cast<size_t>(batch.sequences()) * static_cast<size_t>(kv.page_table_stride));
  pages.page_table_stride = kv.page_table_stride;
  pages.page_size = static_cast<int32_t>(kv.page_size);
  if (kv.in_8_bits()) {
    pages.code = kv.k.dtype == DType::i8 ? HYSPARSE_CODE_INT8 : HYSPARSE_CODE_FP8;
    pages.scales = kv.scales.data;
  }
  return pages;
}

}  // namespace

bool fast_decode(Resident& resident, Runtime& rt, const AttentionForward& a, const AttentionSelect* select) {
  const TensorView& scores = a.block_scores;
  if (!one_token_each(a.batch) || !pages_suit(a.kv) || !heads_suit(a.q, a.kv) || !aligned_rows(a.o) ||
      !a.lse.contiguous() || (scores && scores.stride[1] * a.kv.heads() != scores.stride[0]) ||
      (select && (select->random || !select->idx.contiguous())))
    return false;
  hysparse_cuda_decode_full_params p{};
  p.batch = static_cast<int32_t>(a.batch.sequences());
  p.q_heads = static_cast<int32_t>(a.q.dim(1));
  p.kv_heads = static_cast<int32_t>(a.kv.heads());
  p.head_dim = static_cast<int32_t>(a.q.dim(2));
  p.v_head_dim = static_cast<int32_t>(a.kv.v_head_dim());
  p.kv_len = resident.tables.on_device(a.batch.kv_lens);
  p.max_kv_len = static_cast<int32_t>(std::max(a.batch.max_kv_len(), a.batch.kv_bound));
  p.q = fast_tensor(a.q);
  p.kv = pages_of(resident, a.batch, a.kv);
  p.scale = static_cast<float>(a.scale);
  p.o = fast_tensor(a.o);
  p.lse = a.lse.as<float>();
  set_scores(p, a, select);
  const CudaLibrary& cuda = cuda_library();
  p.workspace_bytes = cuda.decode_full_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  return taken(cuda.decode_full(&p, cuda_stream()), "decode attention");
}

bool fast_decode(Resident& resident, Runtime&, const SparseWindowGated& a) {
  const SparseAttentionForward& sparse = a.sparse;
  const WindowAttentionForward* window = a.window;
  const RaggedBatch& batch = sparse.batch;
  if (!one_token_each(batch) || !pages_suit(sparse.kv) || !heads_suit(sparse.q, sparse.kv) ||
      !aligned_rows(a.out) || !sparse.selection.idx.contiguous())
    return false;
  const int64_t heads = sparse.q.dim(1), dv = sparse.kv.v_head_dim(), gate_width = a.gate_sparse.dim(1);
  hysparse_cuda_decode_sparse_params p{};
  p.batch = static_cast<int32_t>(batch.sequences());
  p.q_heads = static_cast<int32_t>(heads);
  p.kv_heads = static_cast<int32_t>(sparse.kv.heads());
  p.head_dim = static_cast<int32_t>(sparse.q.dim(2));
  p.v_head_dim = static_cast<int32_t>(dv);
  p.q = fast_tensor(sparse.q);
  p.scale = static_cast<float>(sparse.scale);
  p.block = static_cast<int32_t>(sparse.selection.block);
  p.entries = static_cast<int32_t>(sparse.selection.entries());
  p.idx = sparse.selection.idx.as<int32_t>();
  p.sparse_sinks = sparse.sinks ? sparse.sinks.as<float>() : nullptr;
  if (window) {
    if (window->window > INT32_MAX || a.gate_window.stride[0] != a.gate_sparse.stride[0] ||
        window->scale != sparse.scale || window->q.data != sparse.q.data)
      return false;
    p.window = static_cast<int32_t>(window->window);
    p.window_sinks = window->sinks ? window->sinks.as<float>() : nullptr;
    p.gate_window = a.gate_window.as<float>();
    const KvView& kv = window->kv;
    if (kv.kind == KvView::Kind::ring) {
      if (!aligned_groups(kv.k) || !aligned_groups(kv.v) || !aligned_rows(kv.fresh_k) ||
          !aligned_rows(kv.fresh_v))
        return false;
      p.ring = {rows_of(kv.k),
                rows_of(kv.v),
                resident.tables.on_device(kv.slot, static_cast<size_t>(batch.sequences())),
                static_cast<int32_t>(kv.ring_len),
                fast_tensor(kv.fresh_k),
                fast_tensor(kv.fresh_v)};
    } else if (kv.kind == KvView::Kind::paged && kv.k.data == sparse.kv.k.data) {
      p.shared_window = 1;
    } else {
      return false;
    }
  }
  p.kv_len = resident.tables.on_device(batch.kv_lens);
  p.kv = pages_of(resident, batch, sparse.kv);
  p.gate_sparse = a.gate_sparse.as<float>();
  p.gate_stride = a.gate_sparse.stride[0];
  p.gate_channels = gate_width != heads;
  p.out = fast_tensor(a.out);
  return taken(cuda_library().decode_sparse(&p, cuda_stream()), "decode of a sparse layer");
}

}  // namespace hysparse::cuda_calls
