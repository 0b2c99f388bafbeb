// The generation loop: prompt, draw, decode, until something says stop.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/answer_writer.h"
#include "engine/logits_source.h"

namespace hysparse {

struct GenerateOptions {
  SamplerOptions sampling;
  int64_t max_new_tokens = 256;  // < 0: until the context is full
  std::vector<int64_t> eos;      // any of them ends the answer; it is not part of the text
  std::vector<std::string> stops;
  // Ids from here on are never drawn: rows of the head that the tokenizer has no token for. 0: all may be.
  int64_t tokenizer_vocab = 0;
  // Bytes of a token; empty: no text is made and stops must be empty.
  std::function<std::string_view(int32_t token)> token_bytes;
  // Pieces of text in order, never a split character nor a part of a stop string; and every token drawn.
  std::function<void(std::string_view piece)> on_text;
  std::function<void(int32_t token)> on_token;
  const std::atomic<bool>* cancel = nullptr;  // looked at between prompt chunks and tokens
  // Tokens of the prompt that one Generator::step() reads; 0: all. Changes no result where it is a multiple
  // of the source's own chunk.
  int64_t prompt_step = 0;
};

struct Generation {
  FinishReason reason = FinishReason::length;
  std::vector<int32_t> tokens;  // drawn, the final EOS included
  std::string text;             // all pieces joined
  int64_t prompt_tokens = 0;
  double prompt_seconds = 0, decode_seconds = 0;
};

// One answer, a step at a time; generate() is its loop.
class Generator {
 public:
  // Prompt and answer together never pass source.context(): the answer then ends with reason length. A longer
  // prompt throws Error(input) naming both numbers. Keeps a reference to `source`.
  Generator(LogitsSource& source, std::vector<int32_t> prompt, int64_t vocab, GenerateOptions options);

  // Reads the next prompt_step tokens of the prompt, or draws one token. False when the answer is complete;
  // its last text may have come with that very step.
  bool step();
  bool done() const { return done_; }
  const Generation& result() const { return out_; }  // so far
  Generation take() { return std::move(out_); }

 private:
  void read_prompt();
  AnswerWriter::Piece next();
  void draw();
  void emit(const std::string& piece);
  void finish(FinishReason reason);
  bool cancelled() const;

  LogitsSource& source_;
  const std::vector<int32_t> prompt_;
  const GenerateOptions options_;
  AnswerWriter writer_;
  SamplerScratch scratch_;
  Generation out_;
  TensorView logits_;  // after the last token that the source has
  size_t read_ = 0;    // tokens of the prompt
  bool done_ = false;
};

// Prompt and answer together never pass source.context(): the answer then ends with reason length. A longer
// prompt throws Error(input) naming both numbers.
Generation generate(LogitsSource& source, const std::vector<int32_t>& prompt, int64_t vocab,
                    const GenerateOptions& options);

}  // namespace hysparse
