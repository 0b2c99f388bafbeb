// A server over a scripted model: what comes next depends on the last token alone, so tests need no weights.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../tokenizer/small_tokenizer.h"
#include "client.h"
#include "engine/engine_thread.h"
#include "engine/machine.h"
#include "serve/server.h"

namespace hysparse::tests {

inline ModelConfig script_config(int64_t vocab) {
  ModelConfig c;
  c.num_hidden_layers = 2;
  c.hidden_size = 8;
  c.num_attention_heads = 1;
  c.num_key_value_heads = 1;
  c.head_dim = 8;
  c.intermediate_size = 8;
  c.vocab_size = vocab;
  c.max_position_embeddings = 4096;
  c.sliding_window = 8;
  c.hysparse_block_size = 8;
  c.hysparse_topk_tokens = 16;
  c.attention = AttentionKind::hysparse;
  c.full_attention_interval = 2;
  c.finalize("SCRIPT");
  return c;
}

class ScriptModel : public StepModel {
 public:
  explicit ScriptModel(int64_t vocab)
      : config_(script_config(vocab)), plan_(build_layer_plan(config_)), next_(size_t(vocab), -1) {}
  const ModelConfig& config() const override { return config_; }
  const LayerPlan& plan() const override { return plan_; }
  DType compute() const override { return DType::f32; }
  uint64_t identity() const override { return 1; }

  // Behind `from` come `ids`, one after the other (each may stand in one script only). Before the first
  // request.
  void script(int32_t from, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) next_[size_t(from)] = id, from = id;
  }
  std::atomic<int> delay_us{0};
  std::atomic<bool> hang{false};

  // The scripted token gets 20, letters get 1 more than the rest: a flat choice where nothing is scripted.
  void forward(Runtime&, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits) override {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us.load()));
    while (hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t n = batch.tokens();
    for (size_t layer = 0; layer < plan_.size(); ++layer) {
      if (plan_[layer].kind != LayerKind::full && !plan_[layer].own_window_kv) continue;
      const Tensor k(DType::f32, {n, 1, config_.d()}), v(DType::f32, {n, 1, config_.dv()});
      kv.append(int(layer), batch, k, v);
    }
    for (size_t r = 0; r < batch.logit_rows.size(); ++r) {
      float* out = logits.at(int64_t(r)).as<float>();
      const int32_t next = next_[size_t(tokens.as<int32_t>()[batch.logit_rows[r]])];
      for (int64_t t = 0; t < config_.vocab_size; ++t) out[t] = t >= 'a' && t <= 'z' ? 1.f : -8.f;
      if (next >= 0) out[next] = 20.f;
    }
  }

 private:
  ModelConfig config_;
  LayerPlan plan_;
  std::vector<int32_t> next_;
};

// The byte tokenizer with these merges; "<|end|>" is the last id.
struct RigOptions {
  std::vector<std::pair<std::string, std::string>> merges;
  std::string chat_template = "plain";
  ServerOptions server;
  int64_t sequences = 4, context = 0;
};

class ServeRig {
 public:
  explicit ServeRig(RigOptions o = {})
      : tokenizer(std::make_shared<const Tokenizer>(test::load(test::tokenizer_json(o.merges)))),
        model(tokenizer->vocab_size()),
        end(tokenizer->vocab_size() - 1),
        options_(std::move(o)),
        machine_({"cpu", 1, "f32"}) {}
  ~ServeRig() {
    model.hang = false;
    server_.reset();
    thread_.reset();
  }

  int32_t token(const std::string& bytes) const {
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id)
      if (tokenizer->token_bytes(id) == bytes) return id;
    ADD_FAILURE() << "no token " << bytes;
    return 0;
  }
  // Prompt [from] is answered by these texts, then the end.
  void say(int32_t from, const std::vector<std::string>& texts, bool then_end = true) {
    std::vector<int32_t> ids;
    for (const auto& t : texts) ids.push_back(token(t));
    if (then_end) ids.push_back(end);
    model.script(from, ids);
  }

  int port() {
    start();
    return server_->port();
  }
  Server& server() {
    start();
    return *server_;
  }
  Engine& engine() {
    start();
    return *engine_;
  }
  EngineThread& thread() { return *thread_; }

  Reply complete(Json body) { return post(port(), "/v1/completions", body); }
  Json chat_body(const std::string& content = "hi") {
    return {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}};
  }
  // Until nothing runs and no page belongs to a running choice.
  bool quiet(double seconds = 10) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < until) {
      const EngineStats s = engine().stats();
      if (s.running == 0 && s.queued == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  void expect_alive() {
    EXPECT_EQ(get(port(), "/health").status, 200);
    const Reply r =
        post(port(), "/v1/completions", Json{{"prompt", {int('z')}}, {"temperature", 0}, {"max_tokens", 2}});
    EXPECT_EQ(r.status, 200) << r.body;
    const Json text = r.json()["choices"][0]["text"];
    if (alive_.is_null()) alive_ = text;
    EXPECT_EQ(text, alive_);
  }
  void learn_alive() {
    alive_ =
        post(port(), "/v1/completions", Json{{"prompt", {int('z')}}, {"temperature", 0}, {"max_tokens", 2}})
            .json()["choices"][0]["text"];
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  ScriptModel model;
  const int32_t end;

 private:
  void start() {
    if (server_) return;
    EngineOptions e;
    e.eos = {end};
    e.tokenizer_vocab = tokenizer->vocab_size();
    e.token_bytes = [this](int32_t id) {
      return tokenizer->is_special(id) ? std::string_view() : tokenizer->token_bytes(id);
    };
    e.memory.kv_bytes = 8 << 20;
    e.memory.max_sequences = options_.sequences;
    e.context = options_.context;
    e.check_steps = true;
    engine_ = std::make_unique<Engine>(machine_.runtime(), model, e);
    thread_ = std::make_unique<EngineThread>(*engine_);
    ServedModel m;
    m.name = "script";
    m.tokenizer = tokenizer;
    m.eos = {end};
    m.vocab = tokenizer->vocab_size();
    m.context = engine_->context();
    m.eos_text = "<|end|>";
    if (!options_.chat_template.empty()) m.chat = ChatTemplate::builtin(options_.chat_template);
    options_.server.http.port = 0;
    server_ = std::make_unique<Server>(options_.server, std::move(m), *engine_,
                                       [this] { return thread_->failure(); });
  }

  RigOptions options_;
  Machine machine_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EngineThread> thread_;
  std::unique_ptr<Server> server_;
  Json alive_;
};

// What a stream said of each choice.
struct Streamed {
  std::map<int, std::string> text, finish;
  int bare_usage = 0;  // chunks without choices
  Json usage;
};
inline Streamed gather(const Reply& r, bool chat) {
  Streamed out;
  for (const Json& e : r.events()) {
    EXPECT_TRUE(e.contains("choices")) << e;
    if (e["choices"].empty()) {
      ++out.bare_usage;
      out.usage = e["usage"];
    }
    for (const Json& c : e["choices"]) {
      const int i = c["index"];
      EXPECT_EQ(out.finish.count(i), 0u) << "a chunk behind the finish of choice " << i;
      if (chat)
        out.text[i] += c["delta"].value("content", "");
      else
        out.text[i] += c["text"].get<std::string>();
      if (!c["finish_reason"].is_null()) out.finish[i] = c["finish_reason"];
    }
  }
  return out;
}

}  // namespace hysparse::tests
