// Full, sparse and window attention. They differ only in which keys a query row sees; `Visible` says which,
// and one forward and one backward serve all three.
#include <algorithm>
#include <functional>

#include "kernels/checks.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {
namespace {

// Key positions (ascending) that query row `row`, at position t, sees through KV head g.
using Visible = std::function<std::vector<int64_t>(int64_t row, int64_t t, int64_t g)>;

Visible causal() {
  return [](int64_t, int64_t t, int64_t) {
    std::vector<int64_t> keys;
    for (int64_t p = 0; p <= t; ++p) keys.push_back(p);
    return keys;
  };
}
Visible sliding(int64_t window) {
  return [window](int64_t, int64_t t, int64_t) {
    std::vector<int64_t> keys;
    for (int64_t p = std::max<int64_t>(0, t - window + 1); p <= t; ++p) keys.push_back(p);
    return keys;
  };
}
// The tokens p <= t of the blocks in I[g, t, :] (spec section 4).
Visible selected(const Selection& selection) {
  return [&selection](int64_t row, int64_t t, int64_t g) {
    const TensorView& idx = selection.idx;
    const int32_t* entry = idx.as<int32_t>() + row * idx.stride[0] + g * idx.stride[1];
    std::vector<int64_t> blocks;
    for (int64_t e = 0; e < selection.entries(); ++e)
      if (entry[e] >= 0) blocks.push_back(entry[e]);
    std::sort(blocks.begin(), blocks.end());
    HYSPARSE_CHECK(std::adjacent_find(blocks.begin(), blocks.end()) == blocks.end(),
                   "sparse attention: the selection of row {}, head {} names a block twice", row, g);
    std::vector<int64_t> keys;
    for (int64_t block : blocks)
      for (int64_t p = block * selection.block; p < (block + 1) * selection.block && p <= t; ++p)
        keys.push_back(p);
    return keys;
  };
}

// A row of n elements; of pages in 8 bits code * scale, in `wide`. which: 0 k, 1 v.
const double* row_of(const KvView& kv, const RaggedBatch& batch, int64_t s, int64_t p, int64_t g, int which,
                     std::vector<double>& wide) {
  const KvView::Row r = kv.row(batch, s, p);
  const TensorView& t = which == 0 ? *r.k : *r.v;
  const int64_t at = which == 0 ? r.k_offset + g * r.k_head_stride : r.v_offset + g * r.v_head_stride;
  if (!kv.in_8_bits()) return t.as<double>() + at;
  const int32_t page = kv.page_table[s * kv.page_table_stride + p / kv.page_size];
  const TensorView of_head = kv.scales.at(page).at(p % kv.page_size).at(g);
  const double scale = static_cast<float>(of_head.as<bf16>()[which]);
  wide.resize(static_cast<size_t>(t.dim(t.rank - 1)));
  for (size_t i = 0; i < wide.size(); ++i)
    wide[i] = scale * (t.dtype == DType::i8 ? static_cast<double>(t.as<int8_t>()[at + int64_t(i)])
                                            : static_cast<float>(t.as<f8>()[at + int64_t(i)]));
  return wide.data();
}
const double* key(const KvView& kv, const RaggedBatch& batch, int64_t s, int64_t p, int64_t g,
                  std::vector<double>& wide) {
  if (kv.kind == KvView::Kind::ring)
    HYSPARSE_CHECK(p >= batch.past_len[size_t(s)] - kv.ring_len, "position {} has left the ring", p);
  if (kv.kind == KvView::Kind::paged) {
    const int32_t page = kv.page_table[s * kv.page_table_stride + p / kv.page_size];
    HYSPARSE_CHECK(page >= 0 && page < kv.k.dim(0), "page {} of {}", page, kv.k.dim(0));
  }
  return row_of(kv, batch, s, p, g, 0, wide);
}
const double* value(const KvView& kv, const RaggedBatch& batch, int64_t s, int64_t p, int64_t g,
                    std::vector<double>& wide) {
  return row_of(kv, batch, s, p, g, 1, wide);
}

// For every query head h over the keys that it sees:
//   s_p = scale q . k_p,  lse = log(exp(sink) + sum_p exp(s_p)),  o = sum_p exp(s_p - lse) v_p
// and, where block scores are wanted, S[g, t, j] = max over heads of g and p in block j of s_p - lse (Eq. 3).
void attend(Runtime& rt, const RaggedBatch& batch, const TensorView& q, const KvView& kv, double scale,
            const TensorView& sinks, const Visible& visible, const TensorView& o, const TensorView& lse,
            const TensorView& block_scores = {}, int64_t block = 0) {
  const int64_t hkv = kv.heads(), r = q.dim(1) / hkv, d = q.dim(2), dv = kv.v_head_dim();
  const std::vector<int64_t> s_of = sequence_of_row(batch);
  rt.pool.parallel_for(batch.tokens(), [&](int64_t row, int) {
    const int64_t s = s_of[size_t(row)], t = position_of(batch, s, row);
    std::vector<double> wide;
    for (int64_t g = 0; g < hkv; ++g) {
      const std::vector<int64_t> keys = visible(row, t, g);
      double* score = block_scores ? at(block_scores, row, g) : nullptr;
      if (score) std::fill_n(score, block_scores.dim(2), -kInf);
      for (int64_t h = g * r; h < (g + 1) * r; ++h) {
        const double sink = sinks ? sinks.as<double>()[h] : -kInf;
        std::vector<double> logit;
        double largest = sink;
        for (int64_t p : keys) {
          logit.push_back(scale * dot(at(q, row, h), key(kv, batch, s, p, g, wide), d));
          largest = std::max(largest, logit.back());
        }
        double* out = at(o, row, h);
        std::fill_n(out, dv, 0.0);
        double& log_sum = at(lse, row)[h];
        log_sum = -kInf;
        if (largest == -kInf) continue;  // no key and no sink
        double sum = std::exp(sink - largest);
        for (double x : logit) sum += std::exp(x - largest);
        log_sum = largest + std::log(sum);
        for (size_t i = 0; i < keys.size(); ++i) {
          axpy(std::exp(logit[i] - largest) / sum, value(kv, batch, s, keys[i], g, wide), out, dv);
          if (score) score[keys[i] / block] = std::max(score[keys[i] / block], logit[i] - log_sum);
        }
      }
    }
  });
}

// What is common to the three backward structs.
struct BackwardArgs {
  const RaggedBatch& batch;
  const TensorView& q;
  const KvView& kv;
  double scale;
  const TensorView &sinks, &o, &lse, &d_o, &dq, &dk, &dv, &dsinks;
};

// p = exp(s - lse);  ds = p (d_o . v - d_o . o);  dq = scale sum ds k;  dk += scale ds q;  dv += p d_o;
// dsink += -exp(sink - lse) (d_o . o).  The lse includes the sink, so nothing else changes with one.
void attend_backward(Runtime& rt, const BackwardArgs& a, const Visible& visible) {
  const int64_t hkv = a.kv.heads(), r = a.q.dim(1) / hkv, d = a.q.dim(2), dv = a.kv.v_head_dim();
  const std::vector<int64_t> s_of = sequence_of_row(a.batch);
  rt.pool.parallel_for(hkv, [&](int64_t g, int) {  // a KV head owns its columns of dk, dv and its heads of dq
    std::vector<double> unused;                    // no 8 bits here
    for (int64_t row = 0; row < a.batch.tokens(); ++row) {
      const int64_t s = s_of[size_t(row)], t = position_of(a.batch, s, row);
      const std::vector<int64_t> keys = visible(row, t, g);
      for (int64_t h = g * r; h < (g + 1) * r; ++h) {
        const double* q = at(a.q, row, h);
        const double* d_o = at(a.d_o, row, h);
        double* dq = at(a.dq, row, h);
        const double lse = at(a.lse, row)[h], delta = dot(d_o, at(a.o, row, h), dv);
        std::fill_n(dq, d, 0.0);
        if (lse == -kInf) continue;
        for (int64_t p : keys) {
          const double* k = key(a.kv, a.batch, s, p, g, unused);
          const double prob = std::exp(a.scale * dot(q, k, d) - lse);
          const double ds = prob * (dot(d_o, value(a.kv, a.batch, s, p, g, unused), dv) - delta);
          const int64_t kv_row = a.kv.cu_kv[s] + p;
          axpy(a.scale * ds, k, dq, d);
          axpy(a.scale * ds, q, at(a.dk, kv_row, g), d);
          axpy(prob, d_o, at(a.dv, kv_row, g), dv);
        }
        if (a.dsinks) a.dsinks.as<double>()[h] -= std::exp(a.sinks.as<double>()[h] - lse) * delta;
      }
    }
  });
}

}  // namespace

void RefOps::attention(Runtime& rt, const AttentionForward& a) const {
  require_f64(check_args(a), "attention");
  attend(rt, a.batch, a.q, a.kv, a.scale, {}, causal(), a.o, a.lse, a.block_scores, a.score_block);
}
void RefOps::attention_backward(Runtime& rt, const AttentionBackward& a) const {
  require_f64(check_args(a), "attention_backward");
  attend_backward(rt, {a.batch, a.q, a.kv, a.scale, {}, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, {}}, causal());
}

void RefOps::sparse_attention(Runtime& rt, const SparseAttentionForward& a) const {
  require_f64(check_args(a), "sparse_attention");
  attend(rt, a.batch, a.q, a.kv, a.scale, a.sinks, selected(a.selection), a.o, a.lse);
}
void RefOps::sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) const {
  require_f64(check_args(a), "sparse_attention_backward");
  attend_backward(rt, {a.batch, a.q, a.kv, a.scale, a.sinks, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, a.dsinks},
                  selected(a.selection));
}

void RefOps::window_attention(Runtime& rt, const WindowAttentionForward& a) const {
  require_f64(check_args(a), "window_attention");
  attend(rt, a.batch, a.q, a.kv, a.scale, a.sinks, sliding(a.window), a.o, a.lse);
}
void RefOps::window_attention_backward(Runtime& rt, const WindowAttentionBackward& a) const {
  require_f64(check_args(a), "window_attention_backward");
  attend_backward(rt, {a.batch, a.q, a.kv, a.scale, a.sinks, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, a.dsinks},
                  sliding(a.window));
}

}  // namespace hysparse::ref
