// The OpenAI-compatible server over an engine: routes, admission, health.
#pragma once

#include <memory>
#include <string>

#include "base/log.h"
#include "engine/engine.h"
#include "serve/access.h"
#include "serve/http.h"
#include "serve/served_model.h"

namespace hysparse {

struct ServerOptions {
  HttpOptions http;
  ApiKeys keys;
  double rate_limit = 0;          // requests a minute for each key (without keys: for each address); 0: none
  int64_t max_queued = 64;        // choices that may wait beside those that run; more are refused with 429
  int64_t max_prompt_tokens = 0;  // of one request; 0: the context
  double stall_seconds = 60;      // /health fails when the engine has work and ends no step for so long
  int workers = 2;                // threads that parse and tokenise
  bool page = true;               // the chat page at /
};

class Server {
 public:
  // Serves until it is destroyed. `engine` must be stepped by somebody else (EngineThread); `failure` says
  // what it broke on. Keeps references. Errors as HttpServer's.
  Server(const ServerOptions& options, ServedModel model, Engine& engine,
         std::function<std::string()> failure, Log log = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  // No new requests; waits up to `seconds` for the running ones, then ends them. False where some had to be
  // ended.
  bool drain(double seconds);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
