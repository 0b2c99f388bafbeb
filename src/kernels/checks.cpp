#include "kernels/checks.h"

#include <initializer_list>
#include <string>

#include "kernels/quantise.h"

namespace hysparse {
namespace {

constexpr int64_t kAny = -1;

std::string dims_text(std::initializer_list<int64_t> dims) {
  std::string s = "[";
  for (int64_t d : dims)
    s += (s.size() > 1 ? ", " : "") + (d == kAny ? std::string("any") : std::to_string(d));
  return s + "]";
}

[[noreturn]] void refuse(const char* op, const char* name, const std::string& expected,
                         const std::string& got) {
  throw failure("internal check", fmt::format("{}: {}: expected {}, got {}", op, name, expected, got));
}

DType compute(const char* op, const char* name, const TensorView& v) {
  if (!v) refuse(op, name, "a tensor", "none");
  if (v.dtype != DType::f64 && v.dtype != DType::f32 && v.dtype != DType::bf16)
    refuse(op, name, "f64, f32 or bf16", v.describe());
  return v.dtype;
}

// Present, of this dtype and shape (kAny matches any extent), innermost dimension dense.
void want(const char* op, const char* name, const TensorView& v, DType dtype,
          std::initializer_list<int64_t> dims) {
  const auto expected = [&] { return fmt::format("{}{}", name_of(dtype), dims_text(dims)); };
  if (!v) refuse(op, name, expected(), "none");
  bool ok = v.dtype == dtype && v.rank == static_cast<int>(dims.size());
  int i = 0;
  for (int64_t d : dims) {
    ok = ok && (d == kAny || v.dim(i) == d);
    ++i;
  }
  if (!ok) refuse(op, name, expected(), v.describe());
  if (v.rank > 0 && v.dim(v.rank - 1) > 1 && v.stride[size_t(v.rank) - 1] != 1)
    refuse(op, name, "a dense last dimension",
           fmt::format("{} with stride {}", v.describe(), v.stride[size_t(v.rank) - 1]));
}
void want_either(const char* op, const char* name, const TensorView& v, DType t, DType other,
                 std::initializer_list<int64_t> dims) {
  want(op, name, v, v && v.dtype == other ? other : t, dims);
}
void maybe(const char* op, const char* name, const TensorView& v, DType dtype,
           std::initializer_list<int64_t> dims) {
  if (v) want(op, name, v, dtype, dims);
}
// A gradient: accumulated in A, or in T where memory is short.
void maybe_gradient(const char* op, const TensorView& v, DType t, std::initializer_list<int64_t> dims) {
  if (v) want_either(op, "weight.grad", v, t, accumulation_dtype(t), dims);
}
void want_like(const char* op, const char* name, const TensorView& v, const TensorView& like) {
  if (v.rank == like.rank && v.rank > 0 && v.same_shape(like) && v.dtype == like.dtype &&
      (v.dim(v.rank - 1) <= 1 || v.stride[size_t(v.rank) - 1] == 1) && v)
    return;
  refuse(op, name, like.describe() + " with a dense last dimension", v ? v.describe() : "none");
}
void want_contiguous(const char* op, const char* name, const TensorView& v) {
  if (!v.contiguous()) refuse(op, name, "a contiguous tensor", v.describe() + " with gaps");
}

void check_batch(const char* op, const RaggedBatch& b, int64_t rows) {
  HYSPARSE_CHECK(!b.cu_q.empty() && b.cu_q[0] == 0 && b.cu_q.size() == b.past_len.size() + 1,
                 "{}: batch: cu_q has {} entries for {} sequences", op, b.cu_q.size(), b.past_len.size());
  for (int64_t s = 0; s < b.sequences(); ++s)
    HYSPARSE_CHECK(b.q_len(s) >= 0 && b.past_len[size_t(s)] >= 0,
                   "{}: batch: sequence {} has {} queries after {} tokens", op, s, b.q_len(s),
                   b.past_len[size_t(s)]);
  HYSPARSE_CHECK(b.tokens() == rows, "{}: batch holds {} tokens, q has {} rows", op, b.tokens(), rows);
}

void check_kv(const char* op, const RaggedBatch& b, const KvView& kv, DType t, int64_t d) {
  const bool contiguous = kv.kind == KvView::Kind::contiguous;
  if (kv.kind == KvView::Kind::paged && (kv.k.dtype == DType::i8 || kv.k.dtype == DType::f8)) {
    t = kv.k.dtype;
    want(op, "scales", kv.scales, DType::bf16, {kv.k.dim(0), kv.k.dim(1), kv.k.dim(2), 2});
  } else {
    HYSPARSE_CHECK(!kv.scales, "{}: scales of k and v in {}", op, name_of(kv.k.dtype));
  }
  if (contiguous) {
    want(op, "k", kv.k, t, {kAny, kAny, d});
    want(op, "v", kv.v, t, {kv.k.dim(0), kv.k.dim(1), kAny});
    HYSPARSE_CHECK(kv.cu_kv || b.sequences() == 0, "{}: contiguous view without cu_kv", op);
  } else {
    want(op, "k", kv.k, t, {kAny, kAny, kAny, d});
    want(op, "v", kv.v, t, {kv.k.dim(0), kv.k.dim(1), kv.k.dim(2), kAny});
  }
  if (kv.kind == KvView::Kind::paged)
    HYSPARSE_CHECK((kv.page_table || b.sequences() == 0) && kv.page_size > 0 && kv.page_size == kv.k.dim(1),
                   "{}: paged view: page_size {} with k {}", op, kv.page_size, kv.k.describe());
  if (kv.kind == KvView::Kind::ring) {
    HYSPARSE_CHECK((kv.slot || b.sequences() == 0) && kv.ring_len > 0 && kv.ring_len == kv.k.dim(1),
                   "{}: ring view: ring_len {} with k {}", op, kv.ring_len, kv.k.describe());
    want(op, "fresh_k", kv.fresh_k, t, {b.tokens(), kv.heads(), d});
    want(op, "fresh_v", kv.fresh_v, t, {b.tokens(), kv.heads(), kv.v_head_dim()});
  }
  for (int64_t s = 0; s < b.sequences(); ++s) {
    const int64_t len = b.kv_len(s);
    switch (kv.kind) {
      case KvView::Kind::contiguous:
        HYSPARSE_CHECK(kv.cu_kv[s] >= 0 && kv.cu_kv[s] + len <= kv.k.dim(0),
                       "{}: sequence {} reads rows [{}, {}) of {}", op, s, kv.cu_kv[s], kv.cu_kv[s] + len,
                       kv.k.describe());
        break;
      case KvView::Kind::paged:
        HYSPARSE_CHECK(len <= kv.page_table_stride * kv.page_size,
                       "{}: sequence {} has {} keys, its page table holds {} pages of {}", op, s, len,
                       kv.page_table_stride, kv.page_size);
        break;
      case KvView::Kind::ring:
        HYSPARSE_CHECK(kv.slot[s] >= 0 && kv.slot[s] < kv.k.dim(0), "{}: sequence {}: ring slot {} of {}", op,
                       s, kv.slot[s], kv.k.dim(0));
        break;
    }
  }
}

// What the three attention forwards have in common. Returns T.
template <class F>
DType check_forward(const char* op, const F& a) {
  const DType t = compute(op, "q", a.q);
  const DType acc = accumulation_dtype(t);
  want(op, "q", a.q, t, {a.batch.tokens(), kAny, kAny});
  const int64_t n = a.q.dim(0), hq = a.q.dim(1);
  check_batch(op, a.batch, n);
  check_kv(op, a.batch, a.kv, t, a.q.dim(2));
  HYSPARSE_CHECK(a.kv.heads() > 0 && hq % a.kv.heads() == 0,
                 "{}: {} query heads do not divide into {} key/value heads", op, hq, a.kv.heads());
  want(op, "o", a.o, t, {n, hq, a.kv.v_head_dim()});
  want(op, "lse", a.lse, acc, {n, hq});
  return t;
}
template <class B>
DType check_backward(const char* op, const B& a) {
  const DType t = check_forward(op, a);
  const DType acc = accumulation_dtype(t);
  HYSPARSE_CHECK(a.kv.kind == KvView::Kind::contiguous, "{}: needs a contiguous view of k and v", op);
  want_like(op, "d_o", a.d_o, a.o);
  want_like(op, "dq", a.dq, a.q);
  want(op, "dk", a.dk, acc, {a.kv.k.dim(0), a.kv.heads(), a.kv.head_dim()});
  want(op, "dv", a.dv, acc, {a.kv.k.dim(0), a.kv.heads(), a.kv.v_head_dim()});
  return t;
}
void check_selection(const char* op, const Selection& s, int64_t n, int64_t heads) {
  want(op, "selection", s.idx, DType::i32, {n, heads, kAny});
  HYSPARSE_CHECK(s.block >= 1, "{}: selection block {}", op, s.block);
}
// Keys that a window needs from the ring are at most `window - 1` committed ones.
void check_window(const char* op, const KvView& kv, int64_t window) {
  HYSPARSE_CHECK(window >= 1, "{}: window {}", op, window);
  if (kv.kind == KvView::Kind::ring)
    HYSPARSE_CHECK(kv.ring_len >= window, "{}: a ring of {} for a window of {}", op, kv.ring_len, window);
}
void check_whole_ring(const char* op, const RaggedBatch& b, const KvView& kv) {
  if (kv.kind != KvView::Kind::ring) return;
  for (int64_t p : b.past_len)
    HYSPARSE_CHECK(p <= kv.ring_len, "{}: {} past tokens, a ring keeps {}", op, p, kv.ring_len);
}
void check_paged_block(const char* op, const KvView& kv, int64_t block) {
  if (kv.kind == KvView::Kind::paged)
    HYSPARSE_CHECK(kv.page_size % block == 0, "{}: page_size {} is not a multiple of the block {}", op,
                   kv.page_size, block);
}
int64_t blocks_of(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

// A matrix of T, or i8 with its scales; or f8 with its, where `f8` says so.
void want_matrix(const char* op, const Weight& w, DType t, int64_t in, bool f8 = false) {
  if (!w.scales) return want(op, "weight", w.value, t, {kAny, in});
  f8 = f8 && w.value.dtype == DType::f8;
  want(op, "weight", w.value, f8 ? DType::f8 : DType::i8, {kAny, in});
  want(op, "weight.scales", w.scales, DType::f32,
       {w.value.dim(0), f8 ? int64_t(1) : quant_groups(w.value.dim(1))});
  want_contiguous(op, "weight", w.value);
  want_contiguous(op, "weight.scales", w.scales);
}

void check_gate(const char* op, const char* name, const TensorView& gate, const TensorView& a, DType acc) {
  const bool channel = gate && gate.rank == 2 && gate.dim(1) != a.dim(1);
  want(op, name, gate, acc, {a.dim(0), channel ? a.dim(1) * a.dim(2) : a.dim(1)});
}

}  // namespace

DType check_args(const EmbeddingForward& a) {
  const char* op = "embedding";
  const DType t = compute(op, "y", a.y);
  want_matrix(op, a.weight, t, kAny);
  want(op, "tokens", a.tokens, DType::i32, {kAny});
  want(op, "y", a.y, t, {a.tokens.dim(0), a.weight.value.dim(1)});
  return t;
}
DType check_args(const EmbeddingBackward& a) {
  const char* op = "embedding_backward";
  const DType t = compute(op, "dy", a.dy);
  want_either(op, "weight.grad", a.weight.grad, t, accumulation_dtype(t), {kAny, kAny});
  want(op, "tokens", a.tokens, DType::i32, {kAny});
  want(op, "dy", a.dy, t, {a.tokens.dim(0), a.weight.grad.dim(1)});
  return t;
}

DType check_args(const RmsNormForward& a) {
  const char* op = "rmsnorm";
  const DType t = compute(op, "x", a.x);
  HYSPARSE_CHECK(a.x.rank == 2 || a.x.rank == 3, "{}: x: expected rank 2 or 3, got {}", op, a.x.describe());
  want_like(op, "x", a.x, a.x);
  want(op, "weight", a.weight.value, t, {a.x.dim(a.x.rank - 1)});
  want_like(op, "y", a.y, a.x);
  if (a.rstd && a.x.rank == 2) want(op, "rstd", a.rstd, accumulation_dtype(t), {a.x.dim(0)});
  if (a.rstd && a.x.rank == 3) want(op, "rstd", a.rstd, accumulation_dtype(t), {a.x.dim(0), a.x.dim(1)});
  return t;
}
DType check_args(const RmsNormBackward& a) {
  const char* op = "rmsnorm_backward";
  const DType t = check_args(RmsNormForward{a.x, a.weight, 0, a.dx, a.rstd});
  HYSPARSE_CHECK(a.rstd, "{}: rstd of the forward is missing", op);
  want_like(op, "dy", a.dy, a.x);
  maybe(op, "weight.grad", a.weight.grad, accumulation_dtype(t), {a.x.dim(a.x.rank - 1)});
  return t;
}

DType check_args(const LinearForward& a) {
  const char* op = "linear";
  const DType t = compute(op, "x", a.x);
  want(op, "x", a.x, t, {kAny, kAny});
  want_matrix(op, a.weight, t, a.x.dim(1));
  if (a.bias) want(op, "bias", a.bias->value, t, {a.weight.value.dim(0)});
  want_either(op, "y", a.y, t, accumulation_dtype(t), {a.x.dim(0), a.weight.value.dim(0)});
  return t;
}
DType check_args(const LinearBackward& a) {
  const char* op = "linear_backward";
  const DType t = compute(op, "x", a.x);
  const DType acc = accumulation_dtype(t);
  want(op, "x", a.x, t, {kAny, kAny});
  want(op, "weight", a.weight.value, t, {kAny, a.x.dim(1)});
  HYSPARSE_CHECK(!a.weight.panels, "{}: {} was packed for inference", op, a.weight.name);
  const int64_t out = a.weight.value.dim(0);
  maybe_gradient(op, a.weight.grad, t, {out, a.x.dim(1)});
  if (a.bias) maybe(op, "bias.grad", a.bias->grad, acc, {out});
  want_either(op, "dy", a.dy, t, acc, {a.x.dim(0), out});
  maybe(op, "dx", a.dx, t, {a.x.dim(0), a.x.dim(1)});
  return t;
}

DType check_args(const Rope& a) {
  const char* op = "rope";
  const DType t = compute(op, "x", a.x);
  const DType acc = accumulation_dtype(t);
  want(op, "x", a.x, t, {kAny, kAny, kAny});
  want(op, "cos", a.cos, acc, {kAny, kAny});
  want(op, "sin", a.sin, acc, {a.cos.dim(0), a.cos.dim(1)});
  HYSPARSE_CHECK(2 * a.cos.dim(1) <= a.x.dim(2), "{}: tables rotate {} dims of a head of {}", op,
                 2 * a.cos.dim(1), a.x.dim(2));
  HYSPARSE_CHECK(a.position || a.x.dim(0) == 0, "{}: no positions", op);
  for (int64_t i = 0; i < a.x.dim(0); ++i)
    HYSPARSE_CHECK(a.position[i] >= 0 && a.position[i] < a.cos.dim(0),
                   "{}: position {} of row {} lies outside the table of {}", op, a.position[i], i,
                   a.cos.dim(0));
  return t;
}

DType check_args(const Add& a) {
  const DType t = compute("add", "a", a.a);
  want_like("add", "a", a.a, a.a);
  want_like("add", "b", a.b, a.a);
  want_like("add", "y", a.y, a.a);
  return t;
}
void check_args(const Cast& a) {
  compute("cast", "src", a.src);
  compute("cast", "dst", a.dst);
  HYSPARSE_CHECK(a.src.same_shape(a.dst), "cast: {} to {}", a.src.describe(), a.dst.describe());
  want_like("cast", "src", a.src, a.src);
  want_like("cast", "dst", a.dst, a.dst);
}
DType check_args(const GatherRows& a) {
  const char* op = "gather_rows";
  const DType t = compute(op, "src", a.src);
  want(op, "src", a.src, t, {kAny, kAny});
  want(op, "dst", a.dst, t, {kAny, a.src.dim(1)});
  HYSPARSE_CHECK(a.rows || a.dst.dim(0) == 0, "{}: no rows", op);
  for (int64_t i = 0; i < a.dst.dim(0); ++i)
    HYSPARSE_CHECK(a.rows[i] >= 0 && a.rows[i] < a.src.dim(0), "{}: row {} of {}", op, a.rows[i],
                   a.src.describe());
  return t;
}

void check_args(const ScatterRows& a) {
  const char* op = "scatter_rows";
  const auto dense_rows = [&](const TensorView& t) {
    int64_t inner = 1;
    for (int i = t.rank - 1; i > 0; --i) {
      HYSPARSE_CHECK(t.dim(i) == 1 || t.stride[size_t(i)] == inner, "{}: rows of {} have gaps", op,
                     t.describe());
      inner *= t.dim(i);
    }
  };
  for (const auto& [src, dst] : a.pairs) {
    HYSPARSE_CHECK(src && dst && src.rank >= 2 && src.rank == dst.rank && src.dtype == dst.dtype &&
                       src.dim(0) == a.pairs[0].src.dim(0),
                   "{}: {} to {}", op, src.describe(), dst.describe());
    for (int i = 1; i < src.rank; ++i)
      HYSPARSE_CHECK(src.dim(i) == dst.dim(i), "{}: {} to {}", op, src.describe(), dst.describe());
    dense_rows(src);
    dense_rows(dst);
    HYSPARSE_CHECK(a.rows || src.dim(0) == 0, "{}: no rows", op);
    for (int64_t i = 0; i < src.dim(0); ++i)
      HYSPARSE_CHECK(a.rows[i] >= -1 && a.rows[i] < dst.dim(0), "{}: row {} of {}", op, a.rows[i],
                     dst.describe());
  }
}

DType check_args(const QuantiseKv& a) {
  const char* op = "quantise_kv";
  const DType t = compute(op, "k", a.k), code = a.k_codes.dtype;
  want(op, "k", a.k, t, {kAny, kAny, kAny});
  want(op, "v", a.v, t, {a.k.dim(0), a.k.dim(1), kAny});
  HYSPARSE_CHECK(code == DType::i8 || code == DType::f8, "{}: codes of {}", op, name_of(code));
  want(op, "k_codes", a.k_codes, code, {kAny, a.k.dim(1), a.k.dim(2)});
  want(op, "v_codes", a.v_codes, code, {a.k_codes.dim(0), a.v.dim(1), a.v.dim(2)});
  want(op, "scales", a.scales, DType::bf16, {a.k_codes.dim(0), a.k.dim(1), 2});
  for (const TensorView* out : {&a.k_codes, &a.v_codes, &a.scales}) want_contiguous(op, "out", *out);
  HYSPARSE_CHECK(a.rows || a.k.dim(0) == 0, "{}: no rows", op);
  for (int64_t i = 0; i < a.k.dim(0); ++i)
    HYSPARSE_CHECK(a.rows[i] >= 0 && a.rows[i] < a.k_codes.dim(0), "{}: row {} of {}", op, a.rows[i],
                   a.k_codes.describe());
  return t;
}

DType check_args(const SwigluForward& a) {
  const DType t = compute("swiglu", "gate", a.gate);
  want("swiglu", "gate", a.gate, t, {kAny, kAny});
  want_like("swiglu", "up", a.up, a.gate);
  want_like("swiglu", "h", a.h, a.gate);
  return t;
}
DType check_args(const SwigluBackward& a) {
  const char* op = "swiglu_backward";
  const DType t = check_args(SwigluForward{a.gate, a.up, a.dh});
  want_like(op, "dgate", a.dgate, a.gate);
  want_like(op, "dup", a.dup, a.gate);
  return t;
}

DType check_args(const AttentionForward& a) {
  const char* op = "attention";
  const DType t = check_forward(op, a);
  check_whole_ring(op, a.batch, a.kv);
  if (a.block_scores) {
    HYSPARSE_CHECK(a.score_block >= 1, "{}: block scores with a block of {}", op, a.score_block);
    want(op, "block_scores", a.block_scores, accumulation_dtype(t), {a.q.dim(0), a.kv.heads(), kAny});
    HYSPARSE_CHECK(a.block_scores.dim(2) >= blocks_of(a.batch.max_kv_len(), a.score_block),
                   "{}: block_scores {} hold too few blocks of {} for {} keys", op, a.block_scores.describe(),
                   a.score_block, a.batch.max_kv_len());
    check_paged_block(op, a.kv, a.score_block);
  }
  return t;
}
DType check_args(const AttentionBackward& a) {
  return check_backward("attention_backward", a);
}

DType check_args(const SelectBlocks& a) {
  const char* op = "select_blocks";
  const DType acc = compute(op, "block_scores", a.block_scores);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: block_scores in {}", op, name_of(acc));
  want(op, "block_scores", a.block_scores, acc, {a.batch.tokens(), kAny, kAny});
  check_batch(op, a.batch, a.block_scores.dim(0));
  HYSPARSE_CHECK(a.block >= 1 && a.block_scores.dim(2) >= blocks_of(a.batch.max_kv_len(), a.block),
                 "{}: block_scores {} hold too few blocks of {} for {} keys", op, a.block_scores.describe(),
                 a.block, a.batch.max_kv_len());
  want(op, "idx", a.idx, DType::i32, {a.block_scores.dim(0), a.block_scores.dim(1), kAny});
  HYSPARSE_CHECK(a.idx.dim(2) >= 1, "{}: idx {} has no entries", op, a.idx.describe());
  return acc;
}
DType check_args(const RandomScores& a) {
  const char* op = "random_scores";
  const DType acc = compute(op, "block_scores", a.block_scores);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: block_scores in {}", op, name_of(acc));
  want(op, "block_scores", a.block_scores, acc, {a.batch.tokens(), kAny, kAny});
  check_batch(op, a.batch, a.block_scores.dim(0));
  HYSPARSE_CHECK(int64_t(a.batch.row.size()) == a.batch.sequences(),
                 "{}: batch names {} rows for {} sequences", op, a.batch.row.size(), a.batch.sequences());
  HYSPARSE_CHECK(a.block >= 1 && a.block_scores.dim(2) >= blocks_of(a.batch.max_kv_len(), a.block),
                 "{}: block_scores {} hold too few blocks of {} for {} keys", op, a.block_scores.describe(),
                 a.block, a.batch.max_kv_len());
  return acc;
}

DType check_args(const SparseAttentionForward& a) {
  const char* op = "sparse_attention";
  const DType t = check_forward(op, a);
  check_whole_ring(op, a.batch, a.kv);
  check_selection(op, a.selection, a.q.dim(0), a.kv.heads());
  check_paged_block(op, a.kv, a.selection.block);
  maybe(op, "sinks", a.sinks, accumulation_dtype(t), {a.q.dim(1)});
  return t;
}
DType check_args(const SparseAttentionBackward& a) {
  const char* op = "sparse_attention_backward";
  const DType t = check_backward(op, a);
  check_selection(op, a.selection, a.q.dim(0), a.kv.heads());
  maybe(op, "sinks", a.sinks, accumulation_dtype(t), {a.q.dim(1)});
  maybe(op, "dsinks", a.dsinks, accumulation_dtype(t), {a.q.dim(1)});
  HYSPARSE_CHECK(a.sinks || !a.dsinks, "{}: dsinks wanted without sinks", op);
  return t;
}
DType check_args(const WindowAttentionForward& a) {
  const char* op = "window_attention";
  const DType t = check_forward(op, a);
  check_window(op, a.kv, a.window);
  maybe(op, "sinks", a.sinks, accumulation_dtype(t), {a.q.dim(1)});
  return t;
}
DType check_args(const WindowAttentionBackward& a) {
  const char* op = "window_attention_backward";
  const DType t = check_backward(op, a);
  check_window(op, a.kv, a.window);
  maybe(op, "sinks", a.sinks, accumulation_dtype(t), {a.q.dim(1)});
  maybe(op, "dsinks", a.dsinks, accumulation_dtype(t), {a.q.dim(1)});
  HYSPARSE_CHECK(a.sinks || !a.dsinks, "{}: dsinks wanted without sinks", op);
  return t;
}

DType check_args(const GatedSumForward& a) {
  const char* op = "gated_sum";
  const DType t = compute(op, "a", a.a);
  const DType acc = accumulation_dtype(t);
  want(op, "a", a.a, t, {kAny, kAny, kAny});
  check_gate(op, "gate_a", a.gate_a, a.a, acc);
  if (a.b) {
    want_like(op, "b", a.b, a.a);
    check_gate(op, "gate_b", a.gate_b, a.a, acc);
  }
  want_like(op, "out", a.out, a.a);
  return t;
}
DType check_args(const GatedSumBackward& a) {
  const char* op = "gated_sum_backward";
  const DType t = check_args(GatedSumForward{a.a, a.gate_a, a.b, a.gate_b, a.d_out});
  want_like(op, "da", a.da, a.a);
  want_like(op, "dgate_a", a.dgate_a, a.gate_a);
  if (a.b) {
    want_like(op, "db", a.db, a.a);
    want_like(op, "dgate_b", a.dgate_b, a.gate_b);
  }
  return t;
}

void check_args(const DrawTokens& a) {
  const char* op = "draw_tokens";
  const DType acc = compute(op, "logits", a.logits);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: logits in {}", op, name_of(acc));
  want(op, "logits", a.logits, acc, {kAny, kAny});
  want(op, "tokens", a.tokens, DType::i32, {a.logits.dim(0)});
  HYSPARSE_CHECK(a.tokens.contiguous() && std::ssize(a.rows) == a.logits.dim(0),
                 "{}: {} settings for {} rows", op, a.rows.size(), a.logits.dim(0));
  for (const DrawSettings& s : a.rows)
    HYSPARSE_CHECK(s.vocab >= 1 && s.vocab <= a.logits.dim(1) && s.uniform >= 0 && s.uniform < 1 &&
                       s.temperature >= 0 && s.top_k >= 0 && s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 &&
                       s.min_p <= 1,
                   "{}: a setting out of range", op);
}
DType check_args(const CrossEntropy& a) {
  const char* op = "cross_entropy";
  const DType acc = compute(op, "logits", a.logits);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: logits in {}", op, name_of(acc));
  want(op, "logits", a.logits, acc, {kAny, kAny});
  want(op, "labels", a.labels, DType::i32, {a.logits.dim(0)});
  want(op, "loss", a.loss, acc, {a.logits.dim(0)});
  if (a.dlogits)
    want_either(op, "dlogits", a.dlogits, acc, acc == DType::f32 ? DType::bf16 : acc,
                {a.logits.dim(0), a.logits.dim(1)});
  return acc;
}
DType check_args(const AdamW& a) {
  const char* op = "adamw";
  const Weight& w = a.weight;
  const DType acc = compute(op, "weight.master", w.master);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: weight.master in {}", op, name_of(acc));
  compute(op, "weight.value", w.value);
  HYSPARSE_CHECK(w.value.same_shape(w.master), "{}: value {} and master {}", op, w.value.describe(),
                 w.master.describe());
  for (const auto& [name, v] : {std::pair{"weight.grad", &w.grad}, {"m", &a.m}, {"v", &a.v}}) {
    compute(op, name, *v);
    HYSPARSE_CHECK(v->same_shape(w.master), "{}: {} {} and master {}", op, name, v->describe(),
                   w.master.describe());
  }
  HYSPARSE_CHECK(a.m.dtype == a.v.dtype, "{}: m in {}, v in {}", op, name_of(a.m.dtype), name_of(a.v.dtype));
  for (const TensorView* v : {&w.value, &w.master, &w.grad, &a.m, &a.v}) want_contiguous(op, "state", *v);
  HYSPARSE_CHECK(a.step >= 1, "{}: step {} counts from 1", op, a.step);
  return acc;
}
void check_args(const SumSquares& a) {
  compute("sum_squares", "x", a.x);
  want_contiguous("sum_squares", "x", a.x);
  want("sum_squares", "out", a.out, DType::f64, {1});
}
DType check_args(const HeadLoss& a) {
  const char* op = "head_loss";
  const DType t = compute(op, "x", a.x);
  want(op, "x", a.x, t, {kAny, kAny});
  const bool forward_only = a.grad_scale == 0 || (!a.dx && !a.weight.grad);
  if (forward_only)
    want_matrix(op, a.weight, t, a.x.dim(1));
  else
    want(op, "weight", a.weight.value, t, {kAny, a.x.dim(1)});
  want(op, "labels", a.labels, DType::i32, {a.x.dim(0)});
  want(op, "loss", a.loss, accumulation_dtype(t), {a.x.dim(0)});
  maybe(op, "dx", a.dx, t, {a.x.dim(0), a.x.dim(1)});
  maybe_gradient(op, a.weight.grad, t, {a.weight.value.dim(0), a.x.dim(1)});
  return t;
}

namespace {

// Returns R.
int64_t check_tables(const char* op, const ExpertTables& t) {
  want(op, "offset", t.offset, DType::i32, {kAny});
  want(op, "slot", t.slot, DType::i32, {kAny, kAny});
  const int64_t rows = t.slot.dim(0) * t.slot.dim(1);
  want(op, "source", t.source, DType::i32, {rows});
  for (const TensorView* v : {&t.offset, &t.source, &t.slot}) want_contiguous(op, "tables", *v);
  HYSPARSE_CHECK(t.experts() >= 1 && t.active() >= 1 && t.active() <= t.experts(), "{}: {} of {} experts", op,
                 t.active(), t.experts());
  return rows;
}
// k experts, not more than there are.
void check_choice(const char* op, const TensorView& logits, const TensorView& experts) {
  want(op, "experts", experts, DType::i32, {logits.dim(0), kAny});
  want_contiguous(op, "experts", experts);
  HYSPARSE_CHECK(experts.dim(1) >= 1 && experts.dim(1) <= logits.dim(1), "{}: {} of {} experts", op,
                 experts.dim(1), logits.dim(1));
}
template <class W>
void check_group(const char* op, DType t, const TensorView& x, const TensorView& y,
                 const ExpertTables& tables, std::span<W> weights) {
  const int64_t rows = check_tables(op, tables);
  HYSPARSE_CHECK(std::ssize(weights) == tables.experts(), "{}: {} weights for {} experts", op, weights.size(),
                 tables.experts());
  const TensorView& first = weights[0].value;
  want(op, "weights[0]", first, weights[0].scales ? first.dtype : t, {kAny, kAny});
  for (const Weight& w : weights) {
    want(op, w.name.c_str(), w.value, first.dtype, {first.dim(0), first.dim(1)});
    if (weights[0].scales) want_matrix(op, w, t, first.dim(1), true);
  }
  want(op, "x", x, t, {rows, first.dim(1)});
  want(op, "y", y, t, {rows, first.dim(0)});
}

}  // namespace

DType check_args(const RouteForward& a) {
  const char* op = "route";
  const DType acc = compute(op, "logits", a.logits);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: logits in {}", op, name_of(acc));
  want(op, "logits", a.logits, acc, {kAny, kAny});
  want(op, "bias", a.bias, acc, {a.logits.dim(1)});
  check_choice(op, a.logits, a.experts);
  want(op, "weights", a.weights, acc, {a.logits.dim(0), a.experts.dim(1)});
  return acc;
}
DType check_args(const RouteBackward& a) {
  const char* op = "route_backward";
  const DType acc = compute(op, "logits", a.logits);
  HYSPARSE_CHECK(acc == accumulation_dtype(acc), "{}: logits in {}", op, name_of(acc));
  want(op, "logits", a.logits, acc, {kAny, kAny});
  check_batch(op, a.batch, a.logits.dim(0));
  check_choice(op, a.logits, a.experts);
  want(op, "dweights", a.dweights, acc, {a.logits.dim(0), a.experts.dim(1)});
  maybe(op, "labels", a.labels, DType::i32, {a.logits.dim(0)});
  HYSPARSE_CHECK(a.labels || (a.balance == 0 && a.z == 0), "{}: losses of the router without labels", op);
  want_like(op, "dlogits", a.dlogits, a.logits);
  return acc;
}
void check_args(const BuildExpertTables& a) {
  const char* op = "expert_tables";
  check_tables(op, a.tables);
  const TensorView& slot = a.tables.slot;
  HYSPARSE_CHECK(slot.numel() < (int64_t(1) << 31), "{}: {} assignments in one call", op, slot.numel());
  want(op, "experts", a.experts, DType::i32, {slot.dim(0), slot.dim(1)});
  want_contiguous(op, "experts", a.experts);
  maybe(op, "labels", a.labels, DType::i32, {slot.dim(0)});
  maybe(op, "load", a.load, DType::i64, {a.tables.experts()});
}
DType check_args(const ExpertGather& a) {
  const char* op = "expert_gather";
  const DType t = compute(op, "x", a.x);
  const int64_t rows = check_tables(op, a.tables);
  want(op, "x", a.x, t, {a.tables.slot.dim(0), kAny});
  want(op, "y", a.y, t, {rows, a.x.dim(1)});
  return t;
}
DType check_args(const ExpertSum& a) {
  const char* op = "expert_sum";
  const DType t = compute(op, "x", a.x);
  want(op, "x", a.x, t, {check_tables(op, a.tables), kAny});
  want(op, "y", a.y, t, {a.tables.slot.dim(0), a.x.dim(1)});
  return t;
}
DType check_args(const GroupedLinear& a) {
  const DType t = compute("grouped_linear", "x", a.x);
  check_group("grouped_linear", t, a.x, a.y, a.tables, a.weights);
  return t;
}
DType check_args(const GroupedLinearBackward& a) {
  const char* op = "grouped_linear_backward";
  const DType t = compute(op, "x", a.x);
  check_group(op, t, a.x, a.dy, a.tables, a.weights);
  HYSPARSE_CHECK(!a.weights[0].scales, "{}: weights in {} have no backward pass", op,
                 name_of(a.weights[0].value.dtype));
  for (const Weight& w : a.weights) HYSPARSE_CHECK(!w.panels, "{}: {} was packed for inference", op, w.name);
  for (const Weight& w : a.weights) maybe_gradient(op, w.grad, t, {w.value.dim(0), w.value.dim(1)});
  if (a.dx) want_like(op, "dx", a.dx, a.x);
  return t;
}
DType check_args(const ExpertSwiglu& a) {
  const char* op = "expert_swiglu";
  const DType t = check_args(SwigluForward{a.gate, a.up, a.h});
  const int64_t rows = check_tables(op, a.tables);
  want(op, "gate", a.gate, t, {rows, kAny});
  want(op, "weights", a.weights, accumulation_dtype(t), {a.tables.slot.dim(0), a.tables.slot.dim(1)});
  want_contiguous(op, "weights", a.weights);
  return t;
}
DType check_args(const ExpertSwigluBackward& a) {
  const char* op = "expert_swiglu_backward";
  const DType t = check_args(ExpertSwiglu{a.gate, a.up, a.tables, a.weights, a.dh});
  want_like(op, "dgate", a.dgate, a.gate);
  want_like(op, "dup", a.dup, a.gate);
  want_like(op, "dweights", a.dweights, a.weights);
  want_contiguous(op, "dweights", a.dweights);
  return t;
}

}  // namespace hysparse
