// STUB: a source that emits a fixed list of tokens, so tests need no weights. Token ids index `texts`.
#pragma once

#include <string>
#include <vector>

#include "engine/generate.h"

namespace hysparse::tests {

class Stub : public LogitsSource {
 public:
  static constexpr int64_t kVocab = 256;
  Stub(std::vector<int32_t> script, int64_t context = 1 << 20)
      : script_(std::move(script)), context_(context), logits_(size_t(kVocab)) {}

  TensorView prompt(const std::vector<int32_t>& tokens, const std::atomic<bool>*) override {
    length_ = int64_t(tokens.size());
    return next();
  }
  TensorView decode(int32_t) override {
    ++length_;
    ++decoded;
    EXPECT_LE(length_, context_);
    return next();
  }
  int64_t length() const override { return length_; }
  int64_t context() const override { return context_; }

  int decoded = 0;

 private:
  TensorView next() {
    logits_.assign(logits_.size(), 0.f);
    logits_[size_t(script_.at(at_++ % script_.size()))] = 100.f;
    return TensorView(logits_.data(), DType::f32, {kVocab});
  }

  std::vector<int32_t> script_;
  int64_t context_, length_ = 0;
  size_t at_ = 0;
  std::vector<float> logits_;
};

struct Reply {
  std::string text, streamed;
  std::vector<std::string> pieces;
  FinishReason reason;
  size_t tokens;
};

// Token i says texts[i]; "" at the end of the script stands for the end token.
inline Reply say(const std::vector<std::string>& texts, const std::vector<std::string>& stops,
                 int64_t max_new_tokens = -1) {
  std::vector<int32_t> script;
  std::vector<int64_t> eos;
  for (size_t i = 0; i < texts.size(); ++i) {
    script.push_back(int32_t(i));
    if (texts[i].empty()) eos.push_back(int64_t(i));
  }
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = max_new_tokens < 0 ? int64_t(texts.size()) : max_new_tokens;
  o.eos = eos;
  o.stops = stops;
  o.token_bytes = [&](int32_t t) { return std::string_view(texts[size_t(t)]); };
  Reply r;
  o.on_text = [&](std::string_view piece) {
    r.pieces.emplace_back(piece);
    r.streamed += piece;
  };
  Stub stub(script);
  const Generation g = generate(stub, {1}, Stub::kVocab, o);
  r.text = g.text;
  r.reason = g.reason;
  r.tokens = g.tokens.size();
  return r;
}

}  // namespace hysparse::tests
