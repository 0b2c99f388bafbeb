// An independent oracle of attention with explicit masks, and the error bounds of a kernel that computes it
// in another precision. It reads the logical values of AttentionInputs, not the KV layouts.
#pragma once

#include "parity/kernels/attention_case.h"

namespace hysparse::test {

// Whether query row `row`, at position t of its sequence, sees key p through KV head g.
using Mask = std::function<bool(int64_t row, int64_t t, int64_t g, int64_t p)>;

inline Mask causal_mask() {
  return [](int64_t, int64_t t, int64_t, int64_t p) { return p <= t; };
}
inline Mask window_mask(int64_t window) {
  return [window](int64_t, int64_t t, int64_t, int64_t p) { return p <= t && t - p < window; };
}
// idx [n, Hkv, entries]
inline Mask selection_mask(const Values& idx, int64_t hkv, int64_t entries, int64_t block) {
  return [=](int64_t row, int64_t t, int64_t g, int64_t p) {
    const auto from = idx.begin() + (row * hkv + g) * entries;
    return p <= t && std::find(from, from + entries, double(p / block)) != from + entries;
  };
}

// Values and, beside each, how far a kernel in dtype T (accumulating in A) may be off.
struct Checked {
  Values value, tolerance;
  explicit Checked(int64_t n = 0, double x = 0) : value(size_t(n), x), tolerance(size_t(n), 0.0) {}
};
inline ::testing::AssertionResult agrees(const Bench& b, const std::string& name, const Pair& p,
                                         const Checked& c) {
  return within(b.backend().name + ": " + name, p[1], p[0], c.tolerance);
}

struct ForwardOracle {
  Checked o, lse, scores;  // [n, Hq, dv], [n, Hq], [n, Hkv, nblocks]
};
struct BackwardOracle {
  Checked dq, dk, dv, dsinks;  // dk, dv: [kv rows, Hkv, d|dv], added to nothing
};

namespace oracle {

// One visible key of one query head.
struct Key {
  int64_t p;
  double logit, size;  // scale q.k and scale sum |q_i k_i|, to which its rounding error is proportional
};
inline std::vector<Key> visible_keys(const AttentionInputs& in, const Mask& mask, int64_t row, int64_t h,
                                     const Values& q) {
  const int64_t d = in.shape.d, g = h / in.group(), s = in.sequence_of(row), t = in.position(row);
  const double* query = q.data() + (row * in.shape.hq + h) * d;
  std::vector<Key> keys;
  for (int64_t p = 0; p < in.batch.kv_len(s); ++p) {
    if (!mask(row, t, g, p)) continue;
    const double* k = in.k_of[size_t(s)].data() + (p * in.shape.hkv + g) * d;
    Key key{p, 0, 0};
    for (int64_t c = 0; c < d; ++c) {
      key.logit += in.scale * query[c] * k[c];
      key.size += in.scale * std::fabs(query[c] * k[c]);
    }
    keys.push_back(key);
  }
  return keys;
}
// Errors of exp(logit - lse), relative, in units of eps(A).
inline double exp_error(double size, double lse) {
  return 4 * (2 + size + std::fabs(lse));
}
// A kernel may round probabilities and their gradients to T on their way into a product.
inline double product_error(const Bench& b) {
  return b.t() == b.acc() ? 0 : epsilon(b.t());
}

}  // namespace oracle

inline ForwardOracle forward_oracle(const AttentionInputs& in, const Mask& mask, const Values& sinks,
                                    int64_t block = 0, int64_t nblocks = 0) {
  const int64_t n = in.n(), hq = in.shape.hq, dv = in.shape.dv, hkv = in.shape.hkv;
  const double eps = epsilon(in.bench.acc()), eps_t = oracle::product_error(in.bench);
  ForwardOracle r{Checked(n * hq * dv), Checked(n * hq, -kInf), Checked(n * hkv * nblocks, -kInf)};
  const Values q = in.q().ref();
  for (int64_t row = 0; row < n; ++row)
    for (int64_t h = 0; h < hq; ++h) {
      const int64_t g = h / in.group(), s = in.sequence_of(row);
      const double sink = sinks.empty() ? -kInf : sinks[size_t(h)];
      const std::vector<oracle::Key> keys = oracle::visible_keys(in, mask, row, h, q);
      double top = sink, size = std::isinf(sink) ? 0 : std::fabs(sink), sum = 0;
      for (const oracle::Key& k : keys) top = std::max(top, k.logit), size = std::max(size, k.size);
      if (top == -kInf) continue;
      if (sink > -kInf) sum += std::exp(sink - top);
      for (const oracle::Key& k : keys) sum += std::exp(k.logit - top);
      const double lse = top + std::log(sum), error = eps * oracle::exp_error(size, lse);
      r.lse.value[size_t(row * hq + h)] = lse;
      r.lse.tolerance[size_t(row * hq + h)] = error;
      for (const oracle::Key& k : keys) {
        const double* v = in.v_of[size_t(s)].data() + (k.p * hkv + g) * dv;
        const double prob = std::exp(k.logit - lse);
        for (int64_t c = 0; c < dv; ++c) {
          r.o.value[size_t((row * hq + h) * dv + c)] += prob * v[c];
          r.o.tolerance[size_t((row * hq + h) * dv + c)] += (error + eps_t) * prob * std::fabs(v[c]);
        }
        if (nblocks == 0) continue;
        const size_t at = size_t((row * hkv + g) * nblocks + k.p / block);
        r.scores.value[at] = std::max(r.scores.value[at], k.logit - lse);
        r.scores.tolerance[at] = std::max(r.scores.tolerance[at], error);
      }
    }
  return r;
}

// o, lse and d_o are the inputs that both sides get.
inline BackwardOracle backward_oracle(const AttentionInputs& in, const Mask& mask, const Values& sinks,
                                      const Values& o, const Values& lse, const Values& d_o) {
  const int64_t n = in.n(), hq = in.shape.hq, d = in.shape.d, dv = in.shape.dv, hkv = in.shape.hkv;
  const double eps = epsilon(in.bench.acc()), eps_t = oracle::product_error(in.bench);
  BackwardOracle r{Checked(n * hq * d), Checked(in.kv_rows() * hkv * d), Checked(in.kv_rows() * hkv * dv),
                   Checked(hq)};
  const Values q = in.q().ref();
  const auto add = [](Checked& to, int64_t at, double x, double error) {
    to.value[size_t(at)] += x;
    to.tolerance[size_t(at)] += error;
  };
  for (int64_t row = 0; row < n; ++row)
    for (int64_t h = 0; h < hq; ++h) {
      const int64_t g = h / in.group(), s = in.sequence_of(row), at = row * hq + h;
      const double l = lse[size_t(at)];
      if (l == -kInf) continue;
      double delta = 0, delta_size = 0;
      for (int64_t c = 0; c < dv; ++c) {
        delta += o[size_t(at * dv + c)] * d_o[size_t(at * dv + c)];
        delta_size += std::fabs(o[size_t(at * dv + c)] * d_o[size_t(at * dv + c)]);
      }
      for (const oracle::Key& k : oracle::visible_keys(in, mask, row, h, q)) {
        const int64_t kv_row = (in.cu_kv(s) + k.p) * hkv + g;
        const double* key = in.k_of[size_t(s)].data() + (k.p * hkv + g) * d;
        const double* value = in.v_of[size_t(s)].data() + (k.p * hkv + g) * dv;
        const double prob = std::exp(k.logit - l), error = eps * oracle::exp_error(k.size, l) + eps_t;
        double dp = 0, dp_size = 0;
        for (int64_t c = 0; c < dv; ++c) {
          dp += d_o[size_t(at * dv + c)] * value[c];
          dp_size += std::fabs(d_o[size_t(at * dv + c)] * value[c]);
          add(r.dv, kv_row * dv + c, prob * d_o[size_t(at * dv + c)],
              error * prob * std::fabs(d_o[size_t(at * dv + c)]));
        }
        const double ds = in.scale * prob * (dp - delta), ds_size = in.scale * prob * (dp_size + delta_size);
        for (int64_t c = 0; c < d; ++c) {
          const double query = q[size_t(at * d + c)];
          add(r.dq, at * d + c, ds * key[c], error * ds_size * std::fabs(key[c]));
          add(r.dk, kv_row * d + c, ds * query, error * ds_size * std::fabs(query));
        }
      }
      if (sinks.empty() || sinks[size_t(h)] == -kInf) continue;
      const double prob = std::exp(sinks[size_t(h)] - l);
      add(r.dsinks, h, -prob * delta,
          eps * oracle::exp_error(std::fabs(sinks[size_t(h)]), l) * prob * delta_size);
    }
  return r;
}

}  // namespace hysparse::test
