#include "kernels/cuda_ops/kv_8_bits.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>

#include "kernels/checks.h"
#include "kernels/cuda_ops/call.h"
#include "kernels/cuda_ops/fast_attention.h"
#include "kernels/cuda_ops/fast_kv.h"

namespace hysparse::cuda_calls {
namespace {

int32_t code_of(DType t) {
  return t == DType::i8 ? HYSPARSE_CODE_INT8 : HYSPARSE_CODE_FP8;
}

int64_t row_bytes(const KvView& kv, DType t) {
  return kv.heads() * (kv.head_dim() + kv.v_head_dim()) * static_cast<int64_t>(size_of(t));
}

hysparse_cuda_kv_8_bits rows_in_8_bits(const TensorView& k, const TensorView& v, const int64_t* rows,
                                       const TensorView& k_codes, const TensorView& v_codes,
                                       const TensorView& scales) {
  hysparse_cuda_kv_8_bits p{};
  p.n = k.dim(0);
  p.heads = static_cast<int32_t>(k.dim(1));
  p.head_dim = static_cast<int32_t>(k.dim(2));
  p.v_head_dim = static_cast<int32_t>(v.dim(2));
  p.dtype = static_cast<int32_t>(k.dtype);
  p.code = code_of(k_codes.dtype);
  p.k = k.data;
  p.v = v.data;
  p.k_row = k.stride[0];
  p.k_head = k.stride[1];
  p.v_row = v.stride[0];
  p.v_head = v.stride[1];
  p.rows = rows;
  p.k_codes = k_codes.data;
  p.v_codes = v_codes.data;
  p.scales = scales.data;
  return p;
}

// Sequences [first, last) of a batch, with the batch that they are by themselves.
struct Group {
  int64_t first, last;
  bool decode;  // one new token each
};

// Runs of sequences with one new token (where `decode` asks for them), and runs of others of bounded length.
std::vector<Group> groups_of(const RaggedBatch& batch, int64_t begin, int64_t end, int64_t bytes_a_row,
                             bool decode) {
  std::vector<Group> groups;
  int64_t bytes = 0;
  for (int64_t s = begin; s < end; ++s) {
    const bool one = decode && batch.q_len(s) == 1;
    const int64_t here = one || batch.q_len(s) == 0 ? 0 : batch.kv_len(s) * bytes_a_row;
    if (groups.empty() || groups.back().decode != one || (bytes > 0 && bytes + here > kWidenedBytes)) {
      groups.push_back({s, s, one});
      bytes = 0;
    }
    groups.back().last = s + 1;
    bytes += here;
  }
  return groups;
}

// What a call is for a group: slices of its tensors. The whole batch stays what it is, so that tables of a
// repeated step are found.
class Part {
 public:
  Part(const RaggedBatch& all, const Group& g)
      : first_(g.first), begin_(all.cu_q[size_t(g.first)]), end_(all.cu_q[size_t(g.last)]), batch_(&all) {
    whole_ = g.first == 0 && g.last == all.sequences();
    if (whole_) return;
    for (int64_t s = g.first; s < g.last; ++s)
      own_.add_sequence(all.q_len(s), all.past_len[size_t(s)], all.row.empty() ? 0 : all.row[size_t(s)]);
    own_.step = all.step;
    own_.kv_bound = all.kv_bound;
    batch_ = &own_;
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  const RaggedBatch& batch() const { return *batch_; }
  bool empty() const { return begin_ == end_; }
  TensorView rows(const TensorView& t) const { return whole_ || !t ? t : t.rows(begin_, end_); }
  KvView keys(KvView kv) const {
    if (whole_) return kv;
    if (kv.kind == KvView::Kind::contiguous) kv.cu_kv += first_;
    if (kv.kind == KvView::Kind::paged) kv.page_table += first_ * kv.page_table_stride;
    if (kv.kind == KvView::Kind::ring) {
      kv.slot += first_;
      kv.fresh_k = rows(kv.fresh_k);
      kv.fresh_v = rows(kv.fresh_v);
    }
    return kv;
  }
  Selection selection(Selection s) const {
    s.idx = rows(s.idx);
    return s;
  }
  AttentionForward of(const AttentionForward& a) const {
    return {.batch = batch(),
            .q = rows(a.q),
            .kv = keys(a.kv),
            .scale = a.scale,
            .o = rows(a.o),
            .lse = rows(a.lse),
            .score_block = a.score_block,
            .block_scores = rows(a.block_scores)};
  }
  SparseAttentionForward of(const SparseAttentionForward& a) const {
    return {.batch = batch(),
            .q = rows(a.q),
            .kv = keys(a.kv),
            .selection = selection(a.selection),
            .scale = a.scale,
            .sinks = a.sinks,
            .o = rows(a.o),
            .lse = rows(a.lse)};
  }
  WindowAttentionForward of(const WindowAttentionForward& a) const {
    return {.batch = batch(),
            .q = rows(a.q),
            .kv = keys(a.kv),
            .window = a.window,
            .scale = a.scale,
            .sinks = a.sinks,
            .o = rows(a.o),
            .lse = rows(a.lse)};
  }

 private:
  int64_t first_, begin_, end_;
  bool whole_;
  RaggedBatch own_;
  const RaggedBatch* batch_;
};

// K and V of a batch in T, contiguous; the buffer is the caller's until it lets go of this.
class Widened {
 public:
  Widened(Resident& resident, const RaggedBatch& batch, const KvView& kv, DType t)
      : lock_(resident.widened.mutex) {
    std::vector<int64_t> rows;
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      cu_kv_.push_back(std::ssize(rows));
      const int32_t* pages = kv.page_table + s * kv.page_table_stride;
      for (int64_t p = 0; p < (batch.q_len(s) == 0 ? 0 : batch.kv_len(s)); ++p)
        rows.push_back(pages[p / kv.page_size] * kv.page_size + p % kv.page_size);
    }
    // check_args wants a sequence without queries to have its keys, too; nobody reads them.
    int64_t n = std::ssize(rows);
    for (int64_t s = 0; s < batch.sequences(); ++s) n = std::max(n, cu_kv_[size_t(s)] + batch.kv_len(s));
    auto& buffer = resident.widened;
    const auto element = static_cast<int64_t>(size_of(t));
    const int64_t k_bytes = (n * kv.heads() * kv.head_dim() * element + 255) / 256 * 256,
                  bytes = k_bytes + n * kv.heads() * kv.v_head_dim() * element;
    if (buffer.bytes < static_cast<size_t>(bytes)) {
      buffer.version.reset();
      buffer.memory.reset();  // before its successor is there; what read it has been issued, and free waits
      buffer.bytes = std::bit_ceil(static_cast<size_t>(bytes));
      void* p = nullptr;
      const CudaLibrary& cuda = cuda_library();
      cuda.check(cuda.allocate(buffer.bytes, resident.managed, &p), "GPU memory");
      buffer.memory = {p, [](void* block) { cuda_library().free(block); }};
    }
    auto* base = static_cast<std::byte*>(buffer.memory.get());
    view_.kind = KvView::Kind::contiguous;
    view_.k = TensorView(base, t, {n, kv.heads(), kv.head_dim()});
    view_.v = TensorView(base + k_bytes, t, {n, kv.heads(), kv.v_head_dim()});
    view_.cu_kv = cu_kv_.data();
    const bool same = kv.version && buffer.version == kv.version && buffer.t == t && buffer.rows == rows;
    if (same || rows.empty()) return;
    const TensorView k = view_.k.rows(0, std::ssize(rows)), v = view_.v.rows(0, std::ssize(rows));
    const hysparse_cuda_kv_8_bits p =
        rows_in_8_bits(k, v, resident.tables.on_device(rows), kv.k, kv.v, kv.scales);
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.widen_kv(&p, cuda_stream()), "widen_kv");
    buffer.version = kv.version;
    buffer.t = t;
    buffer.rows = std::move(rows);
  }
  const KvView& view() const { return view_; }

 private:
  std::unique_lock<std::mutex> lock_;
  std::vector<int64_t> cu_kv_;
  KvView view_;
};

// decode(part) takes a run of single tokens or returns false; wide(part, keys) takes any sequences.
void for_groups(Resident& resident, const RaggedBatch& batch, const KvView& kv, DType t,
                const std::function<bool(const Part&)>& decode,
                const std::function<void(const Part&, const KvView&)>& wide) {
  HYSPARSE_CHECK(kv.k.contiguous() && kv.v.contiguous() && kv.scales.contiguous(),
                 "pages in 8 bits with gaps: {}", kv.k.describe());
  const int64_t bytes = row_bytes(kv, t);
  const auto widen = [&](const Group& g) {
    const Part part(batch, g);
    if (part.empty()) return;
    const Widened widened(resident, part.batch(), part.keys(kv), t);
    wide(part, widened.view());
  };
  for (const Group& g : groups_of(batch, 0, batch.sequences(), bytes, bool(decode))) {
    if (!g.decode) {
      widen(g);
      continue;
    }
    if (decode(Part(batch, g))) continue;
    for (const Group& w : groups_of(batch, g.first, g.last, bytes, false)) widen(w);
  }
}

}  // namespace

int64_t widened_bytes(int64_t row_bytes, int64_t context) {
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max(kWidenedBytes, row_bytes * context + 256))));
}

void quantise_kv(Resident& resident, const QuantiseKv& a) {
  check_args(a);
  const hysparse_cuda_kv_8_bits p =
      rows_in_8_bits(a.k, a.v, resident.tables.on_device(a.rows, static_cast<size_t>(a.k.dim(0))), a.k_codes,
                     a.v_codes, a.scales);
  const CudaLibrary& cuda = cuda_library();
  cuda.check(cuda.quantise_kv(&p, cuda_stream()), "quantise_kv");
}

void attention_8_bits(Resident& resident, Runtime& rt, const AttentionForward& a,
                      const std::function<void(const AttentionForward&)>& wide) {
  for_groups(
      resident, a.batch, a.kv, a.q.dtype,
      [&](const Part& part) { return fast_decode(resident, rt, part.of(a), nullptr); },
      [&](const Part& part, const KvView& kv) {
        AttentionForward sub = part.of(a);
        sub.kv = kv;
        wide(sub);
      });
}

void attention_select_8_bits(Resident& resident, Runtime& rt, const AttentionSelect& a,
                             const std::function<void(const AttentionSelect&)>& wide) {
  const auto of = [&](const Part& part, const AttentionForward& attention) {
    return AttentionSelect{.attention = attention,
                           .block = a.block,
                           .force_first = a.force_first,
                           .force_diagonal = a.force_diagonal,
                           .random = a.random,
                           .random_seed = a.random_seed,
                           .layer = a.layer,
                           .idx = part.rows(a.idx)};
  };
  for_groups(
      resident, a.attention.batch, a.attention.kv, a.attention.q.dtype,
      [&](const Part& part) {
        const AttentionForward attention = part.of(a.attention);
        const AttentionSelect sub = of(part, attention);
        return fast_decode(resident, rt, attention, &sub);
      },
      [&](const Part& part, const KvView& kv) {
        AttentionForward attention = part.of(a.attention);
        attention.kv = kv;
        wide(of(part, attention));
      });
}

void sparse_attention_8_bits(Resident& resident, Runtime&, const SparseAttentionForward& a,
                             const std::function<void(const SparseAttentionForward&)>& wide) {
  for_groups(resident, a.batch, a.kv, a.q.dtype, {}, [&](const Part& part, const KvView& kv) {
    SparseAttentionForward sub = part.of(a);
    sub.kv = kv;
    wide(sub);
  });
}

void window_attention_8_bits(Resident& resident, Runtime&, const WindowAttentionForward& a,
                             const std::function<void(const WindowAttentionForward&)>& wide) {
  for_groups(resident, a.batch, a.kv, a.q.dtype, {}, [&](const Part& part, const KvView& kv) {
    WindowAttentionForward sub = part.of(a);
    sub.kv = kv;
    wide(sub);
  });
}

void sparse_window_gated_8_bits(Resident& resident, Runtime& rt, const SparseWindowGated& a,
                                const std::function<void(const SparseWindowGated&)>& wide) {
  const auto run = [&](const Part& part, const KvView* kv, const auto& fn) {
    SparseAttentionForward sparse = part.of(a.sparse);
    if (kv) sparse.kv = *kv;
    std::optional<WindowAttentionForward> window;
    if (a.window) {
      window.emplace(part.of(*a.window));
      if (kv && a.window->kv.in_8_bits()) window->kv = *kv;  // the shared keys
    }
    return fn(SparseWindowGated{.sparse = sparse,
                                .window = window ? &*window : nullptr,
                                .gate_sparse = part.rows(a.gate_sparse),
                                .gate_window = part.rows(a.gate_window),
                                .out = part.rows(a.out)});
  };
  HYSPARSE_CHECK(!a.window || !a.window->kv.in_8_bits() || a.window->kv.k.data == a.sparse.kv.k.data,
                 "a window over other pages in 8 bits than its layer's");
  for_groups(
      resident, a.sparse.batch, a.sparse.kv, a.sparse.q.dtype,
      [&](const Part& part) {
        return run(part, nullptr,
                   [&](const SparseWindowGated& sub) { return fast_decode(resident, rt, sub); });
      },
      [&](const Part& part, const KvView& kv) {
        run(part, &kv, [&](const SparseWindowGated& sub) {
          wide(sub);
          return true;
        });
      });
}

}  // namespace hysparse::cuda_calls
