// One sequence over a model and its cache: prompts in chunks, decode a token at a time.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/logits_source.h"
#include "engine/paged_kv.h"
#include "model/model.h"

namespace hysparse {

struct SessionOptions {
  int64_t context = 0;                  // most tokens, prompt and answer together; 0: max_position_embeddings
  int64_t chunk = 512;                  // tokens of a prompt that go through the model at once
  int64_t page_size = 0;                // of the cache, tokens; 0: max(64, block)
  KvDtype kv_dtype = KvDtype::compute;  // of full layers
  std::optional<double> poison;         // PagedKvOptions::poison
};

class Session : public LogitsSource {
 public:
  // Keeps references. Throws Error(input) where an option is out of range.
  Session(Runtime& rt, Model& model, const SessionOptions& options = {});
  ~Session() override;

  // Keeps the longest common prefix of `tokens` and what is cached where the rings still hold its window;
  // else starts over. A prompt longer than the context, an empty one, or ids outside the vocabulary throw
  // Error(input) before anything changes. A cancelled prompt leaves the chunks that were done.
  TensorView prompt(const std::vector<int32_t>& tokens, const std::atomic<bool>* cancel = nullptr) override;
  TensorView decode(int32_t token) override;  // Error(input) at the context limit
  std::optional<int32_t> decode_and_draw(int32_t token, const DrawSettings& settings) override;
  int64_t length() const override;
  int64_t context() const override { return options_.context; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  void reset();

  // How many tokens of the last prompt() were already cached.
  int64_t reused() const { return reused_; }
  const PagedKv& kv() const { return *kv_; }

 private:
  void decode_step(int32_t token);
  void step(const int32_t* tokens, int64_t count, bool want_logits);
  void check_tokens(const int32_t* tokens, int64_t count) const;
  TensorView last_logits() const;

  Runtime& rt_;
  Model& model_;
  SessionOptions options_;
  std::unique_ptr<PagedKv> kv_;
  std::vector<int32_t> tokens_;  // what the cache holds
  Tensor token_buffer_, logits_, host_logits_, drawn_;
  int64_t reused_ = 0;
};

}  // namespace hysparse
