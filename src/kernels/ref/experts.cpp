// Mixture of experts: the router, the tables of its assignments, and products over groups of rows.
#include <algorithm>
#include <numeric>

#include "kernels/checks.h"
#include "kernels/quantise.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {
namespace {

// Rows [begin, end) of expert e.
struct Group {
  int64_t begin, end;
  Group(const ExpertTables& t, int64_t e)
      : begin(t.offset.as<int32_t>()[e]), end(t.offset.as<int32_t>()[e + 1]) {}
};

double denominator(const std::vector<double>& s, const int32_t* chosen, int64_t k) {
  double sum = 1e-20;
  for (int64_t j = 0; j < k; ++j) sum += s[size_t(chosen[j])];
  return sum;
}
std::vector<double> scores(const TensorView& logits, int64_t t) {
  std::vector<double> s(static_cast<size_t>(logits.dim(1)));
  for (size_t e = 0; e < s.size(); ++e) s[e] = sigmoid(at(logits, t)[e]);
  return s;
}

}  // namespace

// s = sigmoid(logits); the k largest s + bias; w_j = scale s_j (/ sum of the chosen s)
void RefOps::route(Runtime&, const RouteForward& a) const {
  require_f64(check_args(a), "route");
  const int64_t experts = a.logits.dim(1), k = a.experts.dim(1);
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t t = 0; t < a.logits.dim(0); ++t) {
    const std::vector<double> s = scores(a.logits, t);
    int32_t* chosen = a.experts.as<int32_t>() + t * k;
    if (!a.pinned) {
      std::iota(order.begin(), order.end(), 0);
      const auto rank = [&](int32_t e) {
        const double r = s[size_t(e)] + a.bias.as<double>()[e];
        return std::isnan(r) ? -kInf : r;
      };
      std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return rank(x) > rank(y); });
      std::copy_n(order.begin(), k, chosen);
      std::sort(chosen, chosen + k);
    }
    const double by = a.normalise ? denominator(s, chosen, k) : 1;
    for (int64_t j = 0; j < k; ++j) at(a.weights, t)[j] = a.scale * s[size_t(chosen[j])] / by;
  }
}

// dw_j / ds_i = scale (delta_ij - s_j / sum) / sum over the chosen; ds / dlogit = s (1 - s).
// balance: p_e = s_e / sum_j s_j, dL/dp_e = b_e = E / (k m) c_e, dL/ds_e = (b_e - sum_j b_j p_j) / sum_j s_j.
// z: 2 logsumexp softmax.
void RefOps::route_backward(Runtime&, const RouteBackward& a) const {
  require_f64(check_args(a), "route_backward");
  const int64_t experts = a.logits.dim(1), k = a.experts.dim(1);
  const auto counts = [&](int64_t t) { return a.labels && a.labels.as<int32_t>()[t] != kIgnoreLabel; };
  for (int64_t q = 0; q < a.batch.sequences(); ++q) {
    const int64_t begin = a.batch.cu_q[size_t(q)], end = a.batch.cu_q[size_t(q) + 1];
    std::vector<double> b(static_cast<size_t>(experts), 0.0);
    double m = 0;
    for (int64_t t = begin; t < end; ++t) {
      if (!counts(t)) continue;
      ++m;
      for (int64_t j = 0; j < k; ++j) ++b[size_t(a.experts.as<int32_t>()[t * k + j])];
    }
    for (double& c : b) c *= m > 0 ? static_cast<double>(experts) / (static_cast<double>(k) * m) : 0;
    for (int64_t t = begin; t < end; ++t) {
      const std::vector<double> s = scores(a.logits, t);
      const int32_t* chosen = a.experts.as<int32_t>() + t * k;
      std::vector<double> ds(static_cast<size_t>(experts), 0.0);
      double mean = 0;
      const double by = a.normalise ? denominator(s, chosen, k) : 1;
      if (a.normalise)
        for (int64_t j = 0; j < k; ++j) mean += at(a.dweights, t)[j] * s[size_t(chosen[j])] / by;
      for (int64_t j = 0; j < k; ++j) ds[size_t(chosen[j])] = a.scale * (at(a.dweights, t)[j] - mean) / by;
      if (counts(t) && a.balance != 0) {
        const double sum = std::accumulate(s.begin(), s.end(), 0.0);
        double expected = 0;
        for (size_t e = 0; e < s.size(); ++e) expected += b[e] * s[e] / sum;
        if (sum > 0)
          for (size_t e = 0; e < s.size(); ++e) ds[e] += a.balance * (b[e] - expected) / sum;
      }
      double* dlogits = at(a.dlogits, t);
      for (size_t e = 0; e < s.size(); ++e) dlogits[e] = ds[e] * s[e] * (1 - s[e]);
      if (counts(t) && a.z != 0) {
        const double* x = at(a.logits, t);
        const double highest = *std::max_element(x, x + experts);
        double sum = 0;
        for (int64_t e = 0; e < experts; ++e) sum += std::exp(x[e] - highest);
        const double lse = highest + std::log(sum);
        for (int64_t e = 0; e < experts; ++e) dlogits[e] += a.z * 2 * lse * std::exp(x[e] - lse);
      }
    }
  }
}

void RefOps::expert_tables(Runtime&, const BuildExpertTables& a) const {
  check_args(a);
  const int64_t experts = a.tables.experts(), k = a.tables.active(), rows = a.experts.numel();
  const int32_t* chosen = a.experts.as<int32_t>();
  int32_t row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    a.tables.offset.as<int32_t>()[e] = row;
    for (int64_t i = 0; i < rows; ++i) {
      if (chosen[i] != e) continue;
      a.tables.source.as<int32_t>()[row] = static_cast<int32_t>(i);
      a.tables.slot.as<int32_t>()[i] = row++;
      if (a.load) a.load.as<int64_t>()[e] += !a.labels || a.labels.as<int32_t>()[i / k] != kIgnoreLabel;
    }
  }
  a.tables.offset.as<int32_t>()[experts] = row;
  HYSPARSE_CHECK(row == rows, "expert_tables: an expert is not in [0, {})", experts);
}

void RefOps::expert_gather(Runtime&, const ExpertGather& a) const {
  require_f64(check_args(a), "expert_gather");
  for (int64_t r = 0; r < a.y.dim(0); ++r)
    std::copy_n(at(a.x, a.tables.source.as<int32_t>()[r] / a.tables.active()), a.y.dim(1), at(a.y, r));
}

void RefOps::expert_sum(Runtime&, const ExpertSum& a) const {
  require_f64(check_args(a), "expert_sum");
  const int64_t k = a.tables.active();
  for (int64_t t = 0; t < a.y.dim(0); ++t) {
    if (!a.accumulate) std::fill_n(at(a.y, t), a.y.dim(1), 0.0);
    for (int64_t j = 0; j < k; ++j)
      axpy(1, at(a.x, a.tables.slot.as<int32_t>()[t * k + j]), at(a.y, t), a.y.dim(1));
  }
}

void RefOps::grouped_linear(Runtime& rt, const GroupedLinear& a) const {
  require_f64(check_args(a), "grouped_linear");
  rt.pool.parallel_for(a.tables.experts(), [&](int64_t e, int) {
    const Weight& w = a.weights[size_t(e)];
    const int64_t in = w.value.dim(1);
    const Group g(a.tables, e);
    std::vector<double> wide(static_cast<size_t>(in));
    for (int64_t o = 0; o < w.value.dim(0) && g.begin < g.end; ++o) {
      widen_row(w, o, wide.data());
      for (int64_t r = g.begin; r < g.end; ++r) at(a.y, r)[o] = dot(at(a.x, r), wide.data(), in);
    }
  });
}

void RefOps::grouped_linear_backward(Runtime& rt, const GroupedLinearBackward& a) const {
  require_f64(check_args(a), "grouped_linear_backward");
  rt.pool.parallel_for(a.tables.experts(), [&](int64_t e, int) {
    const Weight& weight = a.weights[size_t(e)];
    const TensorView& w = weight.value;
    for (Group g(a.tables, e); g.begin < g.end; ++g.begin) {
      const double* dy = at(a.dy, g.begin);
      if (a.dx) {
        double* dx = at(a.dx, g.begin);
        if (!a.accumulate) std::fill_n(dx, w.dim(1), 0.0);
        for (int64_t o = 0; o < w.dim(0); ++o) axpy(dy[o], at(w, o), dx, w.dim(1));
      }
      if (weight.grad)
        for (int64_t o = 0; o < w.dim(0); ++o) axpy(dy[o], at(a.x, g.begin), at(weight.grad, o), w.dim(1));
    }
  });
}

// h = w silu(gate) up
void RefOps::expert_swiglu(Runtime&, const ExpertSwiglu& a) const {
  require_f64(check_args(a), "expert_swiglu");
  for (int64_t r = 0; r < a.h.dim(0); ++r) {
    const double w = a.weights.as<double>()[a.tables.source.as<int32_t>()[r]];
    for (int64_t i = 0; i < a.h.dim(1); ++i) {
      const double g = at(a.gate, r)[i];
      at(a.h, r)[i] = w * g * sigmoid(g) * at(a.up, r)[i];
    }
  }
}

// dw = sum_i dh_i silu(g_i) up_i; the rest as swiglu_backward with w dh
void RefOps::expert_swiglu_backward(Runtime&, const ExpertSwigluBackward& a) const {
  require_f64(check_args(a), "expert_swiglu_backward");
  for (int64_t r = 0; r < a.dh.dim(0); ++r) {
    const int32_t i = a.tables.source.as<int32_t>()[r];
    const double w = a.weights.as<double>()[i];
    double dw = 0;
    for (int64_t c = 0; c < a.dh.dim(1); ++c) {
      const double g = at(a.gate, r)[c], up = at(a.up, r)[c], dh = at(a.dh, r)[c], s = sigmoid(g);
      dw += dh * g * s * up;
      at(a.dgate, r)[c] = w * dh * up * s * (1 + g * (1 - s));
      at(a.dup, r)[c] = w * dh * g * s;
    }
    a.dweights.as<double>()[i] = dw;
  }
}

}  // namespace hysparse::ref
