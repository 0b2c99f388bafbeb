// A batch with queries, keys and values in every layout, twice: in f64 for the reference and in T for the CPU
// kernels. Whatever lies outside a sequence is NaN.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/impl.h"
#include "kernels/ref/ref.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {

struct Lengths {
  int64_t q, past = 0;
};
struct AttnShape {
  std::vector<Lengths> sequences;
  int64_t hq = 4, hkv = 2, d = 16, dv = 16;
  KvView::Kind kind = KvView::Kind::contiguous;
  int64_t page_size = 64;
  int64_t ring_len = 0;
  double sigma = 1;  // of q and k

  std::string text() const {
    std::string s = fmt::format("{}:{} heads, d {}/{}, kind {}, sequences", hq, hkv, d, dv, int(kind));
    for (const Lengths& l : sequences) s += fmt::format(" {}+{}", l.past, l.q);
    return s;
  }
};

class AttnCase {
 public:
  AttnCase(const AttnShape& shape, DType t, uint64_t seed = 1, bool gaps = false)
      : shape(shape), t(t), gaps(gaps), rng(seed) {
    for (const Lengths& l : shape.sequences) batch.add_sequence(l.q, l.past, static_cast<int64_t>(seed % 7));
    batch.step = seed;
    q = input({n(), shape.hq, shape.d}, shape.sigma);
    make_kv();
  }

  int64_t n() const { return batch.tokens(); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.d)); }
  const KvView& kv(int side) const { return view_[side]; }
  int64_t kv_rows() const { return view_[0].k.dim(0); }

  Pair input(const std::vector<int64_t>& dims, double sigma = 1) {
    return of(t, dims, normals(rng, count(dims), sigma, t));
  }
  Pair input_acc(const std::vector<int64_t>& dims, double sigma = 1) {
    return of(DType::f32, dims, normals(rng, count(dims), sigma, DType::f32));
  }
  Pair of(DType type, const std::vector<int64_t>& dims, const std::vector<double>& x) {
    Pair p(type, dims, gaps, host_memory());
    p.set(x);
    return p;
  }
  Pair output(DType type, const std::vector<int64_t>& dims) {
    Pair p(type, dims, gaps, host_memory());
    p.poison();
    return p;
  }

  // Runs fn(side, runtime): side 0 on the reference, side 1 on the CPU kernels with this many threads.
  template <class F>
  void run(const F& fn, int threads = 2) {
    run_side(0, 1, fn);
    run_side(1, threads, fn);
  }
  template <class F>
  static void run_side(int side, int threads, const F& fn) {
    ThreadPool pool(threads);
    Arena scratch;
    // The kernels of this folder are called as free functions; `ops` serves the reference only.
    Runtime rt{pool, scratch, ref_ops(), host_memory()};
    fn(side, rt);
  }

  // A random selection: up to `entries` distinct causal blocks a token and head, -1 in between; some rows
  // empty.
  Pair selection(int64_t block, int64_t entries, bool everything = false) {
    std::vector<double> idx;
    for (int64_t s = 0; s < batch.sequences(); ++s)
      for (int64_t i = 0; i < batch.q_len(s); ++i)
        for (int64_t g = 0; g < shape.hkv; ++g) {
          const int64_t have = (batch.past_len[size_t(s)] + i) / block + 1;
          std::vector<double> row(size_t(entries), -1.0);
          if (everything) {
            for (int64_t j = 0; j < std::min(have, entries); ++j) row[size_t(j)] = double(j);
          } else if (rng.below(10) != 0) {
            std::vector<double> all(static_cast<size_t>(have));
            std::iota(all.begin(), all.end(), 0.0);
            for (size_t j = all.size(); j > 1; --j) std::swap(all[j - 1], all[rng.below(j)]);
            const size_t take = std::min<size_t>(all.size(), rng.below(uint64_t(entries) + 1));
            std::sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(take));
            // Spread over the entries with -1 between them.
            size_t left = take;
            for (size_t e = 0; e < row.size() && left > 0; ++e)
              if (row.size() - e == left || rng.below(2) == 0) row[e] = all[take - left--];
          }
          idx.insert(idx.end(), row.begin(), row.end());
        }
    return of(DType::i32, {n(), shape.hkv, entries}, idx);
  }

  // `ulps` units of f32 at the size of the largest reference value (of `floor` at least), plus rounding to
  // the output's dtype.
  ::testing::AssertionResult close(const std::string& name, const Pair& p, double ulps = 64,
                                   double floor = 1e-3) const {
    double largest = floor;
    for (double x : p.ref())
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    std::vector<double> tolerance(p.ref().size(),
                                  ulps * 0x1p-23 * largest * std::max(1.0, shape.sigma * shape.sigma));
    return within(shape.text() + ": " + name, p[1], p[0], tolerance);
  }

  const AttnShape shape;
  const DType t;
  const bool gaps;
  Rng rng;
  RaggedBatch batch;
  Pair q;

 private:
  static int64_t count(const std::vector<int64_t>& dims) {
    int64_t c = 1;
    for (int64_t d : dims) c *= d;
    return c;
  }
  const Pair& poisoned(const std::vector<int64_t>& dims) {
    memory_.push_back(output(t, dims));
    return memory_.back();
  }
  void make_kv() {
    const int64_t s_count = batch.sequences();
    const auto make = [&](TensorView KvView::*member, const std::vector<int64_t>& dims) {
      const Pair& p = poisoned(dims);
      for (int i = 0; i < 2; ++i) view_[i].*member = p[i];
    };
    for (KvView& view : view_) view.kind = shape.kind;
    if (shape.kind == KvView::Kind::contiguous) {
      cu_kv_.push_back(0);
      for (int64_t s = 0; s < s_count; ++s)
        cu_kv_.push_back(cu_kv_.back() + batch.kv_len(s) + (s % 2 ? 0 : 3));
      make(&KvView::k, {cu_kv_.back(), shape.hkv, shape.d});
      make(&KvView::v, {cu_kv_.back(), shape.hkv, shape.dv});
    } else if (shape.kind == KvView::Kind::paged) {
      const int64_t stride = (batch.max_kv_len() + shape.page_size - 1) / shape.page_size + 1;
      int64_t pages = 1;
      table_.assign(size_t(s_count * stride), -1);
      for (int64_t s = 0; s < s_count; ++s)
        for (int64_t p = 0; p * shape.page_size < batch.kv_len(s); ++p)
          table_[size_t(s * stride + p)] = int32_t(pages++);
      for (int32_t& page : table_)  // not in order
        if (page > 0) page = static_cast<int32_t>(pages - page);
      make(&KvView::k, {pages, shape.page_size, shape.hkv, shape.d});
      make(&KvView::v, {pages, shape.page_size, shape.hkv, shape.dv});
      for (KvView& view : view_) {
        view.page_table = table_.data();
        view.page_table_stride = stride;
        view.page_size = shape.page_size;
      }
    } else {
      for (int64_t s = 0; s < s_count; ++s) slot_.push_back(static_cast<int32_t>(s_count - s));
      make(&KvView::k, {s_count + 1, shape.ring_len, shape.hkv, shape.d});
      make(&KvView::v, {s_count + 1, shape.ring_len, shape.hkv, shape.dv});
      make(&KvView::fresh_k, {n(), shape.hkv, shape.d});
      make(&KvView::fresh_v, {n(), shape.hkv, shape.dv});
      for (KvView& view : view_) {
        view.slot = slot_.data();
        view.ring_len = shape.ring_len;
      }
    }
    for (KvView& view : view_) view.cu_kv = cu_kv_.empty() ? nullptr : cu_kv_.data();
    for (int64_t s = 0; s < s_count; ++s)
      for (int64_t p = 0; p < batch.kv_len(s); ++p) {
        const int64_t past = batch.past_len[size_t(s)];
        if (shape.kind == KvView::Kind::ring && p < past - shape.ring_len) continue;
        for (int64_t g = 0; g < shape.hkv; ++g) {
          for (int64_t c = 0; c < shape.d; ++c)
            put(s, p, g, c, round_to(t, shape.sigma * rng.normal()), true);
          for (int64_t c = 0; c < shape.dv; ++c) put(s, p, g, c, round_to(t, rng.normal()), false);
        }
      }
  }
  void put(int64_t s, int64_t p, int64_t g, int64_t c, double x, bool key) {
    for (const KvView& view : view_) {
      const KvView::Row row = view.row(batch, s, p);
      if (key)
        store(*row.k, row.k_offset + g * row.k_head_stride + c, x);
      else
        store(*row.v, row.v_offset + g * row.v_head_stride + c, x);
    }
  }

  KvView view_[2];
  std::vector<int64_t> cu_kv_;
  std::vector<int32_t> table_, slot_;
  std::deque<Pair> memory_;
};

// Every dispatch level in turn, then the best again.
template <class F>
void at_every_level(const F& fn) {
  for (const std::string& level : cpu_dispatch_levels()) {
    SCOPED_TRACE(level);
    force_cpu_dispatch_level(level);
    fn();
  }
  force_cpu_dispatch_level("");
}

}  // namespace hysparse::test
