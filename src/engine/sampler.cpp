#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "engine/softmax.h"

namespace hysparse {
namespace {

using softmax_detail::exp_negative;
using softmax_detail::find_peak;
using softmax_detail::kBlock;
using softmax_detail::kLanes;
using softmax_detail::Peak;

void require(bool ok, const char* field, const char* expected, double got) {
  if (!ok) throw expected_error(field, expected, fmt::format("{}", got));
}

// weights[i] = exp((x[i] - peak) / temperature), 0 for -inf; sums: of each block of them.
template <class T>
void weigh(const T* x, size_t n, T peak, float inverse, std::vector<float>& weights) {
  weights.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto below = static_cast<float>(x[i] - peak);
    const float y = exp_negative((below > -1e30f ? below : -1e30f) * inverse);
    weights[i] = x[i] > -std::numeric_limits<T>::infinity() ? y : 0.0f;
  }
}

void sum_blocks(const std::vector<float>& weights, std::vector<double>& sums) {
  const size_t n = weights.size();
  sums.resize((n + kBlock - 1) / kBlock);
  for (size_t b = 0; b < sums.size(); ++b) {
    const size_t end = std::min(n, (b + 1) * kBlock);
    float lanes[kLanes] = {};
    size_t i = b * kBlock;
    for (; i + kLanes <= end; i += kLanes)
      for (size_t j = 0; j < kLanes; ++j) lanes[j] += weights[i + j];
    double sum = 0;
    for (const float v : lanes) sum += static_cast<double>(v);
    for (; i < end; ++i) sum += static_cast<double>(weights[i]);
    sums[b] = sum;
  }
}

// The last candidate that stays, in the order of rank: the higher logit first, of equal ones the lower id.
template <class T>
struct Cut {
  T logit;
  size_t id;
};

// Finds cuts without sorting the vocabulary: candidates fall into buckets by their distance from the peak,
// whole buckets are passed over by their counts and weights, and only the bucket of the cut is sorted.
template <class T>
class Ranking {
 public:
  Ranking(const T* x, size_t n, const Peak<T>& peak, float inverse, SamplerScratch& s) : x_(x), n_(n), s_(s) {
    // Far below the peak nothing has weight: one bucket takes it all, unless a count reaches down there.
    const double range =
        std::min(static_cast<double>(peak.value - peak.lowest) * static_cast<double>(inverse), kReach);
    const auto scale =
        static_cast<float>(range > 0 ? (kBuckets - 1) / range * static_cast<double>(inverse) : 0.0);
    s.buckets.resize(n);
    constexpr auto kLast = static_cast<float>(kBuckets - 1);
    for (size_t i = 0; i < n; ++i) {
      const float at = static_cast<float>(peak.value - x[i]) * scale;
      s.buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(at < kLast ? at : kLast));
    }
    s.counts.assign(kBuckets, 0);
    s.mass.assign(kBuckets, 0.0);
    for (size_t i = 0; i < n; ++i) {
      ++s.counts[s.buckets[i]];
      s.mass[s.buckets[i]] += static_cast<double>(s.weights[i]);
    }
  }

  // The k-th candidate, and the weight up to it.
  Cut<T> by_count(size_t k, double& weight) {
    size_t b = 0, before = 0;
    weight = 0;
    while (before + s_.counts[b] < k) {
      weight += s_.mass[b];
      before += s_.counts[b++];
    }
    const std::vector<uint32_t>& ids = order(b, k - before);
    for (size_t i = 0; i < k - before; ++i) weight += static_cast<double>(s_.weights[ids[i]]);
    return at(ids[k - before - 1]);
  }

  // The first candidate at which the weight reaches `target` (the last that has weight, should rounding keep
  // the sum below it).
  Cut<T> by_weight(double target) {
    size_t b = 0, last = 0;
    double weight = 0;
    for (; b < kBuckets && weight + s_.mass[b] < target; ++b) {
      weight += s_.mass[b];
      if (s_.counts[b] > 0) last = b;
    }
    if (b == kBuckets) return at(order(last, s_.counts[last])[s_.counts[last] - 1]);
    for (size_t sorted = 64;; sorted *= 8) {
      const size_t count = std::min<size_t>(sorted, s_.counts[b]);
      const std::vector<uint32_t>& ids = order(b, count);
      double sum = weight;
      for (size_t i = 0; i < count; ++i) {
        sum += static_cast<double>(s_.weights[ids[i]]);
        if (sum >= target) return at(ids[i]);
      }
      if (count == s_.counts[b]) return at(ids[count - 1]);
    }
  }

 private:
  static constexpr size_t kBuckets = 2048;
  static constexpr double kReach = 32;  // e^-32 of the peak's weight

  Cut<T> at(uint32_t id) const { return {x_[id], id}; }

  // The members of bucket b, the `count` best of them in front and in order.
  const std::vector<uint32_t>& order(size_t b, size_t count) {
    if (bucket_ != b) {
      ids_.clear();
      for (size_t i = 0; i < n_; ++i)
        if (s_.buckets[i] == b) ids_.push_back(static_cast<uint32_t>(i));
      bucket_ = b;
    }
    const auto better = [this](uint32_t i, uint32_t j) { return x_[i] > x_[j] || (x_[i] == x_[j] && i < j); };
    const auto middle = ids_.begin() + static_cast<std::ptrdiff_t>(count);
    if (middle != ids_.end()) std::nth_element(ids_.begin(), middle, ids_.end(), better);
    std::sort(ids_.begin(), middle, better);
    return ids_;
  }

  const T* x_;
  size_t n_;
  SamplerScratch& s_;
  std::vector<uint32_t> ids_;
  size_t bucket_ = ~size_t(0);
};

// Weights of what stands behind the cut become 0.
template <class T>
void keep(const T* x, const Cut<T>& cut, std::vector<float>& weights) {
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = x[i] >= cut.logit ? weights[i] : 0.0f;
  for (size_t i = cut.id + 1; i < weights.size(); ++i)
    if (x[i] == cut.logit) weights[i] = 0;
}

int32_t pick(const std::vector<float>& weights, const std::vector<double>& sums, double share) {
  double total = 0;
  for (const double s : sums) total += s;
  const double target = share * total;
  double sum = 0;
  size_t block = 0, filled = 0;  // filled: the last block before the target that has weight
  for (; block < sums.size() && sum + sums[block] <= target; ++block) {
    sum += sums[block];
    if (sums[block] > 0) filled = block;
  }
  if (block == sums.size()) block = filled;  // rounding of the sum alone brings us here, and below to `last`
  size_t last = block * kBlock;
  for (size_t i = block * kBlock; i < std::min(weights.size(), (block + 1) * kBlock); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    sum += static_cast<double>(weights[i]);
    if (target < sum) break;
  }
  return static_cast<int32_t>(last);
}

template <class T>
int32_t draw(const T* x, const DrawSettings& set, SamplerScratch& s) {
  const auto vocab = static_cast<size_t>(set.vocab);
  const Peak<T> peak = find_peak(x, vocab, "sampler");
  if (set.temperature == 0) return static_cast<int32_t>(peak.index);

  const auto inverse = static_cast<float>(std::min(1 / set.temperature, 1e30));
  weigh(x, vocab, peak.value, inverse, s.weights);
  const bool top_k = set.top_k > 0 && set.top_k < set.vocab;
  if (top_k || set.top_p < 1) {
    Ranking<T> ranking(x, vocab, peak, inverse, s);
    Cut<T> cut{};
    double total = 0;
    if (top_k)
      cut = ranking.by_count(static_cast<size_t>(set.top_k), total);
    else
      for (const double m : s.mass) total += m;
    if (set.top_p < 1) {
      const Cut<T> nucleus = ranking.by_weight(set.top_p * total);
      // Never behind top_k's, whatever rounding says about the two sums.
      if (!top_k || nucleus.logit > cut.logit || (nucleus.logit == cut.logit && nucleus.id < cut.id))
        cut = nucleus;
    }
    keep(x, cut, s.weights);
  }
  if (set.min_p > 0) {
    const auto floor = static_cast<float>(set.min_p);
    for (float& w : s.weights) w = w >= floor ? w : 0.0f;
  }
  sum_blocks(s.weights, s.sums);
  return pick(s.weights, s.sums, set.uniform);
}

}  // namespace

int32_t draw_token(const TensorView& logits, const DrawSettings& settings, SamplerScratch& scratch) {
  HYSPARSE_CHECK(logits.rank == 1 && logits.dim(0) >= settings.vocab, "a draw among {} tokens got {}",
                 settings.vocab, logits.describe());
  return logits.dtype == DType::f64 ? draw(logits.as<double>(), settings, scratch)
                                    : draw(logits.as<float>(), settings, scratch);
}

void SamplerOptions::check() const {
  require(std::isfinite(temperature) && temperature >= 0, "temperature", "a number >= 0", temperature);
  require(top_k >= 0, "top_k", "a count >= 0 (0 keeps all)", static_cast<double>(top_k));
  require(top_p > 0 && top_p <= 1, "top_p", "a number in (0, 1]", top_p);
  require(min_p >= 0 && min_p <= 1, "min_p", "a number in [0, 1]", min_p);
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "a number > 0",
          repetition_penalty);
  require(frequency_penalty >= -2 && frequency_penalty <= 2, "frequency_penalty", "a number in [-2, 2]",
          frequency_penalty);
  require(presence_penalty >= -2 && presence_penalty <= 2, "presence_penalty", "a number in [-2, 2]",
          presence_penalty);
  for (const auto& [id, bias] : logit_bias)
    require(bias >= -100 && bias <= 100, "logit_bias", "numbers in [-100, 100]", bias);
}

Sampler::Sampler(SamplerOptions options, int64_t vocab)
    : options_(std::move(options)), vocab_(static_cast<size_t>(vocab)) {
  options_.check();
  std::sort(options_.logit_bias.begin(), options_.logit_bias.end());
  for (size_t i = 0; i < options_.logit_bias.size(); ++i) {
    const int32_t id = options_.logit_bias[i].first;
    if (id < 0 || id >= vocab)
      throw expected_error("logit_bias", fmt::format("token ids in [0, {})", vocab), std::to_string(id));
    if (i > 0 && options_.logit_bias[i - 1].first == id)
      throw input_error("logit_bias", fmt::format("token {} is given twice", id));
  }
}

bool Sampler::penalises() const {
  return options_.repetition_penalty != 1.0 || options_.frequency_penalty != 0 ||
         options_.presence_penalty != 0;
}

void Sampler::see_prompt(const std::vector<int32_t>& tokens) {
  if (options_.repetition_penalty == 1.0) return;
  for (const int32_t t : tokens)
    if (t >= 0 && static_cast<size_t>(t) < vocab_) seen_.emplace(t, 0);
}

void Sampler::see(int32_t token) {
  if (penalises() && token >= 0 && static_cast<size_t>(token) < vocab_) ++seen_[token];
}

template <class T>
void Sampler::adjust(T* x, const TokenMask* allowed) const {
  if (penalises()) {
    const auto repetition = static_cast<T>(options_.repetition_penalty);
    for (const auto& [id, times] : seen_) {
      T& v = x[static_cast<size_t>(id)];
      v = v > 0 ? v / repetition : v * repetition;
      if (times > 0) v -= static_cast<T>(times * options_.frequency_penalty + options_.presence_penalty);
    }
  }
  for (const auto& [id, bias] : options_.logit_bias) x[static_cast<size_t>(id)] += static_cast<T>(bias);
  if (allowed == nullptr) return;
  HYSPARSE_CHECK(allowed->vocab() == static_cast<int64_t>(vocab_), "a mask of {} tokens for {}",
                 allowed->vocab(), vocab_);
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  for (size_t w = 0; w < allowed->words().size(); ++w) {
    const uint64_t word = allowed->words()[w];
    if (word == ~0ull) continue;
    const size_t end = std::min(vocab_, (w + 1) * 64);
    if (word == 0) {
      std::fill(x + w * 64, x + end, kNever);
      continue;
    }
    for (size_t i = w * 64; i < end; ++i) x[i] = (word >> (i % 64) & 1) != 0 ? x[i] : kNever;
  }
}

template <class T>
int32_t Sampler::sample(const T* logits, std::vector<T>& adjusted, uint64_t index, SamplerScratch& s,
                        const TokenMask* allowed) const {
  const T* x = logits;
  if (!seen_.empty() || !options_.logit_bias.empty() || allowed != nullptr) {
    // A broken value must not pass because a mask hides it.
    find_peak(logits, vocab_, "sampler");
    adjusted.assign(logits, logits + vocab_);
    adjust(adjusted.data(), allowed);
    x = adjusted.data();
  }
  return draw(x, draw_settings(index), s);
}

int32_t Sampler::sample(const TensorView& logits, uint64_t index, SamplerScratch& scratch,
                        const TokenMask* allowed) const {
  HYSPARSE_CHECK(logits.rank == 1 && logits.dim(0) == static_cast<int64_t>(vocab_),
                 "sampler of {} tokens got {}", vocab_, logits.describe());
  return logits.dtype == DType::f64 ? sample(logits.as<double>(), scratch.logits64, index, scratch, allowed)
                                    : sample(logits.as<float>(), scratch.logits32, index, scratch, allowed);
}

DrawSettings Sampler::draw_settings(uint64_t index) const {
  return {.temperature = options_.temperature,
          .top_k = options_.top_k,
          .top_p = options_.top_p,
          .min_p = options_.min_p,
          .uniform = Rng(options_.seed, options_.choice, index).uniform(),
          .vocab = static_cast<int64_t>(vocab_)};
}

std::optional<DrawSettings> Sampler::settings(uint64_t index) const {
  if (penalises() || !options_.logit_bias.empty()) return {};
  return draw_settings(index);
}

int32_t Sampler::sample(const TensorView& logits, uint64_t index) const {
  SamplerScratch scratch;
  return sample(logits, index, scratch);
}

}  // namespace hysparse
