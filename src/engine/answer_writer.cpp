#include "engine/answer_writer.h"

#include <algorithm>

#include "base/error.h"

namespace hysparse {
namespace {

AnswerOptions checked(AnswerOptions o) {
  if (o.drawable <= 0 || o.drawable > o.vocab) o.drawable = o.vocab;
  HYSPARSE_CHECK(o.token_bytes || o.stops.empty(), "stop strings need the tokens' text");
  for (const std::vector<int32_t>& run : o.stop_ids)
    if (run.empty()) throw expected_error("stop_ids", "at least one id in each run", "none");
  if (o.logprobs < -1 || o.logprobs > Request::kMaxLogprobs)
    throw expected_error("logprobs", fmt::format("-1 (none) to {}", Request::kMaxLogprobs),
                         std::to_string(o.logprobs));
  if (o.constraint && o.constraint->trie().vocab() != o.drawable)
    throw expected_error("constraint", fmt::format("one over {} tokens", o.drawable),
                         std::to_string(o.constraint->trie().vocab()));
  return o;
}

}  // namespace

AnswerWriter::AnswerWriter(AnswerOptions options)
    : options_(checked(std::move(options))),
      sampler_(options_.sampling, options_.drawable),
      stream_(options_.stops) {
  if (options_.constraint) constraint_.emplace(options_.constraint);
}

// Where EOS is ignored, too, a constrained text that ends itself ends.
bool AnswerWriter::ends(int32_t token) const {
  const auto among = [&](const std::vector<int64_t>& eos) {
    return std::find(eos.begin(), eos.end(), token) != eos.end();
  };
  return among(options_.eos) || (constraint_ && among(options_.constraint->trie().eos()));
}

bool AnswerWriter::stops_here() const {
  return std::any_of(options_.stop_ids.begin(), options_.stop_ids.end(), [&](const auto& run) {
    return run.size() <= tokens_.size() && std::equal(run.rbegin(), run.rend(), tokens_.rbegin());
  });
}

AnswerWriter::Piece AnswerWriter::draw(const TensorView& logits, SamplerScratch& scratch) {
  HYSPARSE_CHECK(!finished_ && left() > 0, "the answer is complete");
  Piece piece;
  std::shared_ptr<const TokenMask> allowed;
  if (constraint_) allowed = constraint_->allowed();
  piece.token = sampler_.sample(logits.rows(0, options_.drawable), tokens_.size(), scratch, allowed.get());
  if (options_.logprobs >= 0) piece.logprobs = LogSoftmax(logits).report(piece.token, options_.logprobs);
  return take(std::move(piece));
}

std::optional<DrawSettings> AnswerWriter::settings(int64_t ahead) const {
  if (constraint_ || options_.logprobs >= 0) return {};
  return sampler_.settings(tokens_.size() + static_cast<uint64_t>(ahead));
}

AnswerWriter::Piece AnswerWriter::take(Piece piece) {
  HYSPARSE_CHECK(!finished_ && left() > 0, "the answer is complete");
  tokens_.push_back(piece.token);
  if (ends(piece.token)) {
    piece.text = finish(FinishReason::eos);
    return piece;
  }
  if (options_.token_bytes) {
    piece.text = stream_.push(options_.token_bytes(piece.token));
    if (stream_.stopped()) {
      finished_ = FinishReason::stop;
      return piece;
    }
  }
  sampler_.see(piece.token);
  if (constraint_) constraint_->advance(piece.token);
  if (stops_here() || (constraint_ && constraint_->complete()))
    piece.text += finish(FinishReason::stop);
  else if (left() == 0)
    piece.text += finish(FinishReason::length);
  return piece;
}

std::string AnswerWriter::finish(FinishReason reason) {
  HYSPARSE_CHECK(!finished_, "the answer is complete");
  std::string text = stream_.finish();
  finished_ = stream_.stopped() ? FinishReason::stop : reason;
  return text;
}

}  // namespace hysparse
