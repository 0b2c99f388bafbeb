#include "train/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace hysparse {
namespace {

std::vector<int64_t> load_of(const LayerWeights& layer, Memory& memory) {
  std::vector<int64_t> load(static_cast<size_t>(layer.expert_load.numel()));
  memory.to_host(load.data(), layer.expert_load.data, layer.expert_load.bytes());
  return load;
}

template <class T>
void move_bias(const TensorView& bias, const std::vector<int64_t>& load, double rate, Memory& memory) {
  const int64_t total = std::accumulate(load.begin(), load.end(), int64_t(0)), experts = std::ssize(load);
  std::vector<T> values(load.size());
  memory.to_host(values.data(), bias.data, bias.bytes());
  for (size_t e = 0; e < load.size(); ++e) {
    const int64_t missing = total - load[e] * experts;
    values[e] += static_cast<T>(missing > 0 ? rate : missing < 0 ? -rate : 0.0);
  }
  memory.from_host(bias.data, values.data(), bias.bytes());
}

}  // namespace

ExpertLoad expert_load(const LayerWeights& layer, Memory& memory) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!layer.expert_load) return {kNone, kNone, kNone, kNone};
  const std::vector<int64_t> load = load_of(layer, memory);
  const auto total = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t(0)));
  if (total == 0) return {kNone, kNone, kNone, kNone};
  const auto experts = static_cast<double>(load.size());
  double entropy = 0;
  for (const int64_t n : load)
    if (n > 0) entropy -= static_cast<double>(n) / total * std::log(static_cast<double>(n) / total);
  return {static_cast<double>(*std::max_element(load.begin(), load.end())) * experts / total,
          static_cast<double>(*std::min_element(load.begin(), load.end())) * experts / total,
          static_cast<double>(std::count(load.begin(), load.end(), 0)),
          load.size() > 1 ? entropy / std::log(experts) : 1.0};
}

void balance_experts(Weights& weights, double rate) {
  for (LayerWeights& layer : weights.layers) {
    if (!layer.expert_load || rate == 0) continue;
    const std::vector<int64_t> load = load_of(layer, weights.memory());
    Weight& bias = layer.router_bias;
    if (bias.value.dtype == DType::f64)
      move_bias<double>(bias.value, load, rate, weights.memory());
    else
      move_bias<float>(bias.value, load, rate, weights.memory());
    ++bias.version;
  }
}

}  // namespace hysparse
