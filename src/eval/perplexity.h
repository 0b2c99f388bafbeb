// Perplexity of documents under strided windows.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/batch.h"
#include "model/model.h"

namespace hysparse {

// A window's inputs are tokens [begin, begin + inputs) of its document; input i predicts token i + 1. Targets
// from `first_target` on are scored in this window, earlier ones are its context.
struct ScoreWindow {
  int64_t begin = 0, inputs = 0, first_target = 0;
};
// Windows of at most `window` inputs, one every `stride` tokens: each token after the first is a scored
// target exactly once, the first window's with what precedes them, later ones with at least window - stride
// tokens of context. Throws Error(input) unless 1 <= stride <= window.
std::vector<ScoreWindow> score_windows(int64_t tokens, int64_t window, int64_t stride);

// Losses in nats of a batch of windows: loss[i] for every labels[i] that is not kIgnoreLabel.
using WindowLosses = std::function<void(const RaggedBatch& batch, const std::vector<int32_t>& tokens,
                                        const std::vector<int32_t>& labels, std::vector<double>& loss)>;
WindowLosses model_losses(Runtime& rt, Model& model);
// The same through the inference cache, as a prompt in chunks of `chunk` tokens: with pages in `kv` each
// token attends to what the cache keeps of all before it and of itself.
WindowLosses cached_losses(Runtime& rt, Model& model, KvDtype kv, int64_t chunk);

struct PerplexityOptions {
  int64_t window = 1024;
  int64_t stride = 512;
  int64_t batch = 0;       // windows a forward; 0: as many as fit in 2048 tokens, at least 1
  int64_t max_tokens = 0;  // stop after this many scored tokens; 0: score everything
  std::function<int64_t(int32_t token)> token_bytes;  // bytes of text a token stands for; empty: no bits/byte
  std::function<void(int64_t scored)> progress;
};

// What perplexity commands and calls score with: a window of 0 becomes max_positions, at most 1024, a stride
// of 0 half a window. Throws Error(input) for a window that is longer than max_positions.
PerplexityOptions fill_in(PerplexityOptions options, int64_t max_positions);

// Scored tokens at positions [from, to) of their documents (the first token is 0 and never scored).
struct PositionBand {
  int64_t from = 0, to = 0;
  int64_t tokens = 0, bytes = 0;
  double nats = 0;
  double nats_per_token() const;
  double bits_per_byte() const;  // NaN without bytes
};

struct PerplexityResult {
  int64_t documents = 0;
  int64_t tokens = 0;  // scored
  int64_t bytes = 0;   // of the scored tokens alone
  double nats = 0;     // sum over the scored tokens
  // Of the mean: over blocks of 64 neighbouring tokens of a document, whose losses are not independent; over
  // single tokens while there are fewer than 10 such blocks. NaN for fewer than two tokens.
  double standard_error = 0;
  std::vector<PositionBand> by_position;  // 1 to 63, then each twice as far as the last, up to the longest

  double nats_per_token() const;
  double perplexity() const;
  double bits_per_byte() const;  // NaN without bytes
  double bits_per_byte_error() const;
};

// Sums in float64, in the order of the text, whatever the batch.
class Perplexity {
 public:
  Perplexity(WindowLosses losses, const PerplexityOptions& options);
  void add(const std::vector<int32_t>& document);
  bool full() const;  // max_tokens are taken
  PerplexityResult finish();

 private:
  struct Pending {
    std::vector<int32_t> tokens;  // inputs and the last target
    int64_t ignored;              // leading targets that are context
    int64_t begin;                // of the window in its document
    bool starts_document() const { return begin == 0; }
  };
  void flush();
  void count(int32_t token, double nats, int64_t position);
  void end_block();

  WindowLosses losses_;
  PerplexityOptions options_;
  std::vector<Pending> pending_;
  int64_t taken_ = 0;
  PerplexityResult result_;
  double mean_ = 0, squares_ = 0;  // of single tokens: running mean, sum of squared deviations
  std::vector<double> block_;      // the running block
  struct Block {
    double nats;
    int64_t tokens;
  };
  std::vector<Block> blocks_;
};

}  // namespace hysparse
