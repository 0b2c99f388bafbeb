// From logits to a token.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/token_mask.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace hysparse {

// Applied in this order: repetition penalty, frequency and presence penalty, bias, temperature, top-k, top-p,
// min-p (where transformers has the step, as it does).
struct SamplerOptions {
  double temperature = 1.0;         // 0: greedy; of what follows in that order nothing matters then
  int64_t top_k = 0;                // keep the k most likely tokens; 0: all
  double top_p = 1.0;               // keep the fewest most likely tokens whose probabilities reach this sum
  double min_p = 0.0;               // drop tokens less likely than this share of the likeliest
  double repetition_penalty = 1.0;  // of every token seen: logit / penalty where > 0, else logit * penalty
  // As OpenAI defines them, over the tokens of the answer: logit - times * frequency - presence.
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::vector<std::pair<int32_t, double>> logit_bias;  // (token, what is added to its logit), a token once
  uint64_t seed = 0;
  uint64_t choice = 0;  // which of several answers to one prompt: they differ, and repeat under one seed

  // Throws Error(input) naming the field that is out of range; NaN is out of range everywhere.
  void check() const;
};

// Working memory of a thread that draws; any number of samplers may use it in turn.
struct SamplerScratch {
  std::vector<double> logits64, sums, mass;
  std::vector<float> logits32, weights;
  std::vector<uint16_t> buckets;
  std::vector<uint32_t> counts;
};

// What DrawTokens says of one row, on the host: logits [>= vocab] f32 or f64. Error(failure) for NaN, +inf,
// or nothing above -inf.
int32_t draw_token(const TensorView& logits, const DrawSettings& settings, SamplerScratch& scratch);

// The i-th token drawn depends on the logits, what was seen and (seed, choice, i) alone: not on threads, time
// or earlier draws. Equal logits rank by the lower id.
class Sampler {
 public:
  // Error(input) where an option is out of range or a biased token is outside [0, vocab).
  Sampler(SamplerOptions options, int64_t vocab);
  // The prompt's tokens count for the repetition penalty; those of the answer for all three.
  void see_prompt(const std::vector<int32_t>& tokens);
  void see(int32_t token);
  // `logits` [vocab] f32 or f64, host. Tokens outside `allowed` are never drawn. NaN or +inf, or nothing
  // above -inf, throw Error(failure).
  int32_t sample(const TensorView& logits, uint64_t index, SamplerScratch& scratch,
                 const TokenMask* allowed = nullptr) const;
  int32_t sample(const TensorView& logits, uint64_t index) const;

  // How the same draw is put to operations (kernels/ops.h); empty where it needs more than they do.
  std::optional<DrawSettings> settings(uint64_t index) const;

  const SamplerOptions& options() const { return options_; }

 private:
  DrawSettings draw_settings(uint64_t index) const;
  bool penalises() const;
  template <class T>
  int32_t sample(const T* logits, std::vector<T>& adjusted, uint64_t index, SamplerScratch& scratch,
                 const TokenMask* allowed) const;
  template <class T>
  void adjust(T* x, const TokenMask* allowed) const;

  SamplerOptions options_;
  size_t vocab_;
  std::unordered_map<int32_t, int32_t> seen_;  // times in the answer; 0: in the prompt alone
};

}  // namespace hysparse
