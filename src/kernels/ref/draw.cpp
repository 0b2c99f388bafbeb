// Drawing a token: the whole vocabulary sorted, sums in order.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/checks.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int32_t draw(const std::vector<double>& x, const DrawSettings& s) {
  const auto n = static_cast<int64_t>(x.size());
  if (std::any_of(x.begin(), x.end(), [](double v) { return !(v < kInfinity); })) return -1;
  std::vector<int64_t> rank(x.size());  // ids, best first
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(),
                   [&](int64_t i, int64_t j) { return x[size_t(i)] > x[size_t(j)]; });
  const double peak = x[size_t(rank[0])];
  if (peak == -kInfinity) return -1;
  if (s.temperature == 0) return static_cast<int32_t>(rank[0]);
  if (s.top_k > 0 && s.top_k < n) rank.resize(size_t(s.top_k));
  const auto weight = [&](int64_t id) { return std::exp((x[size_t(id)] - peak) / s.temperature); };
  if (s.top_p < 1) {
    double total = 0, sum = 0;
    for (const int64_t id : rank) total += weight(id);
    size_t kept = 0;
    while (kept < rank.size() && sum < s.top_p * total) sum += weight(rank[kept++]);
    rank.resize(kept);
  }
  std::erase_if(rank, [&](int64_t id) { return weight(id) < s.min_p; });
  std::sort(rank.begin(), rank.end());
  double total = 0, sum = 0;
  for (const int64_t id : rank) total += weight(id);
  for (const int64_t id : rank)
    if ((sum += weight(id)) > s.uniform * total) return static_cast<int32_t>(id);
  return static_cast<int32_t>(rank.back());
}

}  // namespace

bool RefOps::draw_tokens(Runtime&, const DrawTokens& a) const {
  check_args(a);
  for (int64_t i = 0; i < a.logits.dim(0); ++i) {
    std::vector<double> x(size_t(a.rows[size_t(i)].vocab));
    for (int64_t j = 0; j < std::ssize(x); ++j)
      x[size_t(j)] = a.logits.dtype == DType::f64 ? a.logits.at(i).as<double>()[j]
                                                  : double(a.logits.at(i).as<float>()[j]);
    a.tokens.as<int32_t>()[i] = draw(x, a.rows[size_t(i)]);
  }
  return true;
}

}  // namespace hysparse::ref
