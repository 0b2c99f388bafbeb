#include "serve/completion.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "serve/http_text.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBacklog =
    256 << 10;  // bytes that a slow client may owe before its answer waits in the engine

double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

std::string finish_name(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

int64_t characters(std::string_view utf8) {
  int64_t n = 0;
  for (const char c : utf8) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return n;
}

std::string dump(const Json& j) {
  return j.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Completion::Completion(Context context, std::shared_ptr<HttpExchange> exchange, PreparedCompletion prepared,
                       std::string id, Clock::time_point arrived, Done done)
    : context_(context),
      exchange_(std::move(exchange)),
      api_(std::move(prepared.api)),
      requests_(std::move(prepared.requests)),
      id_((api_.chat ? "chatcmpl-" : "cmpl-") + id),
      arrived_(arrived),
      done_(std::move(done)),
      created_(static_cast<int64_t>(std::time(nullptr))),
      choices_(requests_.size() * static_cast<size_t>(api_.n)),
      prompt_logprobs_(requests_.size()) {}

void Completion::start() {
  const std::weak_ptr<Completion> weak = weak_from_this();
  exchange_->gone = [weak] {
    if (const auto self = weak.lock()) {
      ++self->context_.metrics.disconnects;
      self->leave(499);
    }
  };
  exchange_->drained = [weak] {
    if (const auto self = weak.lock()) self->pump();
  };
  try {
    for (Request& r : requests_) {
      if (api_.echo) prompts_.push_back(r.prompt);
      r.on_event = [weak, woken = woken_, &http = context_.http] {
        if (woken->exchange(true)) return;
        http.post([weak] {
          if (const auto self = weak.lock()) self->pump();
        });
      };
      answers_.push_back(context_.engine.submit(std::move(r)));
      ++open_;
    }
  } catch (const Error& e) {
    return fail(e.kind() == ErrorKind::input ? 400 : 503, e.what());
  }
  requests_.clear();
  pump();
}

void Completion::cancel(const std::string& why) {
  if (!over_) fail(503, why);
}

void Completion::pump() {
  if (over_) return;
  const auto self = shared_from_this();
  woken_->store(false);
  for (size_t p = 0; p < answers_.size() && !over_; ++p) {
    while (!over_ && (!api_.stream || exchange_->backlog() < kBacklog)) {
      std::optional<Event> event = answers_[p]->next(std::chrono::milliseconds(0));
      if (!event) break;
      take(p, std::move(*event));
    }
  }
  if (!over_ && open_ == 0) finish();
}

void Completion::measure(Choice& c, const Event& event) {
  if (event.tokens.empty()) return;
  const Clock::time_point now = Clock::now();
  const auto n = static_cast<int64_t>(event.tokens.size());
  if (c.last_token == Clock::time_point()) {
    context_.metrics.first_token.add(since(arrived_));
  } else {
    context_.metrics.inter_token.add(
        std::chrono::duration<double>(now - c.last_token).count() / static_cast<double>(n), n);
  }
  c.last_token = now;
}

void Completion::take(size_t prompt, Event event) {
  const size_t index = prompt * static_cast<size_t>(api_.n) + static_cast<size_t>(event.choice);
  Choice& c = choices_[index];
  measure(c, event);
  for (TokenLogprobs& l : event.prompt_logprobs) prompt_logprobs_[prompt].push_back(std::move(l));
  event.prompt_logprobs.clear();
  if (event.usage) {
    const Usage& u = *event.usage;
    usage_.prompt_tokens += u.prompt_tokens;
    usage_.cached_tokens += u.cached_tokens;
    usage_.completion_tokens += u.completion_tokens;
    context_.metrics.queue_seconds.add(u.queue_seconds);
    --open_;
  }
  if (event.finish == FinishReason::error) return fail(500, event.error);
  if (event.finish == FinishReason::cancelled)
    return fail(503, "the request was cancelled: the server is stopping");
  if (event.finish) c.finish = finish_name(*event.finish);
  if (api_.stream) return stream(index, c, event);
  c.text += event.text;
  c.logprobs.insert(c.logprobs.end(), std::make_move_iterator(event.logprobs.begin()),
                    std::make_move_iterator(event.logprobs.end()));
}

// ---- streams

Json Completion::chunk(size_t index) const {
  Json out = {{"id", id_},
              {"object", api_.chat ? "chat.completion.chunk" : "text_completion"},
              {"created", created_},
              {"model", context_.model.name},
              {"choices", Json::array({{{"index", index}}})}};
  if (api_.include_usage) out["usage"] = nullptr;
  return out;
}

void Completion::send(const Json& chunk) {
  if (!began_)
    exchange_->begin(200, "text/event-stream; charset=utf-8",
                     {{"Cache-Control", "no-store"}, {"X-Request-Id", id_}});
  began_ = true;
  exchange_->write("data: " + dump(chunk) + "\n\n");
}

void Completion::stream(size_t index, Choice& c, const Event& event) {
  const bool first = !c.begun;
  c.begun = true;
  if (api_.chat && first) {
    Json j = chunk(index);
    j["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
    j["choices"][0]["finish_reason"] = nullptr;
    send(j);
  }
  std::string text = event.text;
  if (api_.echo && first) text = echo_text(index / static_cast<size_t>(api_.n)) + text;
  const bool says = !text.empty() || !event.logprobs.empty();
  if (!says && !event.finish) return;
  Json j = chunk(index);
  Json& choice = j["choices"][0];
  if (api_.chat) {
    choice["delta"] = Json::object();
    if (says) choice["delta"]["content"] = text;
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] =
      api_.logprobs >= 0 && says ? logprobs_of(index, c, event.logprobs, first && api_.echo) : Json(nullptr);
  choice["finish_reason"] = event.finish ? Json(c.finish) : Json(nullptr);
  send(j);
}

// ---- what an answer says

std::string Completion::echo_text(size_t prompt) const {
  return context_.model.text(prompts_[prompt]);
}

// One entry a token of the prompt; the first has no probability.
std::vector<TokenLogprobs> Completion::echo_logprobs(size_t prompt) const {
  std::vector<TokenLogprobs> out;
  out.push_back({{prompts_[prompt].front(), 0}, {}});
  out.insert(out.end(), prompt_logprobs_[prompt].begin(), prompt_logprobs_[prompt].end());
  return out;
}

Json Completion::completion_logprobs(const std::vector<TokenLogprobs>& list, int64_t& offset,
                                     bool first_is_bare) const {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  bool bare = first_is_bare;
  for (const TokenLogprobs& l : list) {
    std::string text = context_.model.token_text(l.token.token);
    offsets.push_back(offset);
    offset += characters(context_.model.text({l.token.token}));
    values.push_back(bare ? Json(nullptr) : Json(l.token.logprob));
    if (bare || api_.logprobs == 0) {
      tops.push_back(nullptr);
    } else {
      Json top = Json::object();
      for (const TokenLogprob& t : l.top) {
        const std::string name = context_.model.token_text(t.token);
        if (!top.contains(name)) top[name] = t.logprob;  // of several that look alike, the likeliest
      }
      if (!top.contains(text)) top[text] = l.token.logprob;
      tops.push_back(std::move(top));
    }
    tokens.push_back(std::move(text));
    bare = false;
  }
  return {{"tokens", tokens}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

Json Completion::chat_logprobs(const std::vector<TokenLogprobs>& list) const {
  const auto entry = [&](const TokenLogprob& t) {
    Json bytes = Json::array();
    const auto& tokenizer = *context_.model.tokenizer;
    if (t.token < tokenizer.vocab_size())
      for (const char c : tokenizer.token_bytes(t.token))
        bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
    return Json{{"token", context_.model.token_text(t.token)}, {"logprob", t.logprob}, {"bytes", bytes}};
  };
  Json content = Json::array();
  for (const TokenLogprobs& l : list) {
    Json one = entry(l.token);
    one["top_logprobs"] = Json::array();
    for (const TokenLogprob& t : l.top) one["top_logprobs"].push_back(entry(t));
    content.push_back(std::move(one));
  }
  return {{"content", content}, {"refusal", nullptr}};
}

Json Completion::logprobs_of(size_t index, Choice& c, const std::vector<TokenLogprobs>& list,
                             bool with_prompt) {
  if (api_.chat) return chat_logprobs(list);
  if (!with_prompt) return completion_logprobs(list, c.characters, false);
  std::vector<TokenLogprobs> all = echo_logprobs(index / static_cast<size_t>(api_.n));
  all.insert(all.end(), list.begin(), list.end());
  return completion_logprobs(all, c.characters, true);
}

Json Completion::usage() const {
  return {{"prompt_tokens", usage_.prompt_tokens},
          {"completion_tokens", usage_.completion_tokens},
          {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage_.cached_tokens}}}};
}

// ---- ends

void Completion::finish() {
  over_ = true;
  context_.metrics.request_seconds.add(since(arrived_));
  if (api_.stream) {
    if (api_.include_usage) {
      Json j = chunk(0);
      j["choices"] = Json::array();
      j["usage"] = usage();
      send(j);
    }
    exchange_->write("data: [DONE]\n\n");
    exchange_->end();
  } else {
    Json out = {{"id", id_},
                {"object", api_.chat ? "chat.completion" : "text_completion"},
                {"created", created_},
                {"model", context_.model.name}};
    Json& list = out["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Choice& c = choices_[i];
      Json choice = {{"index", i}};
      if (api_.chat)
        choice["message"] = {{"role", "assistant"}, {"content", c.text}, {"refusal", nullptr}};
      else
        choice["text"] = api_.echo ? echo_text(i / static_cast<size_t>(api_.n)) + c.text : c.text;
      choice["logprobs"] = api_.logprobs >= 0 ? logprobs_of(i, c, c.logprobs, api_.echo) : Json(nullptr);
      choice["finish_reason"] = c.finish;
      list.push_back(std::move(choice));
    }
    out["usage"] = usage();
    exchange_->respond(200, "application/json", dump(out), {{"X-Request-Id", id_}});
  }
  leave(200);
}

void Completion::fail(int status, const std::string& what) {
  over_ = true;
  if (began_) {  // the status is out: an event says it, and the stream ends without its mark
    exchange_->write("data: " + http_error_body(status, what) + "\n\n");
    exchange_->end();
  } else {
    exchange_->respond(status, "application/json", http_error_body(status, what), {{"X-Request-Id", id_}});
  }
  leave(status);
}

void Completion::leave(int status) {
  over_ = true;
  exchange_->gone = exchange_->drained = nullptr;
  answers_.clear();  // what still runs ends
  if (const auto done = std::exchange(done_, nullptr)) done(usage_, status);
}

}  // namespace hysparse
