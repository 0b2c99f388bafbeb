// Default composites: the chain of primitives that defines each of them. A backend may override one.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/ops.h"

namespace hysparse {
namespace {

// Rows of `row_bytes` that fit the budget: a multiple of 64 where that many fit, at least one.
int64_t chunk_rows(int64_t budget, int64_t rows, int64_t row_bytes) {
  int64_t fit = std::max<int64_t>(1, budget / std::max<int64_t>(1, row_bytes));
  if (fit >= 64) fit -= fit % 64;
  return std::min(fit, std::max<int64_t>(1, rows));
}

// Query rows [begin, end) of a batch, as a batch of its own: the first piece of a cut sequence has a longer
// past. first_sequence is the sequence of `batch` that sequence 0 of the part comes from; the others follow.
struct BatchPart {
  RaggedBatch batch;
  int64_t first_sequence = 0;
};

BatchPart part_of(const RaggedBatch& batch, int64_t begin, int64_t end) {
  BatchPart part;
  part.batch.step = batch.step;
  bool found = false;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t first = batch.cu_q[size_t(s)];
    const int64_t from = std::max(begin, first), to = std::min(end, batch.cu_q[size_t(s) + 1]);
    if (from >= to && !found) continue;  // an empty sequence in the middle keeps its place
    if (from >= end) break;
    if (!found) part.first_sequence = s;
    found = true;
    part.batch.add_sequence(std::max<int64_t>(0, to - from), batch.past_len[size_t(s)] + (from - first),
                            batch.row.empty() ? 0 : batch.row[size_t(s)]);
  }
  return part;
}

// The keys of the part's sequences. Not for rings: their fresh rows follow the whole batch's cu_q.
KvView part_of(KvView kv, int64_t first_sequence) {
  if (kv.kind == KvView::Kind::contiguous) kv.cu_kv += first_sequence;
  if (kv.kind == KvView::Kind::paged) kv.page_table += first_sequence * kv.page_table_stride;
  return kv;
}

}  // namespace

void Ops::attention_select(Runtime& rt, const AttentionSelect& a) const {
  const AttentionForward& f = a.attention;
  const DType acc = accumulation_dtype(f.q.dtype);
  const int64_t n = f.batch.tokens(), heads = f.kv.heads();
  HYSPARSE_CHECK(a.block >= 1, "attention_select: block {}", a.block);
  if (n == 0) return;
  // Scores live in scratch, unless the caller wants to see them and they are what is ranked.
  const bool scratch_scores = !f.block_scores || a.random;
  const int64_t all_blocks = (f.batch.max_kv_len() + a.block - 1) / a.block;
  const bool whole = f.kv.kind == KvView::Kind::ring || !scratch_scores;
  const int64_t step =
      whole ? n : chunk_rows(chunk_bytes(), n, heads * all_blocks * static_cast<int64_t>(size_of(acc)));
  for (int64_t begin = 0; begin < n; begin += step) {
    const int64_t end = std::min(n, begin + step);
    const BatchPart part = step == n ? BatchPart{} : part_of(f.batch, begin, end);
    const RaggedBatch& batch = step == n ? f.batch : part.batch;
    ArenaScope scope(rt.scratch);
    TensorView scores;
    if (scratch_scores)
      scores = rt.scratch.alloc(acc, {end - begin, heads, (batch.max_kv_len() + a.block - 1) / a.block});
    TensorView oracle = a.random ? TensorView{} : scores;  // what attention itself fills
    if (f.block_scores) oracle = f.block_scores.rows(begin, end);
    attention(rt, {.batch = batch,
                   .q = f.q.rows(begin, end),
                   .kv = step == n ? f.kv : part_of(f.kv, part.first_sequence),
                   .scale = f.scale,
                   .o = f.o.rows(begin, end),
                   .lse = f.lse.rows(begin, end),
                   .score_block = a.block,
                   .block_scores = oracle});
    if (a.random) random_scores(rt, {batch, a.random_seed, a.layer, a.block, scores});
    select_blocks(rt, {batch, a.random ? scores : oracle, a.block, a.force_first, a.force_diagonal,
                       a.idx.rows(begin, end)});
  }
}

void Ops::sparse_window_gated(Runtime& rt, const SparseWindowGated& a) const {
  sparse_attention(rt, a.sparse);
  if (a.window) window_attention(rt, *a.window);
  gated_sum(rt, {.a = a.sparse.o,
                 .gate_a = a.gate_sparse,
                 .b = a.window ? a.window->o : TensorView{},
                 .gate_b = a.window ? a.gate_window : TensorView{},
                 .out = a.out});
}

void Ops::add_rmsnorm(Runtime& rt, const AddRmsNorm& a) const {
  add(rt, {a.x, a.delta, a.x});
  rmsnorm(rt, {a.x, a.weight, a.eps, a.y, a.rstd});
}

void Ops::scatter_rows(Runtime& rt, const ScatterRows& a) const {
  check_args(a);
  for (const auto& [src, dst] : a.pairs) {
    const int64_t n = src.dim(0);
    const size_t element = size_of(src.dtype);
    const size_t row = n > 0 ? static_cast<size_t>(src.numel() / n) * element : 0;
    const bool dense = src.stride[0] * static_cast<int64_t>(element) == static_cast<int64_t>(row) &&
                       dst.stride[0] == src.stride[0];
    for (int64_t i = 0, end; i < n; i = end) {
      end = i + 1;
      if (a.rows[i] < 0) continue;
      while (dense && end < n && a.rows[end] == a.rows[i] + (end - i)) ++end;
      rt.memory.copy(
          static_cast<std::byte*>(dst.data) + static_cast<size_t>(a.rows[i] * dst.stride[0]) * element,
          static_cast<const std::byte*>(src.data) + static_cast<size_t>(i * src.stride[0]) * element,
          static_cast<size_t>(end - i) * row);
    }
  }
}

void Ops::rope_group(Runtime& rt, std::span<const Rope> group) const {
  for (const Rope& a : group) rope(rt, a);
}

void Ops::linear_group(Runtime& rt, std::span<const LinearForward> group,
                       std::span<const Weight* const>) const {
  for (const LinearForward& a : group) linear(rt, a);
}

void Ops::head_loss(Runtime& rt, const HeadLoss& a) const {
  const DType t = check_args(a), acc = accumulation_dtype(t);
  const int64_t n = a.x.dim(0), vocab = a.weight.value.dim(0);
  const bool gradients = a.grad_scale != 0 && (a.dx || a.weight.grad);
  const int64_t step = std::max<int64_t>(
      std::min<int64_t>(n, 64), chunk_rows(chunk_bytes(), n, vocab * static_cast<int64_t>(size_of(acc))));
  for (int64_t begin = 0; begin < n; begin += step) {
    const int64_t end = std::min(n, begin + step);
    ArenaScope scope(rt.scratch);
    const TensorView x = a.x.rows(begin, end);
    const TensorView logits = rt.scratch.alloc(acc, {end - begin, vocab});
    TensorView dlogits;  // in T: what the products below read
    if (gradients) dlogits = t == acc ? logits : rt.scratch.alloc(t, {end - begin, vocab});
    linear(rt, {x, a.weight, nullptr, logits, false});
    cross_entropy(rt, {logits, a.labels.rows(begin, end), a.grad_scale, a.loss.rows(begin, end), dlogits});
    if (gradients)
      linear_backward(rt, {.x = x,
                           .weight = a.weight,
                           .bias = nullptr,
                           .dy = dlogits,
                           .dx = a.dx ? a.dx.rows(begin, end) : TensorView{},
                           .accumulate = false});
  }
}

}  // namespace hysparse
