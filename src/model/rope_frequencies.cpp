#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hysparse {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// f in full where `kept` is 1, f / factor where it is 0.
double blend(double f, double factor, double kept) {
  return (1 - kept) * f / factor + kept * f;
}

double llama3(const RopeScaling& s, double f) {
  const double turns = double(*s.original_max_position_embeddings) * f / kTurn;
  const double kept = (turns - *s.low_freq_factor) / (*s.high_freq_factor - *s.low_freq_factor);
  return blend(f, s.factor, std::clamp(kept, 0.0, 1.0));
}

void yarn(const RopeScaling& s, double theta, RopeFrequencies& out) {
  const auto half = static_cast<double>(out.radians.size());
  // The pair, counted in fractions, that turns so many times within the original context.
  const auto pair_of = [&](double turns) {
    return half * std::log(double(*s.original_max_position_embeddings) / (turns * kTurn)) / std::log(theta);
  };
  double first = pair_of(s.beta_fast.value_or(32)), last = pair_of(s.beta_slow.value_or(1));
  if (s.truncate.value_or(true)) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, 2 * half - 1);
  if (first == last) last += 0.001;
  for (size_t i = 0; i < out.radians.size(); ++i) {
    const double ramp = std::clamp((double(i) - first) / (last - first), 0.0, 1.0);
    out.radians[i] = blend(out.radians[i], s.factor, 1 - ramp);
  }
  out.magnitude = s.attention_factor.value_or(0.1 * std::log(s.factor) + 1);
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  RopeFrequencies out;
  const int64_t half = config.rotary_dims() / 2;
  for (int64_t i = 0; i < half; ++i)
    out.radians.push_back(std::pow(config.rope_theta, -double(i) / double(half)));
  if (!config.rope_scaling) return out;
  const RopeScaling& s = *config.rope_scaling;
  switch (s.rope_type) {
    case RopeType::standard:
      break;
    case RopeType::linear:
      for (double& f : out.radians) f /= s.factor;
      break;
    case RopeType::llama3:
      for (double& f : out.radians) f = llama3(s, f);
      break;
    case RopeType::yarn:
      yarn(s, config.rope_theta, out);
      break;
  }
  return out;
}

}  // namespace hysparse
