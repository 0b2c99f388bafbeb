// Attention: the fast kernels where they take the shape, the plain ones elsewhere.
#include "kernels/cuda_ops/attention.h"

#include <memory>

#include "kernels/checks.h"
#include "kernels/cuda_ops/call.h"

namespace hysparse::cuda_calls {
namespace {

// A KvView with its tables on the device.
class Kv {
 public:
  Kv(Upload& up, const KvView& kv, const RaggedBatch& batch) : kv_(kv) {
    const auto sequences = static_cast<size_t>(batch.sequences());
    if (kv.kind == KvView::Kind::contiguous) table_ = up.add(kv.cu_kv, sequences);
    if (kv.kind == KvView::Kind::paged)
      table_ = up.add(kv.page_table, sequences * size_t(kv.page_table_stride));
    if (kv.kind == KvView::Kind::ring) table_ = up.add(kv.slot, sequences);
  }
  hysparse_cuda_kv on_device(const Upload& up) const {
    hysparse_cuda_kv d{};
    d.kind = static_cast<int32_t>(kv_.kind);
    d.k = View(kv_.k).value();
    d.v = View(kv_.v).value();
    d.fresh_k = View(kv_.fresh_k).value();
    d.fresh_v = View(kv_.fresh_v).value();
    if (kv_.kind == KvView::Kind::contiguous) d.cu_kv = up.at<int64_t>(table_);
    if (kv_.kind == KvView::Kind::paged) d.page_table = up.at<int32_t>(table_);
    if (kv_.kind == KvView::Kind::ring) d.slot = up.at<int32_t>(table_);
    d.page_table_stride = kv_.page_table_stride;
    d.page_size = kv_.page_size;
    d.ring_len = kv_.ring_len;
    return d;
  }

 private:
  const KvView& kv_;
  size_t table_ = 0;
};
static_assert(int(KvView::Kind::contiguous) == HYSPARSE_KV_CONTIGUOUS &&
              int(KvView::Kind::paged) == HYSPARSE_KV_PAGED && int(KvView::Kind::ring) == HYSPARSE_KV_RING);

template <class Args>
hysparse_cuda_plain_attention_params plain_params(Runtime& rt, const Args& a) {
  Upload up;
  const BatchTables batch(up, a.batch);
  const Kv kv(up, a.kv, a.batch);
  up.send(rt);
  hysparse_cuda_plain_attention_params p{};
  p.batch = batch.on_device(up);
  p.kv = kv.on_device(up);
  p.q = View(a.q).value();
  p.scale = a.scale;
  p.o = View(a.o).value();
  p.lse = View(a.lse).value();
  return p;
}
template <class Args>
void add_gradients(hysparse_cuda_plain_attention_params& p, const Args& a) {
  p.d_o = View(a.d_o).value();
  p.dq = View(a.dq).value();
  p.dk = View(a.dk).value();
  p.dv = View(a.dv).value();
}
template <class Args>
void add_selection(hysparse_cuda_plain_attention_params& p, const Args& a) {
  p.idx = View(a.selection.idx).value();
  p.block = a.selection.block;
  p.sinks = View(a.sinks).value();
}

void run_plain(const hysparse_cuda_plain_attention_params& p) {
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.plain_attention(&p, nullptr), "attention");
}
void run_plain_backward(const hysparse_cuda_plain_attention_params& p) {
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.plain_attention_backward(&p, nullptr), "attention backward");
}

// ---- the fast kernels: bf16, contiguous K and V, rows of 16-byte multiples
struct DestroyBatch {
  void operator()(hysparse_cuda_batch* b) const { cuda_library().batch_destroy(b); }
};
using FastBatch = std::unique_ptr<hysparse_cuda_batch, DestroyBatch>;
struct DestroySelection {
  void operator()(hysparse_cuda_selection* s) const { cuda_library().selection_destroy(s); }
};
using FastSelection = std::unique_ptr<hysparse_cuda_selection, DestroySelection>;

hysparse_cuda_tensor fast_tensor(const TensorView& t) {
  return {t.data, t.stride[0], t.stride[1]};
}
bool aligned(const TensorView& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % 8 == 0 && t.stride[1] % 8 == 0;
}
template <class Args>
bool fast_shape(const Args& a) {
  return a.q.dtype == DType::bf16 && a.kv.kind == KvView::Kind::contiguous && a.lse.contiguous() &&
         aligned(a.q) && aligned(a.kv.k) && aligned(a.kv.v) && aligned(a.o) && a.batch.tokens() > 0;
}

// Null where some sequence has no rows: those batches take the plain path.
FastBatch fast_batch(const RaggedBatch& batch, const KvView& kv) {
  std::vector<int32_t> cu_q, past, cu_kv;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    if (batch.q_len(s) == 0) return nullptr;
    cu_q.push_back(static_cast<int32_t>(batch.cu_q[size_t(s)]));
    past.push_back(static_cast<int32_t>(batch.past_len[size_t(s)]));
    cu_kv.push_back(static_cast<int32_t>(kv.cu_kv[s]));
  }
  cu_q.push_back(static_cast<int32_t>(batch.tokens()));
  hysparse_cuda_batch* made = nullptr;
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.batch_create(static_cast<int32_t>(batch.sequences()), cu_q.data(), past.data(),
                               cu_kv.data(), nullptr, &made),
             "GPU batch");
  return FastBatch(made);
}

// False where no fast kernel takes it.
bool run_fast(Runtime& rt, const AttentionForward& a) {
  const bool scored = static_cast<bool>(a.block_scores);
  if (!fast_shape(a) || (scored && a.block_scores.stride[1] * a.kv.heads() != a.block_scores.stride[0]))
    return false;
  const FastBatch batch = fast_batch(a.batch, a.kv);
  if (!batch) return false;
  const CudaLibrary& cuda = cuda_library();
  hysparse_cuda_attention_params p{};
  p.batch = batch.get();
  p.q_heads = static_cast<int32_t>(a.q.dim(1));
  p.kv_heads = static_cast<int32_t>(a.kv.heads());
  p.head_dim = static_cast<int32_t>(a.q.dim(2));
  p.v_head_dim = static_cast<int32_t>(a.kv.v_head_dim());
  p.q = fast_tensor(a.q);
  p.k = fast_tensor(a.kv.k);
  p.v = fast_tensor(a.kv.v);
  p.kv_rows = a.kv.k.dim(0);
  p.scale = static_cast<float>(a.scale);
  p.o = fast_tensor(a.o);
  p.lse = a.lse.as<float>();
  p.block = static_cast<int32_t>(a.score_block);
  if (scored) {
    p.block_scores = a.block_scores.as<float>();
    p.score_stride = a.block_scores.stride[1];
  }
  p.workspace_bytes = cuda.attention_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  const int code = cuda.attention(&p, nullptr);
  if (code == HYSPARSE_UNSUPPORTED) return false;
  cuda.check(code, "attention");
  cuda.check(cuda.synchronize(nullptr), "attention");  // the batch's tables live until the kernels are done
  return true;
}

bool run_fast(Runtime& rt, const SparseAttentionForward& a) {
  if (!fast_shape(a) || !a.selection.idx.contiguous() || a.selection.entries() > 64 ||
      a.selection.entries() < 1)
    return false;
  const int64_t block = a.selection.block;
  if (block != 16 && block != 32 && block != 64 && block != 128) return false;
  const FastBatch batch = fast_batch(a.batch, a.kv);
  if (!batch) return false;
  const CudaLibrary& cuda = cuda_library();
  hysparse_cuda_selection_params s{};
  s.batch = batch.get();
  s.idx = a.selection.idx.as<int32_t>();
  s.q_heads = static_cast<int32_t>(a.q.dim(1));
  s.kv_heads = static_cast<int32_t>(a.kv.heads());
  s.block = static_cast<int32_t>(block);
  s.entries = static_cast<int32_t>(a.selection.entries());
  s.workspace_bytes = cuda.selection_workspace(&s);
  if (s.workspace_bytes == 0) return false;
  s.workspace = workspace(rt, s.workspace_bytes);
  hysparse_cuda_selection* made = nullptr;
  int code = cuda.selection_create(&s, nullptr, &made);
  if (code == HYSPARSE_UNSUPPORTED) return false;
  cuda.check(code, "sparse attention");
  const FastSelection selection(made);
  hysparse_cuda_sparse_params p{};
  p.selection = selection.get();
  p.q_heads = s.q_heads;
  p.kv_heads = s.kv_heads;
  p.head_dim = static_cast<int32_t>(a.q.dim(2));
  p.v_head_dim = static_cast<int32_t>(a.kv.v_head_dim());
  p.q = fast_tensor(a.q);
  p.k = fast_tensor(a.kv.k);
  p.v = fast_tensor(a.kv.v);
  p.kv_rows = a.kv.k.dim(0);
  p.scale = static_cast<float>(a.scale);
  p.sinks = a.sinks ? a.sinks.as<float>() : nullptr;
  p.o = fast_tensor(a.o);
  p.lse = a.lse.as<float>();
  p.workspace_bytes = cuda.sparse_workspace(&p);
  p.workspace = workspace(rt, p.workspace_bytes);
  code = cuda.sparse_attention(&p, nullptr);
  if (code == HYSPARSE_UNSUPPORTED) return false;
  cuda.check(code, "sparse attention");
  cuda.check(cuda.synchronize(nullptr), "sparse attention");
  return true;
}

}  // namespace

void attention(Runtime& rt, const AttentionForward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  if (run_fast(rt, a)) return;
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  p.block = a.score_block;
  p.block_scores = View(a.block_scores).value();
  run_plain(p);
}

void attention_backward(Runtime& rt, const AttentionBackward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  add_gradients(p, a);
  run_plain_backward(p);
}

void sparse_attention(Runtime& rt, const SparseAttentionForward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  if (run_fast(rt, a)) return;
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  add_selection(p, a);
  run_plain(p);
}

void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  add_selection(p, a);
  add_gradients(p, a);
  p.dsinks = View(a.dsinks).value();
  run_plain_backward(p);
}

void window_attention(Runtime& rt, const WindowAttentionForward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  p.window = a.window;
  p.sinks = View(a.sinks).value();
  run_plain(p);
}

void window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  hysparse_cuda_plain_attention_params p = plain_params(rt, a);
  p.window = a.window;
  p.sinks = View(a.sinks).value();
  add_gradients(p, a);
  p.dsinks = View(a.dsinks).value();
  run_plain_backward(p);
}

void select_blocks(Runtime& rt, const SelectBlocks& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  Upload up;
  const BatchTables tables(up, a.batch);
  up.send(rt);
  const hysparse_cuda_rows_of_batch batch = tables.on_device(up);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.select_blocks(&batch, View(a.block_scores), a.block, a.force_first, a.force_diagonal,
                                View(a.idx), nullptr),
             "select_blocks");
}

void random_scores(Runtime& rt, const RandomScores& a) {
  check_args(a);
  const ArenaScope scope(scratch_of(rt));
  Upload up;
  const BatchTables tables(up, a.batch);
  const size_t row = up.add(a.batch.row);
  up.send(rt);
  const hysparse_cuda_rows_of_batch batch = tables.on_device(up);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.random_scores(&batch, a.seed, a.batch.step, up.at<int64_t>(row), a.layer, a.block,
                                View(a.block_scores), nullptr),
             "random_scores");
}

}  // namespace hysparse::cuda_calls
