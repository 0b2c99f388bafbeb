#include "kernels/cuda_ops/fast_kv.h"

#include <algorithm>

#include "kernels/cuda_ops/call.h"

namespace hysparse::cuda_calls {
namespace {

// [a, b, heads, dim] with rows that follow each other, as [a * b, heads, dim]; else empty.
TensorView as_rows(const TensorView& t) {
  if (t.rank == 3) return t;
  if (t.stride[0] != t.shape[1] * t.stride[1]) return {};
  TensorView rows = t;
  rows.rank = 3;
  rows.shape = {t.shape[0] * t.shape[1], t.shape[2], t.shape[3], 0};
  rows.stride = {t.stride[1], t.stride[2], t.stride[3], 0};
  return rows;
}

// The rows of src named by `rows`, to `dst` (contiguous). Heads of a row must lie side by side.
void gather(Resident& resident, const TensorView& src, const std::vector<int64_t>& rows,
            const TensorView& dst) {
  const int64_t width = dst.dim(1) * dst.dim(2);
  TensorView flat_src = src;
  flat_src.rank = 2;
  flat_src.shape = {src.shape[0], width, 0, 0};
  flat_src.stride = {src.stride[0], 1, 0, 0};
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.gather_rows(View(flat_src), resident.tables.on_device(rows),
                              View(dst.reshape({dst.dim(0), width})), cuda_stream()),
             "gather_rows");
}
bool dense_heads(const TensorView& t) {
  return t.dim(t.rank - 2) == 1 || t.stride[size_t(t.rank) - 2] == t.dim(t.rank - 1);
}

std::optional<FastKv> with_batch(Resident& resident, const RaggedBatch& batch, const int64_t* cu_kv,
                                 const TensorView& k, const TensorView& v) {
  if (!aligned_rows(k) || !aligned_rows(v)) return std::nullopt;
  FastKv out{resident.batches.get(batch, cu_kv), k, v};
  if (!out.batch) return std::nullopt;
  return out;
}

}  // namespace

std::optional<FastKv> fast_kv(Resident& resident, Runtime& rt, const RaggedBatch& batch, const KvView& kv) {
  if (batch.tokens() == 0 || kv.k.dtype != DType::bf16 || kv.kind == KvView::Kind::ring) return std::nullopt;
  if (kv.kind == KvView::Kind::contiguous) return with_batch(resident, batch, kv.cu_kv, kv.k, kv.v);

  TensorView k = as_rows(kv.k), v = as_rows(kv.v);
  if (!k || !v) return std::nullopt;
  const int64_t sequences = batch.sequences();
  std::vector<int64_t> cu_kv(static_cast<size_t>(sequences));
  bool in_order = true;
  for (int64_t s = 0; s < sequences && in_order; ++s) {
    const int32_t* pages = kv.page_table + s * kv.page_table_stride;
    const int64_t count = (batch.kv_len(s) + kv.page_size - 1) / kv.page_size;
    cu_kv[size_t(s)] = int64_t(pages[0]) * kv.page_size;
    for (int64_t i = 1; i < count && in_order; ++i) in_order = pages[i] == pages[0] + i;
  }
  if (in_order) return with_batch(resident, batch, cu_kv.data(), k, v);
  if (!dense_heads(k) || !dense_heads(v)) return std::nullopt;
  std::vector<int64_t> rows;
  for (int64_t s = 0; s < sequences; ++s) {
    cu_kv[size_t(s)] = std::ssize(rows);
    for (int64_t p = 0; p < batch.kv_len(s); ++p)
      rows.push_back(kv.page_table[s * kv.page_table_stride + p / kv.page_size] * kv.page_size +
                     p % kv.page_size);
  }
  const auto n = std::ssize(rows);
  const TensorView k_rows = rt.scratch.alloc(k.dtype, {n, k.dim(1), k.dim(2)}),
                   v_rows = rt.scratch.alloc(v.dtype, {n, v.dim(1), v.dim(2)});
  gather(resident, k, rows, k_rows);
  gather(resident, v, rows, v_rows);
  return with_batch(resident, batch, cu_kv.data(), k_rows, v_rows);
}

std::optional<FastKv> fast_window_kv(Resident& resident, Runtime& rt, const RaggedBatch& batch,
                                     const KvView& kv, int64_t window) {
  if (kv.kind != KvView::Kind::ring) return fast_kv(resident, rt, batch, kv);
  const TensorView ring_k = as_rows(kv.k), ring_v = as_rows(kv.v);
  if (batch.tokens() == 0 || kv.k.dtype != DType::bf16 || !ring_k || !ring_v || !dense_heads(ring_k) ||
      !dense_heads(ring_v) || !dense_heads(kv.fresh_k) || !dense_heads(kv.fresh_v))
    return std::nullopt;
  // Past rows of every sequence, then its fresh ones.
  struct Part {
    int64_t to, count;
  };
  RaggedBatch near;
  std::vector<int64_t> cu_kv, from_ring, from_fresh;
  std::vector<Part> past_parts, fresh_parts;
  int64_t total = 0;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t past = batch.past_len[size_t(s)], kept = std::min(past, window - 1), fresh = batch.q_len(s);
    near.add_sequence(fresh, kept);
    cu_kv.push_back(total);
    past_parts.push_back({total, kept});
    fresh_parts.push_back({total + kept, fresh});
    for (int64_t p = past - kept; p < past; ++p)
      from_ring.push_back(int64_t(kv.slot[s]) * kv.ring_len + p % kv.ring_len);
    for (int64_t i = 0; i < fresh; ++i) from_fresh.push_back(batch.cu_q[size_t(s)] + i);
    total += kept + fresh;
  }
  const auto assemble = [&](const TensorView& ring, const TensorView& fresh) {
    const TensorView out = rt.scratch.alloc(ring.dtype, {total, ring.dim(1), ring.dim(2)});
    const auto part = [&](const TensorView& src, const std::vector<int64_t>& rows,
                          const std::vector<Part>& parts) {
      size_t at = 0;
      for (const Part& p : parts) {
        if (p.count > 0)
          gather(resident, src,
                 {rows.begin() + std::ptrdiff_t(at), rows.begin() + std::ptrdiff_t(at) + p.count},
                 out.rows(p.to, p.to + p.count));
        at += static_cast<size_t>(p.count);
      }
    };
    part(ring, from_ring, past_parts);
    part(fresh, from_fresh, fresh_parts);
    return out;
  };
  const TensorView k = assemble(ring_k, kv.fresh_k), v = assemble(ring_v, kv.fresh_v);
  return with_batch(resident, near, cu_kv.data(), k, v);
}

}  // namespace hysparse::cuda_calls
