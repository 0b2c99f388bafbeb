#include <algorithm>
#include <chrono>
#include <optional>

#include "capi/guard.h"
#include "capi/objects.h"
#include "engine/engine_thread.h"

namespace hysparse::capi {
namespace {

const hysparse_engine_options kEngineDefaults = HYSPARSE_ENGINE_OPTIONS_INIT;
const hysparse_submit_options kSubmitDefaults = HYSPARSE_SUBMIT_OPTIONS_INIT;

// Takes its turn on the model like every other call.
class TurnStep : public ModelStep {
 public:
  explicit TurnStep(ModelObject& owner) : ModelStep(owner.text.model()), owner_(owner) {}
  void forward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits) override {
    const std::lock_guard turn(owner_.turn);
    ModelStep::forward(rt, batch, tokens, kv, logits);
  }

 private:
  ModelObject& owner_;
};

EngineOptions options_of(const hysparse_engine_options& o, const TextModel& text) {
  EngineOptions e;
  e.context = o.context;
  e.memory.kv_bytes = o.kv_bytes;
  e.memory.page_size = o.page_size;
  if (o.kv_cache_dtype) e.memory.kv_dtype = parse_kv_dtype("kv_cache_dtype", o.kv_cache_dtype);
  e.memory.max_sequences = o.max_sequences;
  e.step_tokens = o.step_tokens;
  e.snapshot_interval = o.snapshot_interval;
  e.speculate = o.speculate;
  e.max_queued = o.max_queued;
  e.prefix_cache = o.prefix_cache != 0;
  e.preemption = o.recompute ? Preemption::recompute : Preemption::swap;
  if (o.batch_invariant >= 0) e.batch_invariant = o.batch_invariant != 0;
  e.eos = text.eos;
  if (text.tokenizer) {
    e.tokenizer_vocab = text.tokenizer->vocab_size();
    e.token_bytes = [&text](int32_t id) { return text.token_bytes(id); };
  }
  return e;
}

struct EngineObject {
  EngineObject(std::shared_ptr<ModelObject> owner, const hysparse_engine_options& o)
      : model(std::move(owner)),
        step(*model),
        engine(model->machine.runtime(), step, options_of(o, model->text)),
        thread(engine) {}

  const std::shared_ptr<ModelObject> model;
  TurnStep step;
  Engine engine;
  EngineThread thread;  // last: it ends first
};

struct AnswerObject {
  std::mutex user;  // held by the thread that it serves
  std::unique_ptr<Answer> answer;
  Event event;  // what the caller's last event points into
};

std::shared_ptr<EngineObject> engine_of(hysparse_engine* handle) {
  return std::static_pointer_cast<EngineObject>(find_handle(HandleKind::engine, handle));
}
std::shared_ptr<AnswerObject> answer_of(hysparse_answer* handle) {
  return std::static_pointer_cast<AnswerObject>(find_handle(HandleKind::answer, handle));
}

}  // namespace
}  // namespace hysparse::capi

using namespace hysparse;
using namespace hysparse::capi;

extern "C" {

int hysparse_engine_start(hysparse_model* model, const hysparse_engine_options* options,
                          hysparse_engine** out) {
  return guarded([&] {
    const auto m = model_of(model);
    required(out, "out");
    const hysparse_engine_options o = take_options(options, kEngineDefaults, "engine options");
    auto engine = std::make_shared<EngineObject>(m, o);
    *out = static_cast<hysparse_engine*>(add_handle(HandleKind::engine, std::move(engine), AfterFork::dead));
    return HYSPARSE_OK;
  });
}

int hysparse_engine_free(hysparse_engine* engine) {
  return guarded([&] {
    free_handle(HandleKind::engine, engine);
    return HYSPARSE_OK;
  });
}

int hysparse_engine_submit(hysparse_engine* engine, const int32_t* prompt, size_t count,
                           const hysparse_generate_options* options, const hysparse_submit_options* submit,
                           hysparse_answer** out) {
  return guarded([&] {
    const auto e = engine_of(engine);
    required(out, "out");
    const hysparse_generate_options o = take_options(options, kGenerateDefaults, "generate options");
    const hysparse_submit_options s = take_options(submit, kSubmitDefaults, "submit options");
    Request r;
    r.prompt = e->model->text.or_start(e->model->checked_ids(prompt, count, "prompt"));
    r.sampling = sampling_of(o);
    if (o.max_new_tokens < -1)
      throw expected_error("max_new_tokens", "-1 or more", std::to_string(o.max_new_tokens));
    r.max_new_tokens = o.max_new_tokens;
    r.ignore_eos = o.ignore_eos != 0;
    r.stops = stop_texts(o);
    r.n = s.n;
    r.priority = s.priority;
    r.cache_prompt = s.cache_prompt != 0;
    auto answer = std::make_shared<AnswerObject>();
    answer->answer = e->engine.submit(std::move(r));
    *out = static_cast<hysparse_answer*>(add_handle(HandleKind::answer, std::move(answer), AfterFork::dead));
    return HYSPARSE_OK;
  });
}

int hysparse_engine_get_stats(hysparse_engine* engine, hysparse_engine_stats* stats) {
  return guarded([&] {
    const auto e = engine_of(engine);
    check_result(stats, "engine stats");
    const EngineStats s = e->engine.stats();
    put_result(stats, {0,
                       e->engine.context(),
                       s.queued,
                       s.running,
                       s.page_size,
                       s.pages,
                       s.pages_used,
                       s.pages_cached,
                       s.slots,
                       s.slots_running,
                       s.slots_snapshots,
                       s.submitted,
                       s.finished,
                       s.cancelled,
                       s.failed,
                       s.prompt_tokens,
                       s.cached_tokens,
                       s.generated_tokens,
                       s.drafted,
                       s.accepted,
                       s.cache_hits,
                       s.preempted_swap + s.preempted_recompute,
                       s.steps,
                       s.step_seconds,
                       e->thread.healthy(60) ? 1 : 0});
    return HYSPARSE_OK;
  });
}

int hysparse_answer_next(hysparse_answer* answer, int64_t timeout_ms, hysparse_event* event) {
  return guarded([&] {
    const auto a = answer_of(answer);
    check_result(event, "event");
    const std::unique_lock used(a->user, std::try_to_lock);
    if (!used) throw CodedError(HYSPARSE_BUSY, "answer: another thread is inside a call with it");
    constexpr int64_t kLongest = int64_t(1) << 40;
    std::optional<Event> next =
        a->answer->next(std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kLongest)));
    if (!next && a->answer->done()) return HYSPARSE_END;
    a->event = next ? std::move(*next) : Event{.choice = -1};
    const Event& e = a->event;
    const Usage usage = e.usage.value_or(Usage{});
    put_result(event, {0, e.choice, e.finish ? finish_code(*e.finish) : HYSPARSE_FINISH_NONE, e.text.c_str(),
                       e.text.size(), e.tokens.data(), e.tokens.size(), e.error.c_str(), e.usage ? 1 : 0,
                       usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens});
    return HYSPARSE_OK;
  });
}

int hysparse_answer_cancel(hysparse_answer* answer) {
  return guarded([&] {
    answer_of(answer)->answer->cancel();
    return HYSPARSE_OK;
  });
}

int hysparse_answer_free(hysparse_answer* answer) {
  return guarded([&] {
    free_handle(HandleKind::answer, answer);
    return HYSPARSE_OK;
  });
}

}  // extern "C"
