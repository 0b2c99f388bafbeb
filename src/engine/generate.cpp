#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

int64_t answer_limit(const LogitsSource& source, size_t prompt, const GenerateOptions& options) {
  const auto n = static_cast<int64_t>(prompt);
  if (n > source.context())
    throw input_error("prompt", fmt::format("{} tokens are more than the context of {}", n, source.context()),
                      "shorten the prompt or raise the context");
  const int64_t room = source.context() - n;
  return options.max_new_tokens < 0 ? room : std::min(options.max_new_tokens, room);
}

}  // namespace

Generator::Generator(LogitsSource& source, std::vector<int32_t> prompt, int64_t vocab,
                     GenerateOptions options)
    : source_(source),
      prompt_(std::move(prompt)),
      options_(std::move(options)),
      writer_({.sampling = options_.sampling,
               .vocab = vocab,
               .drawable = options_.tokenizer_vocab,
               .limit = answer_limit(source, prompt_.size(), options_),
               .eos = options_.eos,
               .stops = options_.stops,
               .token_bytes = options_.token_bytes}) {
  HYSPARSE_CHECK(options_.prompt_step >= 0, "prompt_step {} is negative", options_.prompt_step);
  out_.prompt_tokens = static_cast<int64_t>(prompt_.size());
}

bool Generator::cancelled() const {
  return options_.cancel && options_.cancel->load(std::memory_order_relaxed);
}

void Generator::emit(const std::string& piece) {
  if (piece.empty()) return;
  out_.text += piece;
  if (options_.on_text) options_.on_text(piece);
}

void Generator::finish(FinishReason reason) {
  done_ = true;
  emit(writer_.finish(reason));
  out_.reason = *writer_.finished();
}

bool Generator::step() {
  if (done_) return false;
  const Clock::time_point start = Clock::now();
  if (read_ < prompt_.size() || prompt_.empty()) {
    read_prompt();
    out_.prompt_seconds += seconds_since(start);
  } else {
    draw();
    out_.decode_seconds += seconds_since(start);
  }
  return !done_;
}

void Generator::read_prompt() {
  const size_t n = prompt_.size();
  const auto part = static_cast<size_t>(options_.prompt_step);
  const size_t end = part > 0 && n - read_ > part ? read_ + part : n;
  logits_ = end == n ? source_.prompt(prompt_, options_.cancel)
                     : source_.prompt({prompt_.begin(), prompt_.begin() + static_cast<std::ptrdiff_t>(end)},
                                      options_.cancel);
  read_ = end;
  if (!logits_ || cancelled()) return finish(FinishReason::cancelled);
  if (end < n) return;
  writer_.see_prompt(prompt_);
  if (writer_.left() == 0) finish(FinishReason::length);
}

// The token before is read only now: the last one of an answer needs no forward of its own.
AnswerWriter::Piece Generator::next() {
  if (!out_.tokens.empty()) {
    const int32_t last = out_.tokens.back();
    if (const auto settings = writer_.settings())
      if (const auto token = source_.decode_and_draw(last, *settings)) return writer_.take(*token);
    logits_ = source_.decode(last);
  }
  return writer_.draw(logits_, scratch_);
}

void Generator::draw() {
  if (cancelled()) return finish(FinishReason::cancelled);
  const AnswerWriter::Piece piece = next();
  out_.tokens.push_back(piece.token);
  if (options_.on_token) options_.on_token(piece.token);
  emit(piece.text);
  if (!writer_.finished()) return;
  done_ = true;
  out_.reason = *writer_.finished();
  if (out_.reason == FinishReason::length && cancelled()) out_.reason = FinishReason::cancelled;
}

Generation generate(LogitsSource& source, const std::vector<int32_t>& prompt, int64_t vocab,
                    const GenerateOptions& options) {
  Generator generator(source, prompt, vocab, options);
  while (generator.step()) {
  }
  return generator.take();
}

}  // namespace hysparse
