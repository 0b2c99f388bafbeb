// An engine over a hash model, and what its requests said.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends.h"
#include "engine/engine.h"
#include "hash_model.h"

namespace hysparse::tests {

using namespace std::chrono_literals;

// What a request brought, all events together.
struct Outcome {
  struct Said {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<TokenLogprobs> logprobs;
    std::optional<FinishReason> finish;
    std::string error;
    int events = 0;
  };
  std::vector<Said> choices;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<Usage> usage;

  void take(Event e) {
    if (choices.size() <= size_t(e.choice)) choices.resize(size_t(e.choice) + 1);
    Said& s = choices[size_t(e.choice)];
    EXPECT_FALSE(s.finish) << "an event behind the end of choice " << e.choice;
    EXPECT_FALSE(usage) << "an event behind the last one";
    s.tokens.insert(s.tokens.end(), e.tokens.begin(), e.tokens.end());
    s.text += e.text;
    s.logprobs.insert(s.logprobs.end(), e.logprobs.begin(), e.logprobs.end());
    prompt_logprobs.insert(prompt_logprobs.end(), e.prompt_logprobs.begin(), e.prompt_logprobs.end());
    s.finish = e.finish;
    s.error += e.error;
    ++s.events;
    if (e.usage) usage = e.usage;
  }
  // Everything that waits in the mailbox.
  void take_all(Answer& answer) {
    while (auto e = answer.next(0ms)) take(std::move(*e));
  }
};

inline void expect_same(const TokenLogprobs& a, const TokenLogprobs& b) {
  EXPECT_EQ(a.token.token, b.token.token);
  EXPECT_EQ(a.token.logprob, b.token.logprob);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

inline void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.choices.size(), b.choices.size());
  for (size_t c = 0; c < a.choices.size(); ++c) {
    SCOPED_TRACE(testing::Message() << "choice " << c);
    ASSERT_EQ(a.choices[c].tokens, b.choices[c].tokens);
    EXPECT_EQ(a.choices[c].text, b.choices[c].text);
    EXPECT_EQ(a.choices[c].finish, b.choices[c].finish);
    ASSERT_EQ(a.choices[c].logprobs.size(), b.choices[c].logprobs.size());
    for (size_t i = 0; i < a.choices[c].logprobs.size(); ++i)
      expect_same(a.choices[c].logprobs[i], b.choices[c].logprobs[i]);
  }
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i)
    expect_same(a.prompt_logprobs[i], b.prompt_logprobs[i]);
}

// Bytes that hold so many pages and slots of a model's cache in f32.
inline int64_t kv_budget(const ModelConfig& config, int64_t page_size, int64_t pages, int64_t slots,
                         KvDtype kv = KvDtype::compute) {
  const KvBytes bytes = kv_bytes(config, build_layer_plan(config), 4, kv);
  return pages * page_size * bytes.per_token + slots * bytes.rings;
}

inline EngineOptions rig_options(const ModelConfig& config, int64_t pages, int64_t sequences,
                                 int64_t page_size = 8, KvDtype kv = KvDtype::compute) {
  EngineOptions o;
  o.memory.kv_dtype = kv;
  o.context = 512;
  o.memory.page_size = page_size;
  o.memory.max_sequences = sequences;
  o.memory.kv_bytes = kv_budget(config, page_size, pages, sequences, kv);
  o.memory.snapshot_share = 0;
  o.step_tokens = 64;
  o.poison = std::nan("");
  o.check_steps = true;
  return o;
}

struct Rig {
  explicit Rig(const EngineOptions& options, const ModelConfig& config = hash_config())
      : backend(DType::f32, 2), model(config, options.memory.kv_dtype), engine(backend.rt, model, options) {}

  // Steps until nothing is left to do.
  void run() {
    while (engine.step()) {
    }
  }
  // One request alone.
  Outcome ask(Request request) {
    const auto answer = engine.submit(std::move(request));
    run();
    Outcome out;
    out.take_all(*answer);
    EXPECT_TRUE(answer->done());
    return out;
  }

  Backend backend;
  HashModel model;
  Engine engine;
};

// What a request says on an engine of its own: no cache, no drafts, nobody beside it.
inline Outcome alone(Request request, EngineOptions options, const ModelConfig& config = hash_config()) {
  options.memory.kv_bytes = kv_budget(config, 8, 1200, 130, options.memory.kv_dtype);
  options.memory.page_size = 8;
  options.memory.max_sequences = 1;
  options.memory.snapshot_share = 0;
  options.prefix_cache = false;
  options.speculate = 0;
  options.step_tokens = 1024;
  Rig rig(options, config);
  return rig.ask(std::move(request));
}

inline std::vector<int32_t> ids(int64_t n, uint64_t seed, int64_t vocab = 61) {
  Rng rng(seed);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(int32_t(rng.below(uint64_t(vocab))));
  return out;
}

inline Request request(std::vector<int32_t> prompt, int64_t max_new_tokens, uint64_t seed = 1) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_new_tokens = max_new_tokens;
  r.sampling.seed = seed;
  return r;
}

}  // namespace hysparse::tests
