// Multiple choice by log-likelihood: of several continuations of a text, which does the model think
// likeliest?
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/text_model.h"

namespace hysparse {

struct ChoiceItem {
  std::string id;  // as the file names it; empty: it does not
  std::string context;
  std::vector<std::string> choices;  // at least two
  int64_t gold = 0;                  // the right one
};
// JSON lines: {"context": TEXT, "choices": [TEXT, ...], "gold": NUMBER} and, where wanted, "id". Error(input)
// names file and line.
std::vector<ChoiceItem> read_choice_items(const std::string& path);
std::vector<ChoiceItem> parse_choice_items(std::string_view lines, const std::string& where);

// Ids of a context and of its continuation by `text`, as lm-evaluation-harness parts them: white space at the
// context's end belongs to the continuation; all is encoded together, and the ids behind as many as the
// context alone has are the continuation's.
struct Continuation {
  std::vector<int32_t> ids;  // of both
  int64_t context = 0;       // ids of the context; at least 1
};
Continuation encode_continuation(const TextModel& model, std::string_view context, std::string_view text);

struct ChoiceOptions {
  std::string delimiter = " ";                 // between a context and each choice
  std::function<void(int64_t done)> progress;  // items
  const std::atomic<bool>* stop = nullptr;     // Error(interrupted) when set
};

struct ScoredChoice {
  std::vector<TokenLogprob> tokens;  // of the continuation, natural log
  double loglikelihood = 0;          // their sum
  int64_t bytes = 0;                 // of the choice's text, without the delimiter
  bool greedy = true;                // each token was the likeliest
};
struct ScoredItem {
  std::vector<ScoredChoice> choices;
  int64_t best = 0, best_normalised = 0;  // by loglikelihood, by loglikelihood a byte; ties: the first
};
// In the items' order. A context goes through the model once; its choices go on from there, where the prefix
// cache has room. Error(input) for a choice without tokens or beyond the engine's context.
std::vector<ScoredItem> score_choices(Engine& engine, const TextModel& model,
                                      const std::vector<ChoiceItem>& items,
                                      const ChoiceOptions& options = {});

struct ChoiceResult {
  int64_t items = 0;
  double accuracy = 0, normalised = 0;              // shares of right answers, 0 to 1
  double accuracy_error = 0, normalised_error = 0;  // standard errors; NaN for one item
  double chance = 0;                                // of guessing
};
ChoiceResult summarise(const std::vector<ChoiceItem>& items, const std::vector<ScoredItem>& scored);

}  // namespace hysparse
