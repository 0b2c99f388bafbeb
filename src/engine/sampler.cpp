#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

void require(bool ok, const char* field, const char* expected, double got) {
  if (!ok) throw expected_error(field, expected, fmt::format("{}", got));
}

template <class T>
void widen(const TensorView& logits, std::vector<double>& out) {
  const T* x = logits.as<T>();
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(x[i]);
}

}  // namespace

void SamplerOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0, "temperature", "a number >= 0", temperature);
  require(top_k >= 0, "top_k", "a count >= 0 (0 keeps all)", static_cast<double>(top_k));
  require(top_p > 0 && top_p <= 1, "top_p", "a number in (0, 1]", top_p);
  require(min_p >= 0 && min_p <= 1, "min_p", "a number in [0, 1]", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "a number > 0",
          repetition_penalty);
}

Sampler::Sampler(const SamplerOptions& options, int64_t vocab)
    : options_(options), seen_(static_cast<size_t>(vocab)), logits_(static_cast<size_t>(vocab)) {
  options.check();
}

void Sampler::see(int32_t token) {
  if (token < 0 || static_cast<size_t>(token) >= seen_.size() || seen_[static_cast<size_t>(token)]) return;
  seen_[static_cast<size_t>(token)] = true;
  seen_ids_.push_back(token);
}

void Sampler::see(const std::vector<int32_t>& tokens) {
  for (const int32_t t : tokens) see(t);
}

int32_t Sampler::sample(const TensorView& logits, uint64_t index) {
  const size_t vocab = seen_.size();
  HYSPARSE_CHECK(logits.rank == 1 && logits.dim(0) == static_cast<int64_t>(vocab),
                 "sampler of {} tokens got {}", vocab, logits.describe());
  std::vector<double>& x = logits_;
  if (logits.dtype == DType::f64)
    widen<double>(logits, x);
  else
    widen<float>(logits, x);
  if (options_.repetition_penalty != 1.0) {
    for (const int32_t id : seen_ids_) {
      double& v = x[static_cast<size_t>(id)];
      v = v > 0 ? v / options_.repetition_penalty : v * options_.repetition_penalty;
    }
  }
  size_t best = 0;
  for (size_t i = 0; i < vocab; ++i) {
    if (std::isnan(x[i]) || x[i] == INFINITY)
      throw failure("sampler", fmt::format("the logit of token {} is {}", i, x[i]),
                    "the weights or the computation are broken");
    if (x[i] > x[best]) best = i;
  }
  if (x[best] == -INFINITY) throw failure("sampler", "no token has a finite logit");
  if (options_.temperature == 0) return static_cast<int32_t>(best);

  // Logits become log-weights relative to the best: no overflow however small the temperature.
  candidates_.resize(vocab);
  for (size_t i = 0; i < vocab; ++i) {
    const double below = x[i] - x[best];
    candidates_[i] = {below == 0 ? 0 : below / options_.temperature, static_cast<int32_t>(i)};
  }
  return draw(index);
}

// Orders the `count` likeliest candidates at the front; the others stay behind them in any order.
void Sampler::sort_prefix(size_t count) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  const auto middle = candidates_.begin() + static_cast<std::ptrdiff_t>(std::min(count, candidates_.size()));
  if (middle != candidates_.end()) std::nth_element(candidates_.begin(), middle, candidates_.end(), before);
  std::sort(candidates_.begin(), middle, before);
}

int32_t Sampler::draw(uint64_t index) {
  if (options_.top_k > 0 && static_cast<size_t>(options_.top_k) < candidates_.size()) {
    sort_prefix(static_cast<size_t>(options_.top_k));
    candidates_.resize(static_cast<size_t>(options_.top_k));
  }
  if (options_.top_p < 1) {
    double total = 0;
    for (const Candidate& c : candidates_) total += std::exp(c.logit);
    // A few candidates usually reach the sum: order ever larger fronts instead of the whole vocabulary.
    for (size_t sorted = 64;; sorted *= 8) {
      sorted = std::min(sorted, candidates_.size());
      sort_prefix(sorted);
      double sum = 0;
      size_t keep = 0;
      while (keep < sorted && sum < options_.top_p * total) sum += std::exp(candidates_[keep++].logit);
      if (sum < options_.top_p * total && sorted < candidates_.size()) continue;
      candidates_.resize(std::max<size_t>(keep, 1));
      break;
    }
  }
  if (options_.min_p > 0) {
    const double floor = std::log(options_.min_p);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.logit < floor; });
  }
  // The order in which probabilities are summed must not depend on how candidates were found.
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id))
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  double total = 0;
  for (const Candidate& c : candidates_) total += std::exp(c.logit);
  const double target = Rng(options_.seed, 0, index).uniform() * total;
  double sum = 0;
  int32_t last = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    const double p = std::exp(c.logit);
    if (p > 0) last = c.id;
    sum += p;
    if (target < sum) return c.id;
  }
  return last;  // rounding of the sum alone brings us here
}

}  // namespace hysparse
