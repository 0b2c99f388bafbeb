#include <atomic>
#include <optional>

#include "capi/guard.h"
#include "capi/objects.h"
#include "engine/generate.h"
#include "engine/session.h"

namespace hysparse::capi {
namespace {

std::vector<std::string> texts(const char* const* list, size_t count, const char* name) {
  array(list, count, name);
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i)
    out.emplace_back(&required(list[i], fmt::format("{}[{}]", name, i).c_str()));
  return out;
}

struct GenerationObject {
  GenerationObject(std::shared_ptr<ModelObject> owner, std::vector<int32_t> prompt,
                   const hysparse_generate_options& o)
      : model(std::move(owner)) {
    const TextModel& text = model->text;
    SessionOptions session_options;
    session_options.context = o.context;
    session_options.chunk = o.chunk;
    if (o.kv_cache_dtype) session_options.kv_dtype = parse_kv_dtype("kv_cache_dtype", o.kv_cache_dtype);
    if (o.max_new_tokens < -1)
      throw expected_error("max_new_tokens", "-1 or more", std::to_string(o.max_new_tokens));
    GenerateOptions g;
    g.sampling = sampling_of(o);
    g.max_new_tokens = o.max_new_tokens;
    g.stops = stop_texts(o);
    if (!g.stops.empty()) text.text();  // or says what is missing
    if (!o.ignore_eos) g.eos = text.eos;
    if (text.tokenizer) {
      g.tokenizer_vocab = text.tokenizer->vocab_size();
      g.token_bytes = [&text](int32_t id) { return text.token_bytes(id); };
    }
    g.on_text = [this](std::string_view piece) { piece_ += piece; };
    g.on_token = [this](int32_t id) { token_ = id; };
    g.cancel = &cancel;
    g.prompt_step = o.chunk;
    session.emplace(model->machine.runtime(), model->text.model(), session_options);
    generator.emplace(*session, std::move(prompt), text.config().vocab_size, std::move(g));
  }

  // One step under the model's lock; what is new is then in piece() and token().
  bool step() {
    piece_.clear();
    token_ = -1;
    if (generator->done()) return false;
    const std::lock_guard turn(model->turn);
    return generator->step();
  }
  const std::string& piece() const { return piece_; }
  int32_t token() const { return token_; }

  std::shared_ptr<ModelObject> model;
  std::mutex user;  // held by the thread that this generation serves
  std::atomic<bool> cancel{false};
  std::optional<Session> session;
  std::optional<Generator> generator;

 private:
  std::string piece_;
  int32_t token_ = -1;
};

std::shared_ptr<GenerationObject> generation_of(hysparse_generation* handle) {
  return std::static_pointer_cast<GenerationObject>(find_handle(HandleKind::generation, handle));
}

std::unique_lock<std::mutex> use(GenerationObject& g) {
  std::unique_lock lock(g.user, std::try_to_lock);
  if (!lock) throw CodedError(HYSPARSE_BUSY, "generation: another thread is inside a call with it");
  return lock;
}

hysparse_generation* add(std::shared_ptr<GenerationObject> g) {
  return static_cast<hysparse_generation*>(add_handle(HandleKind::generation, std::move(g), AfterFork::dead));
}

}  // namespace

const hysparse_generate_options kGenerateDefaults = HYSPARSE_GENERATE_OPTIONS_INIT;

SamplerOptions sampling_of(const hysparse_generate_options& o) {
  SamplerOptions s{.temperature = o.temperature,
                   .top_k = o.top_k,
                   .top_p = o.top_p,
                   .min_p = o.min_p,
                   .repetition_penalty = o.repetition_penalty,
                   .seed = o.seed};
  s.check();
  return s;
}

std::vector<std::string> stop_texts(const hysparse_generate_options& o) {
  return texts(o.stop, o.stop_count, "stop");
}

int32_t finish_code(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return HYSPARSE_FINISH_STOP;
    case FinishReason::eos:
      return HYSPARSE_FINISH_EOS;
    case FinishReason::length:
      return HYSPARSE_FINISH_LENGTH;
    case FinishReason::cancelled:
      return HYSPARSE_FINISH_CANCELLED;
    case FinishReason::error:
      return HYSPARSE_FINISH_ERROR;
  }
  return HYSPARSE_FINISH_NONE;
}

}  // namespace hysparse::capi

using namespace hysparse;
using namespace hysparse::capi;

extern "C" {

int hysparse_generation_start(hysparse_model* model, const int32_t* prompt, size_t count,
                              const hysparse_generate_options* options, hysparse_generation** out) {
  return guarded([&] {
    const auto m = model_of(model);
    required(out, "out");
    const hysparse_generate_options o = take_options(options, kGenerateDefaults, "generate options");
    std::vector<int32_t> ids = m->text.or_start(m->checked_ids(prompt, count, "prompt"));
    *out = add(std::make_shared<GenerationObject>(m, std::move(ids), o));
    return HYSPARSE_OK;
  });
}

int hysparse_generation_next(hysparse_generation* generation, hysparse_piece* piece) {
  return guarded([&] {
    const auto g = generation_of(generation);
    check_result(piece, "piece");
    const auto used = use(*g);
    const bool more = g->step();
    put_result(piece, {0, g->piece().c_str(), g->piece().size(), g->token()});
    return more ? HYSPARSE_OK : HYSPARSE_END;
  });
}

int hysparse_generation_cancel(hysparse_generation* generation) {
  return guarded([&] {
    generation_of(generation)->cancel = true;
    return HYSPARSE_OK;
  });
}

int hysparse_generation_get_result(hysparse_generation* generation, hysparse_generation_result* result) {
  return guarded([&] {
    const auto g = generation_of(generation);
    check_result(result, "generation result");
    const auto used = use(*g);
    const Generation& r = g->generator->result();
    put_result(result, {0, r.text.c_str(), r.text.size(), r.tokens.data(), r.tokens.size(),
                        g->generator->done() ? finish_code(r.reason) : HYSPARSE_FINISH_NONE, r.prompt_tokens,
                        r.prompt_seconds, r.decode_seconds,
                        g->session->kv().page_bytes() + g->session->kv().ring_bytes()});
    return HYSPARSE_OK;
  });
}

int hysparse_generation_free(hysparse_generation* generation) {
  return guarded([&] {
    free_handle(HandleKind::generation, generation);
    return HYSPARSE_OK;
  });
}

int hysparse_generate(hysparse_model* model, const char* prompt, size_t bytes,
                      const hysparse_generate_options* options, hysparse_text_callback callback, void* user,
                      hysparse_generation** out) {
  return guarded([&] {
    const auto m = model_of(model);
    array(prompt, bytes, "prompt");
    const hysparse_generate_options o = take_options(options, kGenerateDefaults, "generate options");
    std::vector<int32_t> ids =
        m->text.or_start(m->text.text().encode_from_start({prompt, bytes}, o.special != 0));
    auto g = std::make_shared<GenerationObject>(m, m->checked_ids(ids.data(), ids.size(), "prompt"), o);
    for (bool more = true; more;) {
      more = g->step();
      if (!callback || g->piece().empty() || g->cancel) continue;
      if (callback(user, g->piece().c_str(), g->piece().size()) != 0) g->cancel = true;
    }
    if (out) *out = add(std::move(g));
    return HYSPARSE_OK;
  });
}

}  // extern "C"
