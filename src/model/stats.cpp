#include "model/stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace hysparse {
namespace {

template <class T>
std::vector<T> on_host(Runtime& rt, const TensorView& v) {
  std::vector<T> out(static_cast<size_t>(v.numel()));
  rt.memory.to_host(out.data(), v.data, v.bytes());
  return out;
}

template <class T>
double mean_sigmoid(Runtime& rt, const TensorView& logits) {
  double sum = 0;
  for (const T x : on_host<T>(rt, logits)) sum += 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
  return logits.numel() > 0 ? sum / static_cast<double>(logits.numel())
                            : std::numeric_limits<double>::quiet_NaN();
}

double gate_mean(Pass& p, const TensorView& logits) {
  return logits.dtype == DType::f64 ? mean_sigmoid<double>(p.rt, logits) : mean_sigmoid<float>(p.rt, logits);
}

// Both lists ascend; -1 is padding.
int64_t common(const int32_t* a, const int32_t* b, int64_t n) {
  int64_t i = 0, j = 0, found = 0;
  while (i < n && j < n) {
    if (a[i] < 0 || a[i] < b[j]) {
      ++i;
    } else if (b[j] < 0 || b[j] < a[i]) {
      ++j;
    } else {
      ++found, ++i, ++j;
    }
  }
  return found;
}

double overlap(Pass& p, const TensorView& idx) {
  const auto host = on_host<int32_t>(p.rt, idx);
  const int64_t heads = idx.dim(1), entries = idx.dim(2);
  double sum = 0;
  int64_t pairs = 0;
  for (int64_t s = 0; s < p.batch.sequences(); ++s) {
    for (int64_t t = p.batch.cu_q[size_t(s)] + 1; t < p.batch.cu_q[size_t(s) + 1]; ++t) {
      for (int64_t g = 0; g < heads; ++g) {
        const int32_t* now = host.data() + (t * heads + g) * entries;
        const int32_t* before = now - heads * entries;
        int64_t chosen = 0;
        for (int64_t e = 0; e < entries; ++e) chosen += now[e] >= 0;
        if (chosen == 0) continue;
        sum += static_cast<double>(common(now, before, entries)) / static_cast<double>(chosen);
        ++pairs;
      }
    }
  }
  return pairs > 0 ? sum / static_cast<double>(pairs) : std::numeric_limits<double>::quiet_NaN();
}

struct RouterStats {
  double entropy, balance, z;
};

// Host loops over what the router saw, in f64 (RouteBackward in kernels/ops.h has the formulas).
RouterStats router_stats(Pass& p, const LayerSaved& s) {
  const int64_t experts = s.router_logits.dim(1), k = s.chosen.dim(1);
  std::vector<double> logits;
  if (s.router_logits.dtype == DType::f64) {
    logits = on_host<double>(p.rt, s.router_logits);
  } else {
    const auto narrow = on_host<float>(p.rt, s.router_logits);
    logits.assign(narrow.begin(), narrow.end());
  }
  const auto chosen = on_host<int32_t>(p.rt, s.chosen), labels = on_host<int32_t>(p.rt, p.labels);
  RouterStats sum{0, 0, 0};
  int64_t all = 0;
  for (int64_t q = 0; q < p.batch.sequences(); ++q) {
    std::vector<double> load(static_cast<size_t>(experts), 0.0), share(load);
    int64_t m = 0;
    for (int64_t t = p.batch.cu_q[size_t(q)]; t < p.batch.cu_q[size_t(q) + 1]; ++t) {
      if (labels[size_t(t)] == kIgnoreLabel) continue;
      ++m;
      const double* x = logits.data() + t * experts;
      const double highest = *std::max_element(x, x + experts);
      double total = 0, exponentials = 0;
      for (int64_t e = 0; e < experts; ++e) {
        total += 1 / (1 + std::exp(-x[e]));
        exponentials += std::exp(x[e] - highest);
      }
      for (int64_t e = 0; e < experts && total > 0; ++e) {
        const double probability = 1 / (1 + std::exp(-x[e])) / total;
        share[size_t(e)] += probability;
        if (probability > 0) sum.entropy -= probability * std::log(probability);
      }
      const double lse = highest + std::log(exponentials);
      sum.z += lse * lse;
      for (int64_t j = 0; j < k; ++j) ++load[size_t(chosen[size_t(t * k + j)])];
    }
    for (int64_t e = 0; e < experts && m > 0; ++e)
      sum.balance +=
          load[size_t(e)] * share[size_t(e)] * static_cast<double>(experts) / static_cast<double>(k * m);
    all += m;
  }
  const auto count = static_cast<double>(all);
  const double most = experts > 1 ? std::log(static_cast<double>(experts)) : 1;
  if (all == 0) return {0, 0, 0};
  return {sum.entropy / count / most, sum.balance / count, sum.z / count};
}

}  // namespace

void collect_stats(Pass& p, int layer, Model::TrainStats& stats) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const LayerPlanEntry& entry = p.entry(layer);
  const LayerSaved& s = p.saved.layer(layer);
  const bool sparse = entry.kind == LayerKind::sparse;
  stats.sparse_gate_mean.push_back(sparse ? gate_mean(p, s.gate) : none);
  stats.window_gate_mean.push_back(sparse && entry.window > 0 ? gate_mean(p, s.window_gate) : none);
  stats.selection_overlap.push_back(entry.emits_scores ? overlap(p, p.kv_of(layer).selection.idx) : none);
  const RouterStats router = entry.moe ? router_stats(p, s) : RouterStats{none, none, none};
  stats.router_entropy.push_back(router.entropy);
  stats.balance_loss.push_back(router.balance);
  stats.z_loss.push_back(router.z);
}

}  // namespace hysparse
