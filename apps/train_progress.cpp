#include "train_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/generate.h"
#include "engine/session.h"

namespace hysparse {

std::string with_commas(int64_t n) {
  std::string digits = std::to_string(std::abs(n));
  for (int64_t at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  if (n < 0) digits.insert(0, 1, '-');
  return digits;
}

std::string clock_text(double seconds) {
  const int64_t s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string progress_line(const TrainProgress& p) {
  const std::string held_out =
      p.held_out ? fmt::format("{:.3f} bits/byte", p.held_out->bits_per_byte) : std::string("-");
  return fmt::format("step {}/{}  mean loss {:.3f}  held-out {}  {} tokens/s  ETA {}", p.step, p.steps,
                     p.smoothed_loss, held_out, with_commas(std::llround(p.tokens_per_second)),
                     clock_text(p.eta_seconds));
}

void ProgressPrinter::operator()(const TrainProgress& p) {
  if (terminal_) {
    // Back to the start of the line, the text, and whatever was longer before is erased.
    std::fprintf(stderr, "\r%s\x1b[K", progress_line(p).c_str());
    std::fflush(stderr);
    open_ = true;
  } else if (p.evaluated || p.step == 1 || p.step % every_ == 0 || p.step == p.steps) {
    std::fprintf(stderr, "%s\n", progress_line(p).c_str());
  }
}

void ProgressPrinter::finish() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

std::string sample_text(Runtime& rt, Model& model, const Tokenizer& tokenizer, const std::string& prompt,
                        int64_t tokens) {
  std::vector<int32_t> ids = tokenizer.encode_from_start(prompt);
  if (ids.empty()) ids.push_back(std::max(0, tokenizer.eos_id()));
  Session session(rt, model);
  GenerateOptions options;
  options.sampling.temperature = 0.8;
  options.sampling.seed = 1;
  options.max_new_tokens = std::min(tokens, session.context() - std::ssize(ids));
  if (tokenizer.eos_id() >= 0) options.eos = {tokenizer.eos_id()};
  options.tokenizer_vocab = tokenizer.vocab_size();
  options.token_bytes = [&](int32_t id) {  // a model may have more rows than the tokenizer has ids
    return id < tokenizer.vocab_size() ? tokenizer.token_bytes(id) : std::string_view();
  };
  return generate(session, ids, model.config().vocab_size, options).text;
}

}  // namespace hysparse
