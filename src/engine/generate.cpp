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

}  // namespace

const std::vector<std::pair<FinishReason, std::string_view>>& EnumNames<FinishReason>::list() {
  static const std::vector<std::pair<FinishReason, std::string_view>> names = {
      {FinishReason::stop, "stop"},
      {FinishReason::eos, "eos"},
      {FinishReason::length, "length"},
      {FinishReason::cancelled, "cancelled"}};
  return names;
}

Generation generate(LogitsSource& source, const std::vector<int32_t>& prompt, int64_t vocab,
                    const GenerateOptions& options) {
  const auto n = static_cast<int64_t>(prompt.size());
  if (n > source.context())
    throw input_error("prompt", fmt::format("{} tokens are more than the context of {}", n, source.context()),
                      "shorten the prompt or raise the context");
  HYSPARSE_CHECK(options.token_bytes || options.stops.empty(), "stop strings need the tokens' text");
  const int64_t drawable = options.tokenizer_vocab > 0 ? std::min(options.tokenizer_vocab, vocab) : vocab;
  Sampler sampler(options.sampling, drawable);
  TextStream stream(options.stops);
  Generation out;
  out.prompt_tokens = n;
  const int64_t room = source.context() - n;
  const int64_t limit = options.max_new_tokens < 0 ? room : std::min(options.max_new_tokens, room);
  const auto emit = [&](const std::string& piece) {
    if (piece.empty()) return;
    out.text += piece;
    if (options.on_text) options.on_text(piece);
  };
  const auto cancelled = [&] { return options.cancel && options.cancel->load(std::memory_order_relaxed); };

  auto start = Clock::now();
  TensorView logits = source.prompt(prompt, options.cancel);
  out.prompt_seconds = seconds_since(start);
  start = Clock::now();
  sampler.see(prompt);
  while (true) {
    if (!logits || cancelled()) {
      out.reason = FinishReason::cancelled;
      break;
    }
    if (static_cast<int64_t>(out.tokens.size()) >= limit) {
      out.reason = FinishReason::length;
      break;
    }
    const int32_t token = sampler.sample(logits.rows(0, drawable), out.tokens.size());
    out.tokens.push_back(token);
    if (options.on_token) options.on_token(token);
    if (std::find(options.eos.begin(), options.eos.end(), token) != options.eos.end()) {
      out.reason = FinishReason::eos;
      break;
    }
    if (options.token_bytes) {
      emit(stream.push(options.token_bytes(token)));
      if (stream.stopped()) {
        out.reason = FinishReason::stop;
        break;
      }
    }
    sampler.see(token);
    // The last token of the answer needs no forward of its own.
    if (static_cast<int64_t>(out.tokens.size()) < limit) logits = source.decode(token);
  }
  out.decode_seconds = seconds_since(start);
  emit(stream.finish());
  if (stream.stopped()) out.reason = FinishReason::stop;
  return out;
}

}  // namespace hysparse
