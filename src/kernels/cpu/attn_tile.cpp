#include "kernels/cpu/attn_tile.h"

#include <algorithm>
#include <cmath>

namespace hysparse::attn {

Shape shape_of(const char* op, DType t, const TensorView& q, const KvView& kv) {
  if (t != DType::f32 && t != DType::bf16)
    throw failure("internal check",
                  fmt::format("{}: the CPU kernels compute in f32 or bf16, got {}", op, name_of(t)));
  Shape s;
  s.n = q.dim(0);
  s.hq = static_cast<int>(q.dim(1));
  s.hkv = static_cast<int>(kv.heads());
  s.r = s.hq / s.hkv;
  s.d = static_cast<int>(q.dim(2));
  s.dv = static_cast<int>(kv.v_head_dim());
  s.dp = static_cast<int>(padded(s.d));
  s.dvp = static_cast<int>(padded(s.dv));
  s.bf16 = t == DType::bf16;
  s.kv = kv.k.dtype;
  return s;
}

void for_items(Runtime& rt, int64_t items, int64_t work, const std::function<void(int64_t, int)>& fn,
               bool in_runs) {
  constexpr int64_t kWorthWaking = int64_t(1) << 17;  // some microseconds of one core
  if (work >= kWorthWaking)
    return in_runs ? rt.pool.parallel_runs(items, fn) : rt.pool.parallel_for(items, fn);
  rt.pool.parallel_for(1, [&](int64_t, int worker) {
    for (int64_t i = 0; i < items; ++i) fn(i, worker);
  });
}

void key_rows(const KvView& kv, const RaggedBatch& batch, int64_t s, int64_t p, int n, int64_t g,
              const void** k, const void** v, const void** scales) {
  const auto element = static_cast<int64_t>(size_of(kv.k.dtype));
  for (int i = 0; i < n;) {
    const KvView::Row row = kv.row(batch, s, p + i);
    const auto run = static_cast<int>(kv.run_length(batch, s, p + i, n - i));
    const char* kp = static_cast<const char*>(row.k->data) + (row.k_offset + g * row.k_head_stride) * element;
    const char* vp = static_cast<const char*>(row.v->data) + (row.v_offset + g * row.v_head_stride) * element;
    const int64_t k_step = KvView::row_stride(*row.k) * element,
                  v_step = KvView::row_stride(*row.v) * element;
    for (int j = 0; j < run; ++j) {
      k[i + j] = kp + j * k_step;
      v[i + j] = vp + j * v_step;
    }
    if (kv.in_8_bits() && scales) {
      const int64_t page = kv.page_table[s * kv.page_table_stride + (p + i) / kv.page_size];
      const bf16* first = kv.scales.as<bf16>() + page * kv.scales.stride[0] +
                          (p + i) % kv.page_size * kv.scales.stride[1] + g * kv.scales.stride[2];
      for (int j = 0; j < run; ++j) scales[i + j] = first + j * kv.scales.stride[1];
    }
    i += run;
  }
}

Ahead rows_ahead(const Shape& shape, const void* const* rows, int count) {
  Ahead ahead;
  ahead.lines =
      static_cast<int>((std::max(shape.d, shape.dv) * static_cast<int64_t>(size_of(shape.kv)) + 63) / 64);
  ahead.row = rows;
  ahead.end = rows + count;
  return ahead;
}

void Tile::layout(Slab& slab, const Shape& shape, int64_t rows) {
  layout(slab, shape, rows, kKeyTile, rows, kKeyTile);
}

void Tile::layout(Slab& slab, const Shape& shape, int64_t rows, int64_t key_count, int64_t rows_at_once,
                  int64_t columns) {
  keys = static_cast<int>(padded(key_count));
  scores = static_cast<int>(padded(columns));
  q = slab.take<float>(rows * shape.dp);
  o = slab.take<float>(rows * shape.dvp);
  row_max = slab.take<float>(rows);
  row_sum = slab.take<float>(rows);
  s = slab.take<float>(rows_at_once * scores);
  kt = slab.take<float>(int64_t(shape.d) * keys);
  v = slab.take<float>(int64_t(keys) * shape.dvp);
  lo = slab.take<int32_t>(rows);
  hi = slab.take<int32_t>(rows);
  factor = slab.take<float>(rows);
  pointers = slab.take<const void*>(rows);
  k_rows = slab.take<const void*>(keys);
  v_rows = slab.take<const void*>(keys);
  scale_rows = slab.take<const void*>(keys);
  k_scale = slab.take<float>(keys);
  v_scale = slab.take<float>(keys);
  next_rows = slab.take<const void*>(2 * kKeyTile);
}

void TileOps::load_queries(Tile& t, const TensorView& q, double scale, int64_t token, int64_t tokens,
                           int64_t g) const {
  const int r = shape_.r, rows = static_cast<int>(tokens) * r;
  for (int i = 0; i < rows; ++i) t.pointers[i] = address(q, token + i / r, g * r + i % r);
  kernels_.load_rows(t.pointers, shape_.type(), rows, shape_.d, static_cast<float>(scale * kLog2e), t.q,
                     shape_.dp);
  restart(t, rows);
}

void TileOps::restart(Tile& t, int64_t rows) const {
  std::fill_n(t.o, rows * shape_.dvp, 0.0f);
  std::fill_n(t.row_max, rows, kNone);
  std::fill_n(t.row_sum, rows, 0.0f);
}

void TileOps::set_keys(Tile& t, int64_t s, int64_t p, int n, int64_t g, int64_t oldest) const {
  const int missing = static_cast<int>(std::max<int64_t>(0, oldest - p));
  key_rows(kv_, batch_, s, p + missing, n - missing, g, t.k_rows + missing, t.v_rows + missing,
           t.scale_rows + missing);
  std::fill_n(t.k_rows, missing, t.k_rows[missing]);
  std::fill_n(t.v_rows, missing, t.v_rows[missing]);
  std::fill_n(t.scale_rows, missing, t.scale_rows[missing]);
  set_key_rows(t, n);
}

void TileOps::set_key_rows(Tile& t, int n) const {
  t.loaded = n;
  t.packed_k = t.packed_v = false;
  t.ahead = {};
  if (!kv_.in_8_bits()) return;
  for (int i = 0; i < n; ++i) {
    const auto* scales = static_cast<const bf16*>(t.scale_rows[i]);
    t.k_scale[i] = static_cast<float>(scales[0]);
    t.v_scale[i] = static_cast<float>(scales[1]);
  }
  std::fill(t.k_scale + n, t.k_scale + padded(n), 0.0f);
  std::fill(t.v_scale + n, t.v_scale + padded(n), 0.0f);
}

void TileOps::expect_keys(Tile& t, int64_t s, int64_t p, int n, int64_t g) const {
  key_rows(kv_, batch_, s, p, n, g, t.next_rows, t.next_rows + n);
  t.ahead = rows_ahead(shape_, t.next_rows, 2 * n);
}

void TileOps::attend(Tile& t, int first, int rows, const int32_t* index, bool masked, int64_t p,
                     const BlockMaxima& blocks) const {
  attend_columns(t, first, rows, index, 0, t.loaded, masked, p, blocks);
}

void TileOps::attend_columns(Tile& t, int first, int rows, const int32_t* index, int column, int n,
                             bool masked, int64_t p, const BlockMaxima& blocks) const {
  int seen = n;  // keys that some row sees
  if (masked) seen = std::max(0, *std::max_element(t.hi, t.hi + rows));
  if (seen == 0 || rows == 0) return;
  const TileRows q{t.q + int64_t(first) * shape_.dp, shape_.dp, index};
  const TileRows s{t.s, t.scores, nullptr};
  const TileRows o{t.o + int64_t(first) * shape_.dvp, shape_.dvp, index};
  // Few rows take the values where they lie: packing them costs as much as some ten rows of products.
  constexpr int kFew = 12;
  const bool few = rows <= kFew && shape_.dv % kernels_.direct_unit == 0;
  if (!t.packed_k) kernels_.load_transposed(t.k_rows, shape_.kv, t.loaded, shape_.d, t.kt, t.keys);
  t.packed_k = true;
  kernels_.gemm(rows, static_cast<int>(padded(seen)), shape_.d, q, 1, t.kt + column, t.keys, s, false,
                &t.ahead);
  if (kv_.in_8_bits()) kernels_.scale_columns(rows, seen, t.k_scale + column, t.s, t.scores);

  SoftmaxTile soft;
  soft.rows = rows;
  soft.keys = seen;
  soft.s = t.s;
  soft.ld = t.scores;
  soft.lo = masked ? t.lo : nullptr;
  soft.hi = masked ? t.hi : nullptr;
  soft.index = index;
  soft.row_max = t.row_max + first;
  soft.row_sum = t.row_sum + first;
  soft.o = o;
  soft.o_width = shape_.dvp;
  int32_t piece[kKeyTile + 1];
  if (blocks.raw) {
    piece[0] = 0;
    for (int64_t end = (p / blocks.block + 1) * blocks.block; piece[soft.pieces] < seen; end += blocks.block)
      piece[++soft.pieces] = static_cast<int32_t>(std::min<int64_t>(seen, end - p));
    soft.piece = piece;
    soft.piece_max = {blocks.raw + first * blocks.ld + p / blocks.block, blocks.ld, index};
  }
  kernels_.softmax(soft);
  if (kv_.in_8_bits()) kernels_.scale_columns(rows, seen, t.v_scale + column, t.s, t.scores);
  if (few && !t.packed_v) {
    kernels_.add_direct(rows, seen, shape_.dv, s, t.v_rows + column, shape_.kv, o, &t.ahead);
    return;
  }
  if (!t.packed_v) kernels_.load_rows(t.v_rows, shape_.kv, t.loaded, shape_.dv, 1.0f, t.v, shape_.dvp);
  t.packed_v = true;
  kernels_.gemm(rows, shape_.dvp, seen, s, 1, t.v + int64_t(column) * shape_.dvp, shape_.dvp, o, true,
                &t.ahead);
}

void TileOps::finish(Tile& t, int64_t token, int64_t tokens, int64_t g, const TensorView& sinks,
                     const TensorView& o, const TensorView& lse) const {
  const int r = shape_.r, rows = static_cast<int>(tokens) * r;
  for (int i = 0; i < rows; ++i) {
    const int64_t row = token + i / r, head = g * r + i % r;
    const double sink = sinks ? static_cast<const float*>(sinks.data)[head] * kLog2e : double(kNone);
    const double top = std::max<double>(t.row_max[i], sink);
    double sum = t.row_sum[i], keep = 0;
    if (top == double(kNone) && !(sum > 0) && !std::isnan(sum)) {  // no visible key and no sink
      t.factor[i] = 0;
      lse_at(lse, row, head) = kNone;
    } else {
      keep = std::exp2(t.row_max[i] - top);
      sum = sum * keep + std::exp2(sink - top);
      t.factor[i] = static_cast<float>(keep / sum);
      lse_at(lse, row, head) = static_cast<float>(kLn2 * top + std::log(sum));
    }
    t.pointers[i] = address(o, row, head);
  }
  kernels_.store_rows(t.o, shape_.dvp, t.factor, rows, shape_.dv, shape_.bf16,
                      const_cast<void**>(t.pointers));
}

}  // namespace hysparse::attn
