// One truth (spec section 9): the ways to run a model over a sequence, and what it means that two agree.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "unit/engine/backends.h"
#include "unit/engine/tiny.h"

namespace hysparse::paths {

// A model of random weights, none of them at a value that would hide a mistake, on the backend of its dtype.
struct Subject {
  Subject(const ModelConfig& config, DType compute, int threads = 1, uint64_t seed = 1,
          WeightFormat format = WeightFormat::compute);
  // The float64 reference of exactly these weights.
  Subject reference() const;
  Subject(Subject&&) = delete;

  tests::Backend backend;
  ModelConfig config;
  LayerPlan plan;
  mutable Weights weights;
  mutable Model model;

 private:
  Subject(const Subject& other, DType compute);
};

ModelConfig tiny(AttentionKind kind = AttentionKind::hysparse, int64_t block = 64, int64_t window = 128,
                 int64_t topk_tokens = 128);
std::vector<int32_t> random_tokens(int64_t n, uint64_t seed, int64_t vocab = 97);

using Selections = std::map<int, std::vector<int32_t>>;  // per emitting layer [T, Hkv, entries]
using Scores = std::map<int, std::vector<double>>;       // per emitting layer [T, Hkv, ceil(T / block)]

using Routes = std::map<int, std::vector<int32_t>>;  // per MoE layer [T, num_experts_per_tok]

struct Outcome {
  int64_t tokens = 0, entries = 0;
  std::vector<double> logits;  // [T, vocab]
  Selections selection;
  Scores scores;
  Routes experts;
};

// A path is a list of chunk lengths; an empty one is the training forward, without a cache.
using Path = std::vector<int64_t>;
Path train();
Path one_shot(int64_t n);
Path chunks(int64_t n, int64_t size);

struct RunOptions {
  const Selections* pinned = nullptr;
  const Routes* experts = nullptr;  // pinned, too
  bool want_scores = false;
  int64_t page_size = 0;
};
// Unused cache space is NaN throughout.
Outcome run(Subject& subject, const std::vector<int32_t>& tokens, const Path& path,
            const RunOptions& options = {});

// How far a row of logits may be from the float64 one, relative to the norm of a row: some tens of units of
// round-off, after 18 sublayers one behind the other. Over all rows, a third of it.
double tolerance(DType compute);
void expect_logits(const Outcome& got, const Outcome& want, DType compute);

struct Agreement {
  int64_t rows = 0;       // (layer, KV head, token) selections looked at
  int64_t near_ties = 0;  // of those: not the float64 selection, but tied with it within 1e-5
  int64_t tokens = 0;     // (MoE layer, token) routes looked at
  int64_t rerouted = 0;   // of those: other experts than the float64 ones, at most one in a hundred
  void print(const std::string& what) const;
};
// Free agreement: `got` chose its own selections. The float64 reference follows them, so that a flipped block
// does not hide what comes after it; each selection must then be a best one of the reference's log-scores (a
// chosen block at most 1e-5 below one that was not), and every logit must agree. `truth` is the reference's
// own run with scores: what holds where nothing flipped.
void expect_free_agreement(Subject& reference, const std::vector<int32_t>& tokens, const Outcome& truth,
                           const Outcome& got, DType compute, Agreement& sum);
// Share of `a`'s selected blocks that `b` selected, too.
double overlap(const Outcome& a, const Outcome& b);

}  // namespace hysparse::paths
