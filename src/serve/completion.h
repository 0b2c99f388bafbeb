// One request of /v1/completions or /v1/chat/completions, from its admission to the last byte of its answer.
// Lives on the HTTP server's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/api_request.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/served_model.h"

namespace hysparse {

// A request made ready by a worker: tokens, and what constrains its answers.
struct PreparedCompletion {
  CompletionRequest api;
  std::vector<Request> requests;  // one a prompt
  int64_t choices() const { return static_cast<int64_t>(requests.size()) * api.n; }
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  struct Context {
    const ServedModel& model;
    Engine& engine;
    HttpServer& http;
    ServerMetrics& metrics;
  };
  // `done(prompt tokens, cached, drawn, status)` is called once, when nothing of the request is left in the
  // engine.
  using Done = std::function<void(const Usage& usage, int status)>;
  Completion(Context context, std::shared_ptr<HttpExchange> exchange, PreparedCompletion prepared,
             std::string id, std::chrono::steady_clock::time_point arrived, Done done);

  void start();
  // Ends it from outside: the client learns why.
  void cancel(const std::string& why);

 private:
  struct Choice {
    std::string text;  // not streamed: all of it
    std::vector<TokenLogprobs> logprobs;
    std::string finish;
    bool begun = false;      // streamed: its first chunk is out
    int64_t characters = 0;  // of the tokens so far: text_offset
    std::chrono::steady_clock::time_point last_token{};
  };

  void pump();
  void take(size_t prompt, Event event);
  void measure(Choice& c, const Event& event);
  void finish();
  void fail(int status, const std::string& what);
  void leave(int status);

  Json chunk(size_t index) const;  // of a stream, with the choice's own fields missing
  void send(const Json& chunk);
  void stream(size_t index, Choice& c, const Event& event);
  Json whole() const;
  Json completion_logprobs(const std::vector<TokenLogprobs>& list, int64_t& offset, bool first_is_bare) const;
  Json chat_logprobs(const std::vector<TokenLogprobs>& list) const;
  Json usage() const;
  std::string echo_text(size_t prompt) const;
  std::vector<TokenLogprobs> echo_logprobs(size_t prompt) const;
  Json logprobs_of(size_t index, Choice& c, const std::vector<TokenLogprobs>& list, bool with_prompt);

  Context context_;
  std::shared_ptr<HttpExchange> exchange_;
  CompletionRequest api_;
  std::vector<Request> requests_;
  std::string id_;
  std::chrono::steady_clock::time_point arrived_;
  Done done_;
  int64_t created_;
  std::vector<std::unique_ptr<Answer>> answers_;
  std::vector<Choice> choices_;
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs_;  // a prompt
  std::vector<std::vector<int32_t>> prompts_;                // kept where they are echoed
  Usage usage_;
  int64_t cached_ = 0;
  size_t open_ = 0;  // answers whose last event has not come
  bool began_ = false, over_ = false;
  std::shared_ptr<std::atomic<bool>> woken_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace hysparse
