// Random attention problems over any batch and any KV layout, in the same numbers for both sides.
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/ops.h"
#include "kernels/quantise.h"
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {

struct Sequence {
  int64_t q, past = 0;
};

struct AttentionShape {
  std::vector<Sequence> sequences;
  int64_t hq = 4, hkv = 2, d = 32, dv = 32;
  KvView::Kind kind = KvView::Kind::contiguous;
  int64_t page = 64;        // paged
  DType code = DType::f32;  // paged: i8, f8: pages in 8 bits; k_of and v_of are what they then say
  int64_t ring_len = 0;     // ring; 0: all of the past
  bool gaps = false;        // strided q, k, v and outputs
  double sigma = 1;         // of q and k
  double stray = kNaN;      // what lies in cache memory that holds no key
  uint64_t seed = 1;
};

inline std::string describe(const AttentionShape& s) {
  std::string text = fmt::format("{}:{} heads of {}/{}", s.hq, s.hkv, s.d, s.dv);
  text += s.kind == KvView::Kind::contiguous ? ", contiguous"
          : s.kind == KvView::Kind::paged    ? ", paged"
                                             : ", ring";
  if (s.code != DType::f32) text += fmt::format(" in {}", name_of(s.code));
  if (s.gaps) text += ", strided";
  for (const Sequence& q : s.sequences) text += fmt::format(", {}+{}", q.past, q.q);
  return text;
}

// q, k and v of a shape: logical values, and both sides' tensors laid out as the shape says.
class AttentionInputs {
 public:
  // change(kind, s, p, g, c) may replace the number that is drawn; kind is 'q' (p counts rows of the
  // sequence), 'k' or 'v'.
  using Change = std::function<double(char kind, int64_t s, int64_t p, int64_t g, int64_t c, double drawn)>;

  AttentionInputs(const Backend& backend, const AttentionShape& shape, const Change& change = {})
      : bench(backend, shape.seed, shape.gaps), shape(shape), scale(1 / std::sqrt(double(shape.d))) {
    for (const Sequence& s : shape.sequences) batch.add_sequence(s.q, s.past);
    const auto draw = [&](char kind, int64_t s, int64_t rows, int64_t heads, int64_t width, double sigma) {
      Values x = normals(bench.rng(), rows * heads * width, sigma, bench.t());
      if (change)
        for (int64_t i = 0; i < rows * heads * width; ++i)
          x[size_t(i)] = round_to(
              bench.t(), change(kind, s, i / (heads * width), i / width % heads, i % width, x[size_t(i)]));
      return x;
    };
    Values q_all;
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const Values x = draw('q', s, batch.q_len(s), shape.hq, shape.d, shape.sigma);
      q_all.insert(q_all.end(), x.begin(), x.end());
      k_of.push_back(draw('k', s, batch.kv_len(s), shape.hkv, shape.d, shape.sigma));
      v_of.push_back(draw('v', s, batch.kv_len(s), shape.hkv, shape.dv, 1));
    }
    q_ = &bench.in_values(bench.t(), {batch.tokens(), shape.hq, shape.d}, q_all);
    place();
  }

  KvView kv(int side) const {
    KvView view;
    view.kind = shape.kind;
    if (in_8_bits()) {
      view.k = eight_[size_t(side)][0];
      view.v = eight_[size_t(side)][1];
      view.scales = eight_[size_t(side)][2];
    } else {
      view.k = k()[side];
      view.v = v()[side];
    }
    view.cu_kv = cu_kv_.data();
    view.page_table = table_.data();
    view.page_table_stride = table_stride_;
    view.page_size = shape.page;
    view.slot = slot_.data();
    view.ring_len = ring_len_;
    if (shape.kind == KvView::Kind::ring) {
      view.fresh_k = (*fresh_k_)[side];
      view.fresh_v = (*fresh_v_)[side];
    }
    return view;
  }
  bool in_8_bits() const { return shape.code != DType::f32; }
  int64_t n() const { return batch.tokens(); }
  int64_t group() const { return shape.hq / shape.hkv; }
  int64_t kv_rows() const { return k()[0].dim(0); }
  const Pair& q() const { return *q_; }
  const Pair& k() const { return *k_; }
  const Pair& v() const { return *v_; }
  int64_t cu_kv(int64_t s) const { return cu_kv_[size_t(s)]; }
  int64_t sequence_of(int64_t row) const {
    int64_t s = 0;
    while (batch.cu_q[size_t(s) + 1] <= row) ++s;
    return s;
  }
  int64_t position(int64_t row) const { return batch.position[size_t(row)]; }
  // Sinks of Hq heads, every third -inf where wanted.
  const Pair& sinks(bool some_absent = true) {
    Values x = normals(bench.rng(), shape.hq, 1, bench.acc());
    for (size_t h = 0; some_absent && h < x.size(); h += 3) x[h] = -kInf;
    return bench.in_values(bench.acc(), {shape.hq}, x);
  }

  Bench bench;
  AttentionShape shape;
  double scale;
  RaggedBatch batch;
  std::vector<Values> k_of, v_of;  // a sequence: [kv_len, Hkv, d|dv]

 private:
  // Copies position p of sequence s into row `row` of flat storage.
  static void put(Values& storage, int64_t row, const Values& from, int64_t p, int64_t width) {
    std::copy_n(from.begin() + p * width, width, storage.begin() + row * width);
  }
  // The row's code and scale at row `row` of a head's storage; the numbers become what those say.
  static void quantise(double* x, int64_t n, DType code, std::byte* codes, bf16* scale) {
    const std::vector<float> single(x, x + n);
    quantise_kv_row(single.data(), n, code, codes, scale);
    for (int64_t i = 0; i < n; ++i)
      x[i] = static_cast<double>(static_cast<float>(*scale)) *
             (code == DType::i8 ? static_cast<double>(reinterpret_cast<int8_t*>(codes)[i])
                                : static_cast<float>(reinterpret_cast<f8*>(codes)[i]));
  }
  void place_in_8_bits(const std::vector<int32_t>& order, int64_t pages) {
    const int64_t heads = shape.hkv, rows = pages * shape.page;
    std::vector<std::byte> k(size_t(rows * heads * shape.d), std::byte(0x35)),
        v(size_t(rows * heads * shape.dv), std::byte(0x35));
    std::vector<bf16> scales(size_t(rows * heads * 2), bf16(static_cast<float>(shape.stray)));
    size_t next = 0;
    for (int64_t s = 0; s < batch.sequences(); ++s)
      for (int64_t p = 0; p < batch.kv_len(s); ++p) {
        int32_t& page = table_[size_t(s * table_stride_ + p / shape.page)];
        if (page < 0) page = order[next++];
        for (int64_t g = 0; g < heads; ++g) {
          const int64_t from = p * heads + g, to = (page * shape.page + p % shape.page) * heads + g;
          quantise(&k_of[size_t(s)][size_t(from * shape.d)], shape.d, shape.code, &k[size_t(to * shape.d)],
                   &scales[size_t(to * 2)]);
          quantise(&v_of[size_t(s)][size_t(from * shape.dv)], shape.dv, shape.code, &v[size_t(to * shape.dv)],
                   &scales[size_t(to * 2 + 1)]);
        }
      }
    for (int side = 0; side < 2; ++side) {
      Memory& memory = side == 0 ? host_memory() : bench.backend().ops->memory();
      auto& of = eight_[size_t(side)];
      of[0] = Tensor(shape.code, {pages, shape.page, heads, shape.d}, memory);
      of[1] = Tensor(shape.code, {pages, shape.page, heads, shape.dv}, memory);
      of[2] = Tensor(DType::bf16, {pages, shape.page, heads, 2}, memory);
      memory.from_host(of[0].view().data, k.data(), k.size());
      memory.from_host(of[1].view().data, v.data(), v.size());
      memory.from_host(of[2].view().data, scales.data(), scales.size() * sizeof(bf16));
    }
  }
  void place() {
    const int64_t kw = shape.hkv * shape.d, vw = shape.hkv * shape.dv, sequences = batch.sequences();
    const DType t = bench.t();
    if (shape.kind == KvView::Kind::contiguous) {
      int64_t rows = 2;
      for (int64_t s = 0; s < sequences; ++s) {
        cu_kv_.push_back(rows);
        rows += batch.kv_len(s) + 3;  // room past the end, as a cache has
      }
      cu_kv_.push_back(rows);
      Values ks(size_t(rows * kw), shape.stray), vs(size_t(rows * vw), shape.stray);
      for (int64_t s = 0; s < sequences; ++s)
        for (int64_t p = 0; p < batch.kv_len(s); ++p) {
          put(ks, cu_kv_[size_t(s)] + p, k_of[size_t(s)], p, kw);
          put(vs, cu_kv_[size_t(s)] + p, v_of[size_t(s)], p, vw);
        }
      k_ = &bench.in_values(t, {rows, shape.hkv, shape.d}, ks);
      v_ = &bench.in_values(t, {rows, shape.hkv, shape.dv}, vs);
      return;
    }
    if (shape.kind == KvView::Kind::paged) {
      int64_t used = 0;
      for (int64_t s = 0; s < sequences; ++s)
        table_stride_ = std::max(table_stride_, (batch.kv_len(s) + shape.page - 1) / shape.page + 1);
      table_.assign(size_t(sequences * table_stride_), -1);  // entries past the end are never read
      for (int64_t s = 0; s < sequences; ++s) used += (batch.kv_len(s) + shape.page - 1) / shape.page;
      std::vector<int32_t> order(size_t(used + 2));
      std::iota(order.begin(), order.end(), 0);
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[bench.rng().below(i)]);
      Values ks(size_t((used + 2) * shape.page * kw), shape.stray),
          vs(size_t((used + 2) * shape.page * vw), shape.stray);
      size_t next = 0;
      if (in_8_bits()) return place_in_8_bits(order, used + 2);
      for (int64_t s = 0; s < sequences; ++s)
        for (int64_t p = 0; p < batch.kv_len(s); ++p) {
          int32_t& page = table_[size_t(s * table_stride_ + p / shape.page)];
          if (page < 0) page = order[next++];
          put(ks, page * shape.page + p % shape.page, k_of[size_t(s)], p, kw);
          put(vs, page * shape.page + p % shape.page, v_of[size_t(s)], p, vw);
        }
      k_ = &bench.in_values(t, {used + 2, shape.page, shape.hkv, shape.d}, ks);
      v_ = &bench.in_values(t, {used + 2, shape.page, shape.hkv, shape.dv}, vs);
      return;
    }
    ring_len_ = std::max<int64_t>(1, shape.ring_len);
    if (shape.ring_len == 0)
      for (int64_t past : batch.past_len) ring_len_ = std::max(ring_len_, past);
    Values ks(size_t((sequences + 1) * ring_len_ * kw), shape.stray),
        vs(size_t((sequences + 1) * ring_len_ * vw), shape.stray);
    Values fk(size_t(batch.tokens() * kw)), fv(size_t(batch.tokens() * vw));
    for (int64_t s = 0; s < sequences; ++s) {
      slot_.push_back(static_cast<int32_t>(sequences - s));  // slot 0 is nobody's
      const int64_t past = batch.past_len[size_t(s)];
      for (int64_t p = std::max<int64_t>(0, past - ring_len_); p < past; ++p) {
        put(ks, slot_[size_t(s)] * ring_len_ + p % ring_len_, k_of[size_t(s)], p, kw);
        put(vs, slot_[size_t(s)] * ring_len_ + p % ring_len_, v_of[size_t(s)], p, vw);
      }
      for (int64_t i = 0; i < batch.q_len(s); ++i) {
        put(fk, batch.cu_q[size_t(s)] + i, k_of[size_t(s)], past + i, kw);
        put(fv, batch.cu_q[size_t(s)] + i, v_of[size_t(s)], past + i, vw);
      }
    }
    k_ = &bench.in_values(t, {sequences + 1, ring_len_, shape.hkv, shape.d}, ks);
    v_ = &bench.in_values(t, {sequences + 1, ring_len_, shape.hkv, shape.dv}, vs);
    fresh_k_ = &bench.in_values(t, {batch.tokens(), shape.hkv, shape.d}, fk);
    fresh_v_ = &bench.in_values(t, {batch.tokens(), shape.hkv, shape.dv}, fv);
  }

  std::vector<int64_t> cu_kv_;
  std::vector<int32_t> table_, slot_;
  int64_t table_stride_ = 0, ring_len_ = 0;
  std::array<std::array<Tensor, 3>, 2> eight_;  // a side: codes of k and of v, scales
  const Pair *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *fresh_k_ = nullptr, *fresh_v_ = nullptr;
};

// Selections [n, Hkv, entries]: ascending distinct blocks, -1 anywhere between them, now and then a block
// that the query does not reach yet, now and then no block at all.
inline Values random_selection(AttentionInputs& in, int64_t block, int64_t entries) {
  Rng& rng = in.bench.rng();
  Values idx;
  for (int64_t row = 0; row < in.n(); ++row)
    for (int64_t g = 0; g < in.shape.hkv; ++g) {
      const int64_t last = in.position(row) / block, blocks = last + 1 + (rng.below(5) == 0);
      std::vector<int64_t> some;
      const uint64_t style = rng.below(8);
      for (int64_t j = 0; j < blocks; ++j)
        if (style != 0 && (style < 3 || rng.below(uint64_t(blocks)) < uint64_t(entries))) some.push_back(j);
      while (int64_t(some.size()) > entries) some.erase(some.begin() + int64_t(rng.below(some.size())));
      Values list(some.begin(), some.end());
      while (int64_t(list.size()) < entries)
        list.insert(style < 5 ? list.end() : list.begin() + int64_t(rng.below(list.size() + 1)), -1);
      idx.insert(idx.end(), list.begin(), list.end());
    }
  return idx;
}
inline Values all_blocks(const AttentionInputs& in, int64_t entries) {
  Values idx;
  for (int64_t i = 0; i < in.n() * in.shape.hkv; ++i)
    for (int64_t e = 0; e < entries; ++e) idx.push_back(double(e));
  return idx;
}

}  // namespace hysparse::test
