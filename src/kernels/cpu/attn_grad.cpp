#include "kernels/cpu/attn_grad.h"

#include <algorithm>
#include <cmath>

namespace hysparse::attn {

void GradTile::layout(Slab& slab, const Shape& shape, int64_t rows, bool gathers) {
  layout(slab, shape, rows, gathers, kKeyTile, rows, kKeyTile);
}

void GradTile::layout(Slab& slab, const Shape& shape, int64_t rows, bool gathers, int64_t key_count,
                      int64_t rows_at_once, int64_t columns) {
  keys = static_cast<int>(padded(key_count));
  scores = static_cast<int>(padded(columns));
  q = slab.take<float>(rows * shape.dp);
  d_o = slab.take<float>(rows * shape.dvp);
  dq = slab.take<float>(rows * shape.dp);
  lse2 = slab.take<float>(rows);
  delta = slab.take<float>(rows);
  if (gathers) {
    q_of = slab.take<float>(rows * shape.dp);
    d_o_of = slab.take<float>(rows * shape.dvp);
  }
  s = slab.take<float>(rows_at_once * scores);
  ds = slab.take<float>(rows_at_once * scores);
  kt = slab.take<float>(int64_t(shape.d) * keys);
  vt = slab.take<float>(int64_t(shape.dv) * keys);
  k = slab.take<float>(int64_t(keys) * shape.dp);
  dk = slab.take<float>(int64_t(keys) * shape.dp);
  dv = slab.take<float>(int64_t(keys) * shape.dvp);
  lo = slab.take<int32_t>(rows);
  hi = slab.take<int32_t>(rows);
  factor = slab.take<float>(rows);
  pointers = slab.take<const void*>(rows);
  more = slab.take<const void*>(rows);
  k_rows = slab.take<const void*>(keys);
  v_rows = slab.take<const void*>(keys);
  next_rows = slab.take<const void*>(2 * kKeyTile);
  dk_rows = slab.take<float*>(keys);
  dv_rows = slab.take<float*>(keys);
}

void GradOps::load_queries(GradTile& t, int64_t token, int64_t tokens, int64_t g, double* sink_sums) const {
  const int r = shape_.r, rows = static_cast<int>(tokens) * r;
  for (int i = 0; i < rows; ++i) t.pointers[i] = address(a_.q, token + i / r, g * r + i % r);
  kernels_.load_rows(t.pointers, shape_.type(), rows, shape_.d, static_cast<float>(a_.scale * kLog2e), t.q,
                     shape_.dp);
  for (int i = 0; i < rows; ++i) {
    t.pointers[i] = address(a_.d_o, token + i / r, g * r + i % r);
    t.more[i] = address(a_.o, token + i / r, g * r + i % r);
  }
  kernels_.load_rows(t.pointers, shape_.type(), rows, shape_.dv, 1.0f, t.d_o, shape_.dvp);
  kernels_.dot_rows(t.pointers, t.more, shape_.bf16, rows, shape_.dv, t.delta);
  std::fill_n(t.dq, int64_t(rows) * shape_.dp, 0.0f);
  for (int i = 0; i < rows; ++i) {
    const int64_t head = g * r + i % r;
    const double lse = lse_at(a_.lse, token + i / r, head);
    const bool nothing = lse == double(kNone);
    t.lse2[i] = nothing ? -kNone : static_cast<float>(lse * kLog2e);
    if (a_.dsinks && !nothing)
      sink_sums[i % r] += std::exp(static_cast<const float*>(a_.sinks.data)[head] - lse) * t.delta[i];
  }
}

void GradOps::load_keys(GradTile& t, int64_t s, int64_t p, int n, int64_t g, const KeyGrads& to) const {
  key_rows(a_.kv, a_.batch, s, p, n, g, t.k_rows, t.v_rows);
  for (int j = 0; j < n; ++j) {
    t.dk_rows[j] = to.dk_row(p + j);
    t.dv_rows[j] = to.dv_row(p + j);
  }
  load_key_rows(t, n);
}

void GradOps::expect_keys(GradTile& t, int64_t s, int64_t p, int n, int64_t g) const {
  key_rows(a_.kv, a_.batch, s, p, n, g, t.next_rows, t.next_rows + n);
  t.ahead = rows_ahead(shape_, t.next_rows, 2 * n);
}

void GradOps::load_key_rows(GradTile& t, int n) const {
  t.ahead = {};
  t.loaded = n;
  kernels_.load_transposed(t.k_rows, shape_.type(), n, shape_.d, t.kt, t.keys);
  kernels_.load_transposed(t.v_rows, shape_.type(), n, shape_.dv, t.vt, t.keys);
  kernels_.load_rows(t.k_rows, shape_.type(), n, shape_.d, 1.0f, t.k, shape_.dp);
}

void GradOps::pair(GradTile& t, int first, int rows, const int32_t* index, bool masked) const {
  int seen = t.loaded;
  if (masked) seen = std::max(0, *std::max_element(t.hi, t.hi + rows));
  if (seen == 0 || rows == 0) return;
  products(t, first, rows, index, 0, seen, masked, false);
  add_key_grads(t, seen);
}

void GradOps::clear_key_grads(GradTile& t) const {
  std::fill_n(t.dk, int64_t(t.loaded) * shape_.dp, 0.0f);
  std::fill_n(t.dv, int64_t(t.loaded) * shape_.dvp, 0.0f);
}

void GradOps::pair_columns(GradTile& t, int first, int rows, int column, int n, bool masked) const {
  products(t, first, rows, nullptr, column, n, masked, true);
}

void GradOps::add_key_grads(GradTile& t, int n) const {
  kernels_.add_rows(t.dv, shape_.dvp, 1.0f, n, shape_.dv, t.dv_rows);
  // The queries were in log2 units: times ln 2 they are scale * q.
  kernels_.add_rows(t.dk, shape_.dp, static_cast<float>(kLn2), n, shape_.d, t.dk_rows);
}

void GradOps::products(GradTile& t, int first, int rows, const int32_t* index, int column, int seen,
                       bool masked, bool accumulate) const {
  const int columns = static_cast<int>(padded(seen)), dp = shape_.dp, dvp = shape_.dvp;
  float* q = t.q + int64_t(first) * dp;
  float* d_o = t.d_o + int64_t(first) * dvp;
  if (index) {  // side by side, as the products over rows need them
    for (int i = 0; i < rows; ++i) {
      std::copy_n(t.q + int64_t(index[i]) * dp, dp, t.q_of + int64_t(i) * dp);
      std::copy_n(t.d_o + int64_t(index[i]) * dvp, dvp, t.d_o_of + int64_t(i) * dvp);
    }
    q = t.q_of;
    d_o = t.d_o_of;
  }
  const TileRows s{t.s, t.scores, nullptr}, ds{t.ds, t.scores, nullptr};
  kernels_.gemm(rows, columns, shape_.d, {q, dp, nullptr}, 1, t.kt + column, t.keys, s, false, &t.ahead);
  kernels_.gemm(rows, columns, shape_.dv, {d_o, dvp, nullptr}, 1, t.vt + column, t.keys, ds, false, &t.ahead);

  SoftmaxGradTile soft;
  soft.rows = rows;
  soft.keys = seen;
  soft.s = t.s;
  soft.dp = t.ds;
  soft.ld = t.scores;
  soft.lo = masked ? t.lo : nullptr;
  soft.hi = masked ? t.hi : nullptr;
  soft.index = index;
  soft.lse2 = t.lse2 + first;
  soft.delta = t.delta + first;
  kernels_.softmax_grad(soft);

  // Products over the rows: the columns of P and dS are the rows of their transposes.
  kernels_.gemm(seen, dvp, rows, {t.s, 1, nullptr}, t.scores, d_o, dvp,
                {t.dv + int64_t(column) * dvp, dvp, nullptr}, accumulate, &t.ahead);
  kernels_.gemm(seen, dp, rows, {t.ds, 1, nullptr}, t.scores, q, dp,
                {t.dk + int64_t(column) * dp, dp, nullptr}, accumulate, &t.ahead);
  kernels_.gemm(rows, dp, seen, ds, 1, t.k + int64_t(column) * dp, dp,
                {t.dq + int64_t(first) * dp, dp, index}, true, &t.ahead);
}

void GradOps::store_dq(GradTile& t, int64_t token, int64_t tokens, int64_t g) const {
  const int r = shape_.r, rows = static_cast<int>(tokens) * r;
  std::fill_n(t.factor, rows, static_cast<float>(a_.scale));
  for (int i = 0; i < rows; ++i) t.pointers[i] = address(a_.dq, token + i / r, g * r + i % r);
  kernels_.store_rows(t.dq, shape_.dp, t.factor, rows, shape_.d, shape_.bf16, const_cast<void**>(t.pointers));
}

KeyGrads GradOps::caller_grads(int64_t s, int64_t g) const {
  KeyGrads to;
  to.dk = reinterpret_cast<float*>(address(a_.dk, a_.kv.cu_kv[s], g));
  to.dv = reinterpret_cast<float*>(address(a_.dv, a_.kv.cu_kv[s], g));
  to.dk_step = a_.dk.stride[0];
  to.dv_step = a_.dv.stride[0];
  return to;
}

KeyGrads GradOps::partial(Arena& arena, int64_t first, int64_t rows) const {
  const auto floats = [&](int64_t width) {
    return static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(rows * width) * sizeof(float)));
  };
  return {floats(shape_.d), floats(shape_.dv), shape_.d, shape_.dv, first};
}

void GradOps::zero(const KeyGrads& partial, int64_t begin, int64_t end) const {
  std::fill(partial.dk_row(begin), partial.dk_row(end), 0.0f);
  std::fill(partial.dv_row(begin), partial.dv_row(end), 0.0f);
}

void GradOps::add(const KeyGrads& to, const KeyGrads& from, int64_t begin, int64_t end) const {
  for (int64_t p = begin; p < end; ++p) {
    float* dk = to.dk_row(p);
    float* dv = to.dv_row(p);
    kernels_.add_rows(from.dk_row(p), 0, 1.0f, 1, shape_.d, &dk);
    kernels_.add_rows(from.dv_row(p), 0, 1.0f, 1, shape_.dv, &dv);
  }
}

void reduce_sinks(const std::vector<Piece>& pieces, const std::vector<double>& sums, int r,
                  const TensorView& dsinks) {
  if (!dsinks) return;
  std::vector<double> total(static_cast<size_t>(dsinks.dim(0)));
  for (size_t i = 0; i < pieces.size(); ++i)
    for (int j = 0; j < r; ++j) total[size_t(pieces[i].g * r + j)] += sums[i * size_t(r) + size_t(j)];
  for (size_t h = 0; h < total.size(); ++h)
    static_cast<float*>(dsinks.data)[h] -= static_cast<float>(total[h]);
}

}  // namespace hysparse::attn
