#include "serve/server.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "serve/completion.h"
#include "serve/http_text.h"
#include "serve/page.h"
#include "serve/workers.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;
using Exchange = std::shared_ptr<HttpExchange>;

constexpr double kPollSeconds = 0.2;  // between two looks at the engine

std::string dump(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

int64_t twin_bytes_per_token(const StepModel& m) {
  const ModelConfig& c = m.config();
  return c.num_hidden_layers * c.num_key_value_heads * (c.d() + c.dv()) *
         static_cast<int64_t>(size_of(m.compute()));
}

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& o, ServedModel m, Engine& e, std::function<std::string()> f, Log l)
      : options(o),
        model(std::move(m)),
        engine(e),
        failure(std::move(f)),
        log(std::move(l)),
        constraints(std::make_shared<const TokenTrie>(*model.tokenizer, model.eos)),
        limit(std::max<int64_t>(1, e.memory_plan().max_sequences) + o.max_queued),
        twin_bytes(twin_bytes_per_token(e.model())),
        rate(o.rate_limit),
        stats(e.stats()),
        polled(Clock::now()),
        secret(std::random_device{}() * 0x100000001ull ^ std::random_device{}()),
        workers(std::max(1, o.workers)),
        watcher([this](const std::stop_token& stop) { watch(stop); }),
        http(
            o.http, [this](Exchange x) { serve(std::move(x)); }, log) {}

  ~Impl() {
    workers.stop();
    watcher.request_stop();
    watcher.join();
  }

  // A thread of its own looks at the engine, so that nobody who asks about it ever waits for it.
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const EngineStats now = engine.stats();
      {
        const std::lock_guard<std::mutex> lock(mutex);
        stats = now;
        polled = Clock::now();
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(kPollSeconds));
    }
  }
  EngineStats engine_stats() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return stats;
  }

  // ---- routes
  void serve(Exchange x) {
    try {
      route(x);
    } catch (const ApiError& e) {
      refuse(x, e);
    } catch (const Error& e) {
      refuse(x, ApiError(e.kind() == ErrorKind::input ? 400 : 500, e.what()));
    }
  }

  void route(const Exchange& x) {
    const HttpRequest& r = x->request;
    struct Route {
      const char *method, *path;
      bool open;  // no key is asked for
      void (Impl::*handler)(const Exchange&);
    };
    static const Route routes[] = {{"GET", "/", true, &Impl::page},
                                   {"GET", "/health", true, &Impl::health},
                                   {"GET", "/metrics", true, &Impl::exposition},
                                   {"GET", "/v1/models", false, &Impl::models},
                                   {"GET", "/stats", false, &Impl::cache_picture},
                                   {"GET", "/tokenizer_info", false, &Impl::tokenizer_info},
                                   {"POST", "/tokenize", false, &Impl::tokenize},
                                   {"POST", "/detokenize", false, &Impl::detokenize},
                                   {"POST", "/v1/completions", false, &Impl::completions},
                                   {"POST", "/v1/chat/completions", false, &Impl::completions}};
    const auto here = [&](const Route& t) {
      return r.path == t.path || (t.handler == &Impl::models && r.path == "/v1/models/" + model.name);
    };
    const Route* found = nullptr;
    for (const Route& t : routes)
      if (here(t) && (t.method == r.method || (r.method == "HEAD" && std::string_view(t.method) == "GET")))
        found = &t;
    if (found == nullptr) {
      const bool known = std::any_of(std::begin(routes), std::end(routes), here);
      throw ApiError(known ? 405 : 404,
                     fmt::format("{} {} is not served here", r.method, r.path.substr(0, 200)));
    }
    int key = 0;
    if (!found->open) {
      key = options.keys.find(r.authorization);
      if (key < 0)
        throw ApiError(401, "a valid API key is needed: Authorization: Bearer KEY", {}, "invalid_api_key");
    }
    if (std::string_view(found->method) == "POST") {
      // Also what keeps web pages of others out: a browser asks first before it sends this type elsewhere.
      if (!r.content_type.starts_with("application/json"))
        throw ApiError(415, "expected Content-Type: application/json");
      const std::string caller = options.keys.empty() ? r.peer : std::to_string(key);
      const double wait = rate.take(caller, Clock::now());
      if (wait > 0) {
        ++metrics.rejected_rate;
        return refuse(x, ApiError(429, "too many requests of this caller", {}, "rate_limit_exceeded"), wait);
      }
    }
    (this->*found->handler)(x);
  }

  void answer(const Exchange& x, const Json& body, int status = 200) {
    answer(x, "application/json", dump(body), status);
  }
  void answer(const Exchange& x, std::string_view type, std::string body, int status = 200,
              const HttpFields& fields = {}) {
    ++metrics.responses[status];
    x->respond(status, type, std::move(body), fields);
  }
  void refuse(const Exchange& x, const ApiError& e, double wait = 1) {
    HttpFields fields;
    if (e.status == 429)
      fields.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(std::ceil(wait))));
    if (e.status == 401) fields.emplace_back("WWW-Authenticate", "Bearer");
    answer(x, "application/json", http_error_body(e.status, e.what(), e.param, e.code), e.status, fields);
  }
  // `job` on a worker; what it returns, or throws, answers the request.
  void work(const Exchange& x, std::function<Json()> job) {
    if (working >= options.max_queued + options.workers)
      return refuse(x, ApiError(429, "the server is busy", {}, "overloaded"));
    ++working;
    workers.add([this, x, job = std::move(job)] {
      Json body;
      std::optional<ApiError> error;
      try {
        body = job();
      } catch (const ApiError& e) {
        error = e;
      } catch (const std::exception& e) {
        error = ApiError(500, e.what());
      }
      http.post([this, x, body = std::move(body), error = std::move(error)] {
        --working;
        error ? refuse(x, *error) : answer(x, body);
      });
    });
  }

  // ---- small ones
  void page(const Exchange& x) {
    if (!options.page) throw ApiError(404, "the page is switched off");
    answer(x, "text/html; charset=utf-8", std::string(chat_page()), 200,
           {{"Cache-Control", "no-cache"},
            {"Content-Security-Policy",
             "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
             "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
  }
  void health(const Exchange& x) {
    const auto age = [](Clock::time_point t) {
      return std::chrono::duration<double>(Clock::now() - t).count();
    };
    std::string why = failure();
    Clock::time_point looked, moved;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      looked = polled;
      moved = stats.last_progress;
    }
    if (why.empty() && draining) why = "the server is stopping";
    if (why.empty() && age(looked) > options.stall_seconds) why = "the engine does not answer";
    if (why.empty() && age(moved) > options.stall_seconds)
      why = fmt::format("the engine has ended no step for {:.0f} seconds", age(moved));
    if (why.empty()) return answer(x, Json{{"status", "ok"}});
    answer(x, Json{{"status", "failing"}, {"reason", why}}, 503);
  }
  void exposition(const Exchange& x) {
    answer(x, "text/plain; version=0.0.4; charset=utf-8",
           metrics.text(engine_stats(), http.connections(), in_flight));
  }
  void models(const Exchange& x) {
    const Json one = {{"id", model.name},
                      {"object", "model"},
                      {"created", model.created},
                      {"owned_by", "hysparse"},
                      {"max_model_len", model.context}};
    answer(x, x->request.path == "/v1/models" ? Json{{"object", "list"}, {"data", Json::array({one})}} : one);
  }
  void cache_picture(const Exchange& x) {
    const EngineStats s = engine_stats();
    const KvPlan& plan = engine.memory_plan();
    answer(x, Json{{"model", model.name},
                   {"context", model.context},
                   {"chat", model.chat.has_value()},
                   {"page_size", s.page_size},
                   {"page_bytes", plan.page_bytes},
                   {"pages", s.pages},
                   {"pages_used", s.pages_used},
                   {"pages_cached", s.pages_cached},
                   {"slot_bytes", plan.slot_bytes},
                   {"slots", s.slots},
                   {"slots_running", s.slots_running},
                   {"slots_snapshots", s.slots_snapshots},
                   {"twin_bytes_per_token", twin_bytes},
                   {"queued", s.queued},
                   {"running", s.running},
                   {"swapped", s.swapped},
                   {"prompt_tokens", s.prompt_tokens},
                   {"cached_tokens", s.cached_tokens},
                   {"generated_tokens", s.generated_tokens},
                   {"cache_hits", s.cache_hits}});
  }
  void tokenizer_info(const Exchange& x) {
    const auto or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
    answer(x, Json{{"tokenizer_class", "hysparse"},
                   {"vocab_size", model.tokenizer->vocab_size()},
                   {"model_max_length", model.context},
                   {"bos_token", or_null(model.bos_text)},
                   {"eos_token", or_null(model.eos_text)},
                   {"pad_token", nullptr},
                   {"unk_token", nullptr},
                   {"chat_template", model.chat ? Json(model.chat->source()) : Json(nullptr)}});
  }
  void check_model(const std::string& asked) const {
    if (!asked.empty() && asked != model.name)
      throw ApiError(404,
                     fmt::format("the model {} is not served here; {} is", asked.substr(0, 200), model.name),
                     "model", "model_not_found");
  }

  void tokenize(const Exchange& x) {
    work(x, [this, body = std::move(x->request.body)] {
      const TokenizeRequest r = parse_tokenize_request(parse_api_body(body));
      check_model(r.model);
      std::vector<int32_t> ids;
      if (r.prompt)
        ids = r.add_special_tokens ? model.tokenizer->encode_from_start(*r.prompt, r.parse_special)
                                   : model.tokenizer->encode(*r.prompt, r.parse_special);
      else
        ids = model.encode_chat(r.messages, r.template_extra, r.add_generation_prompt);
      return Json{{"count", ids.size()}, {"max_model_len", model.context}, {"tokens", ids}};
    });
  }
  void detokenize(const Exchange& x) {
    work(x, [this, body = std::move(x->request.body)] {
      std::string asked;
      const std::vector<int32_t> ids = parse_detokenize_request(parse_api_body(body), model.vocab, asked);
      check_model(asked);
      return Json{{"prompt", model.text(ids)}};
    });
  }

  // ---- completions
  PreparedCompletion prepare(const std::string& body, bool chat) {
    PreparedCompletion out;
    out.api = parse_completion_request(parse_api_body(body), chat, model.vocab);
    CompletionRequest& api = out.api;
    check_model(api.model);
    if (!api.seeded) api.sampling.seed = mix64(secret ^ next_seed.fetch_add(1));
    Request base;
    base.sampling = api.sampling;
    base.n = static_cast<int>(api.n);
    base.stops = api.stop;
    for (const int32_t id : api.stop_token_ids) base.stop_ids.push_back({id});
    base.ignore_eos = api.ignore_eos;
    base.logprobs = static_cast<int>(api.logprobs);
    base.prompt_logprobs = api.echo && api.logprobs >= 0;
    base.cache_prompt = api.cache_prompt;
    base.cache_salt = api.cache_salt;
    base.constraint = constraints.get(api.format, api.schema);
    const auto add = [&](std::vector<int32_t> prompt) {
      const auto n = static_cast<int64_t>(prompt.size());
      const int64_t most =
          options.max_prompt_tokens > 0 ? std::min(options.max_prompt_tokens, model.context) : model.context;
      if (n > most)
        throw ApiError(400, fmt::format("the prompt's {} tokens are more than the limit of {}", n, most),
                       chat ? "messages" : "prompt", "context_length_exceeded");
      Request r = base;
      r.max_new_tokens = std::min(api.max_tokens.value_or(model.context), model.context);
      r.prompt = std::move(prompt);
      out.requests.push_back(std::move(r));
    };
    if (chat) add(model.encode_chat(api.messages, api.template_extra, api.add_generation_prompt));
    for (const ApiPrompt& p : api.prompts) add(model.encode_prompt(p, api.add_special_tokens));
    if (out.choices() > limit)
      throw ApiError(400,
                     fmt::format("{} prompts with {} choices each are more than {} at once",
                                 out.requests.size(), api.n, limit),
                     "n");
    return out;
  }

  void completions(const Exchange& x) {
    if (draining) throw ApiError(503, "the server is stopping");
    // Refused before anything of it is read: an answer in no time, whatever the load.
    if (in_flight + working >= limit) return overloaded(x);
    ++working;
    const bool chat = x->request.path == "/v1/chat/completions";
    workers.add([this, x, chat, arrived = Clock::now(), body = std::move(x->request.body)] {
      auto ready = std::make_shared<PreparedCompletion>();
      std::optional<ApiError> error;
      try {
        *ready = prepare(body, chat);
      } catch (const ApiError& e) {
        error = e;
      } catch (const Error& e) {
        error = ApiError(e.kind() == ErrorKind::input ? 400 : 500, e.what());
      } catch (const std::exception& e) {
        error = ApiError(500, e.what());
      }
      http.post([this, x, arrived, ready, error = std::move(error)] {
        --working;
        if (x->closed()) return;
        if (error) return refuse(x, *error);
        if (in_flight + ready->choices() > limit) return overloaded(x);
        begin(x, std::move(*ready), arrived);
      });
    });
  }
  void overloaded(const Exchange& x) {
    ++metrics.rejected_queue;
    refuse(x, ApiError(429, "the server is busy: its queue is full", {}, "overloaded"));
  }

  void begin(const Exchange& x, PreparedCompletion ready, Clock::time_point arrived) {
    const int64_t choices = ready.choices();
    in_flight += choices;
    const std::string id = fmt::format("{:016x}", mix64(secret ^ next_id++));
    const std::string path = x->request.path, peer = x->request.peer;
    // `running` holds the only lasting reference; the request's end takes it out, behind its own back.
    auto slot = std::make_shared<std::shared_ptr<Completion>>();
    *slot = std::make_shared<Completion>(
        Completion::Context{model, engine, http, metrics}, x, std::move(ready), id, arrived,
        [this, choices, arrived, id, path, peer, slot](const Usage& u, int status) {
          in_flight -= choices;
          ++metrics.responses[status];
          hysparse::log(log, LogLevel::info,
                        fmt::format("{} {} {} {} prompt {} cached {} drawn {} {:.3f} s", id, peer, path,
                                    status, u.prompt_tokens, u.cached_tokens, u.completion_tokens,
                                    std::chrono::duration<double>(Clock::now() - arrived).count()));
          http.post([this, slot] {
            running.erase(*slot);
            slot->reset();
          });
        });
    running.insert(*slot);
    const auto completion = *slot;
    completion->start();
  }

  const ServerOptions options;
  const ServedModel model;
  Engine& engine;
  const std::function<std::string()> failure;
  const Log log;
  ConstraintCache constraints;
  const int64_t limit;       // choices at once
  const int64_t twin_bytes;  // K and V of a token in every layer, as a model of full attention keeps them

  // the HTTP thread's
  RateLimit rate;
  ServerMetrics metrics;
  std::set<std::shared_ptr<Completion>> running;
  int64_t in_flight = 0, working = 0;
  uint64_t next_id = 0;

  std::atomic<uint64_t> next_seed{0};
  std::atomic<bool> draining{false};
  mutable std::mutex mutex;
  EngineStats stats;
  Clock::time_point polled;
  const uint64_t secret;
  Workers workers;
  std::jthread watcher;  // joins by itself where the line below throws
  HttpServer http;       // last: its thread uses all of the above
};

Server::Server(const ServerOptions& options, ServedModel model, Engine& engine,
               std::function<std::string()> failure, Log log)
    : impl_(std::make_unique<Impl>(options, std::move(model), engine, std::move(failure), std::move(log))) {}

Server::~Server() = default;

int Server::port() const {
  return impl_->http.port();
}

bool Server::drain(double seconds) {
  impl_->draining = true;
  impl_->http.close_gently();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::atomic<int64_t> left{1};
  const auto look = [&] {
    std::mutex m;
    std::condition_variable c;
    bool told = false;
    impl_->http.post([&] {
      left = impl_->in_flight + impl_->working;
      const std::lock_guard<std::mutex> lock(m);
      told = true;
      c.notify_one();
    });
    std::unique_lock<std::mutex> lock(m);
    c.wait(lock, [&] { return told; });
  };
  for (look(); left > 0 && Clock::now() < end; look())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (left > 0)
    impl_->http.post([this] {
      const auto all = impl_->running;
      for (const auto& c : all) c->cancel("the server is stopping");
    });
  for (int i = 0; i < 50 && impl_->http.connections() > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return left == 0;
}

}  // namespace hysparse
