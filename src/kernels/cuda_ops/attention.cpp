#include "kernels/cuda_ops/attention.h"

#include "kernels/checks.h"
#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/fast_attention.h"

namespace hysparse::cuda_calls {
namespace {

hysparse_cuda_rows_of_batch rows_of(Resident& resident, const RaggedBatch& batch) {
  std::vector<int32_t> sequence(static_cast<size_t>(batch.tokens())), position(sequence.size());
  size_t at = 0;
  for (int64_t s = 0; s < batch.sequences(); ++s)
    for (int64_t i = 0; i < batch.q_len(s); ++i, ++at) {
      sequence[at] = static_cast<int32_t>(s);
      position[at] = static_cast<int32_t>(batch.past_len[size_t(s)] + i);
    }
  TableCache& tables = resident.tables;
  return {batch.sequences(),
          batch.tokens(),
          tables.on_device(sequence),
          tables.on_device(position),
          tables.on_device(batch.cu_q),
          tables.on_device(batch.past_len)};
}

hysparse_cuda_kv on_device(Resident& resident, const KvView& kv, const RaggedBatch& batch) {
  const auto sequences = static_cast<size_t>(batch.sequences());
  hysparse_cuda_kv d{};
  d.kind = static_cast<int32_t>(kv.kind);
  d.k = View(kv.k).value();
  d.v = View(kv.v).value();
  d.fresh_k = View(kv.fresh_k).value();
  d.fresh_v = View(kv.fresh_v).value();
  TableCache& tables = resident.tables;
  if (kv.kind == KvView::Kind::contiguous) d.cu_kv = tables.on_device(kv.cu_kv, sequences);
  if (kv.kind == KvView::Kind::paged)
    d.page_table = tables.on_device(kv.page_table, sequences * size_t(kv.page_table_stride));
  if (kv.kind == KvView::Kind::ring) d.slot = tables.on_device(kv.slot, sequences);
  d.page_table_stride = kv.page_table_stride;
  d.page_size = kv.page_size;
  d.ring_len = kv.ring_len;
  return d;
}
static_assert(int(KvView::Kind::contiguous) == HYSPARSE_KV_CONTIGUOUS &&
              int(KvView::Kind::paged) == HYSPARSE_KV_PAGED && int(KvView::Kind::ring) == HYSPARSE_KV_RING);

// Everything that the arguments have of what the plain kernels know.
template <class Args>
hysparse_cuda_plain_attention_params plain_params(Resident& resident, const Args& a) {
  hysparse_cuda_plain_attention_params p{};
  p.batch = rows_of(resident, a.batch);
  p.kv = on_device(resident, a.kv, a.batch);
  p.q = View(a.q).value();
  p.scale = a.scale;
  p.o = View(a.o).value();
  p.lse = View(a.lse).value();
  if constexpr (requires { a.block_scores; }) {
    p.block = a.score_block;
    p.block_scores = View(a.block_scores).value();
  }
  if constexpr (requires { a.selection; }) {
    p.idx = View(a.selection.idx).value();
    p.block = a.selection.block;
  }
  if constexpr (requires { a.window; }) p.window = a.window;
  if constexpr (requires { a.sinks; }) p.sinks = View(a.sinks).value();
  if constexpr (requires { a.dq; }) {
    p.d_o = View(a.d_o).value();
    p.dq = View(a.dq).value();
    p.dk = View(a.dk).value();
    p.dv = View(a.dv).value();
  }
  if constexpr (requires { a.dsinks; }) p.dsinks = View(a.dsinks).value();
  return p;
}
template <class Args>
void run_plain(Resident& resident, const Args& a, const char* what) {
  const CudaLibrary& cuda = cuda_library();
  const hysparse_cuda_plain_attention_params p = plain_params(resident, a);
  if constexpr (requires { a.dq; })
    cuda.check(cuda.plain_attention_backward(&p, cuda_stream()), what);
  else
    cuda.check(cuda.plain_attention(&p, cuda_stream()), what);
}

// Checks, then the fast kernel if it takes the call, else the plain one.
template <class Args>
void run(Resident& resident, Runtime& rt, const Args& a, bool (*fast)(Resident&, Runtime&, const Args&),
         const char* what) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  if (!fast(resident, rt, a)) run_plain(resident, a, what);
}

bool any_fast_attention(Resident& resident, Runtime& rt, const AttentionForward& a) {
  return fast_decode(resident, rt, a, nullptr) || fast_attention(resident, rt, a);
}

}  // namespace

void attention(Resident& resident, Runtime& rt, const AttentionForward& a) {
  run(resident, rt, a, any_fast_attention, "attention");
}
void attention_backward(Resident& resident, Runtime& rt, const AttentionBackward& a) {
  run(resident, rt, a, fast_attention_backward, "attention backward");
}
void sparse_attention(Resident& resident, Runtime& rt, const SparseAttentionForward& a) {
  run(resident, rt, a, fast_sparse_attention, "sparse attention");
}
void sparse_attention_backward(Resident& resident, Runtime& rt, const SparseAttentionBackward& a) {
  run(resident, rt, a, fast_sparse_attention_backward, "sparse attention backward");
}
void window_attention(Resident& resident, Runtime& rt, const WindowAttentionForward& a) {
  run(resident, rt, a, fast_window_attention, "window attention");
}
void window_attention_backward(Resident& resident, Runtime& rt, const WindowAttentionBackward& a) {
  run(resident, rt, a, fast_window_attention_backward, "window attention backward");
}

void select_blocks(Resident& resident, Runtime& rt, const SelectBlocks& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  const hysparse_cuda_rows_of_batch batch = rows_of(resident, a.batch);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.select_blocks(&batch, View(a.block_scores), a.block, a.force_first, a.force_diagonal,
                                View(a.idx), cuda_stream()),
             "select_blocks");
}

void random_scores(Resident& resident, Runtime& rt, const RandomScores& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  const hysparse_cuda_rows_of_batch batch = rows_of(resident, a.batch);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.random_scores(&batch, a.seed, a.batch.step, resident.tables.on_device(a.batch.row), a.layer,
                                a.block, View(a.block_scores), cuda_stream()),
             "random_scores");
}

}  // namespace hysparse::cuda_calls
