// From logits to an answer: draws a token at a time, makes its text, and knows when it is complete. The one
// place for that: Generator and the engine both write with it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/constraint.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

namespace hysparse {

struct AnswerOptions {
  SamplerOptions sampling;
  int64_t vocab = 0;  // rows of the head
  int64_t drawable =
      0;              // ids from here on are never drawn: the tokenizer has no token for them; 0: all may be
  int64_t limit = 0;  // tokens that are drawn at most
  std::vector<int64_t> eos;                    // any of them ends the answer; it is not part of the text
  std::vector<std::string> stops;              // need token_bytes
  std::vector<std::vector<int32_t>> stop_ids;  // runs of drawn ids
  int logprobs = -1;                           // as in Request
  std::function<std::string_view(int32_t token)> token_bytes;  // empty: no text is made
  std::shared_ptr<const Constraint> constraint;                // what the text must match; null: anything
};

class AnswerWriter {
 public:
  // Error(input) where an option is out of range.
  explicit AnswerWriter(AnswerOptions options);

  void see_prompt(const std::vector<int32_t>& tokens) { sampler_.see_prompt(tokens); }
  // What one token brought.
  struct Piece {
    int32_t token = -1;
    std::string text;  // certain by now
    std::optional<TokenLogprobs> logprobs;
  };
  // `logits` [vocab] behind the last token, f32 or f64, host. Not after finish().
  Piece draw(const TensorView& logits, SamplerScratch& scratch);
  // The draw of the token behind the next `ahead`, for operations to do; empty where it needs the logits
  // here.
  std::optional<DrawSettings> settings(int64_t ahead = 0) const;
  // As draw(), of a token that was drawn so.
  Piece take(int32_t token) { return take({.token = token}); }
  // Ends the answer from outside; returns the text that was still held back.
  std::string finish(FinishReason reason);
  // Set by the token that completed the answer, or by finish().
  std::optional<FinishReason> finished() const { return finished_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }  // drawn, the final EOS included
  int64_t left() const { return options_.limit - static_cast<int64_t>(tokens_.size()); }
  const AnswerOptions& options() const { return options_; }

 private:
  Piece take(Piece piece);
  bool stops_here() const;
  bool ends(int32_t token) const;

  const AnswerOptions options_;
  Sampler sampler_;
  TextStream stream_;
  std::optional<ConstraintState> constraint_;
  std::vector<int32_t> tokens_;
  std::optional<FinishReason> finished_;
};

}  // namespace hysparse
