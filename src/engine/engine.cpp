#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "engine/engine_impl.h"

namespace hysparse {
namespace {

constexpr int64_t kPrefillReserve = 16;  // tokens of a step that decoding never takes
constexpr int64_t kSequencesOnDevice = 64;

// About what a step needs beside weights and cache: activations of its tokens, logits, block scores.
int64_t workspace_of(const ModelConfig& c, DType compute, const Ops& ops, int64_t tokens, int64_t rows,
                     KvDtype kv, int64_t context) {
  const auto t = static_cast<int64_t>(size_of(compute));
  const auto a = static_cast<int64_t>(size_of(accumulation_dtype(compute)));
  const int64_t heads =
      c.num_attention_heads * (2 * c.d() + 2 * c.dv() + 2) + 2 * c.kv_heads() * (c.d() + c.dv());
  const int64_t f = c.moe_intermediate_size, active = c.num_experts_per_tok;
  const int64_t width = std::max(c.intermediate_size, c.dense_width(true));
  // Rows to the experts and back, their MLP, the router's logits.
  const int64_t experts = active * (c.hidden_size + 2 * f) * t + c.n_routed_experts * a;
  const int64_t a_token =
      (6 * c.hidden_size + 3 * width + heads) * t + c.kv_heads() * c.entries() * 4 + experts;
  // On a device a layer's experts that are kept in 8 bits become the products' type, a matrix at a time.
  const bool device = ops.memory().device() != DeviceKind::cpu;
  const int64_t widened = device ? c.n_routed_experts * f * c.hidden_size * t : 0;
  const int64_t keys =
      kv == KvDtype::compute ? 0 : ops.widened_bytes(c.kv_heads() * (c.d() + c.dv()) * t, context);
  return tokens * a_token + rows * c.vocab_size * a + ops.chunk_bytes() + widened + keys;
}

EngineOptions checked(EngineOptions o, const ModelConfig& config, const Memory& memory) {
  const int64_t most = config.max_position_embeddings;
  if (o.context == 0) o.context = most;
  if (o.context < 1 || o.context > most)
    throw expected_error("context", fmt::format("1 to max_position_embeddings ({})", most),
                         std::to_string(o.context));
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least)
      throw expected_error(name, fmt::format("a number from {} on", least), std::to_string(value));
  };
  at_least("step_tokens", o.step_tokens, 1);
  at_least("snapshot_interval", o.snapshot_interval, 1);
  at_least("starvation_steps", o.starvation_steps, 1);
  at_least("swap_bytes", o.swap_bytes, -1);
  at_least("max_queued", o.max_queued, -1);
  if (o.speculate < 0 || o.speculate > 64)
    throw expected_error("speculate", "0 to 64 tokens", std::to_string(o.speculate));
  if (o.memory.max_sequences == 0 && memory.device() != DeviceKind::cpu)
    o.memory.max_sequences = kSequencesOnDevice;
  if (!o.prefix_cache) o.memory.snapshot_share = 0;
  return o;
}

}  // namespace

Engine::Impl::Impl(Runtime& rt, StepModel& model, const EngineOptions& given)
    : rt(rt), model(model), options(checked(given, model.config(), rt.memory)) {
  const ModelConfig& config = model.config();
  vocab = config.vocab_size;
  invariant = options.batch_invariant.value_or(rt.memory.device() == DeviceKind::cpu);
  const auto available = static_cast<int64_t>(std::min<size_t>(rt.memory.available(), INT64_MAX));
  const int64_t sequences = options.memory.max_sequences > 0 ? options.memory.max_sequences : 16;
  plan = plan_kv(config, model.plan(), model.compute(), options.context, options.memory, available,
                 workspace_of(config, model.compute(), rt.ops, options.step_tokens,
                              sequences * (1 + options.speculate), options.memory.kv_dtype, options.context));
  plan.weight_bytes = model.weight_bytes();
  context = plan.context;
  options.step_tokens = std::max(options.step_tokens, plan.max_sequences + kPrefillReserve);
  if (options.swap_bytes < 0) options.swap_bytes = plan.bytes();

  PagedKvOptions store;
  store.max_tokens = context;
  store.max_sequences = plan.max_sequences;
  store.page_size = plan.page_size;
  store.max_pages = std::max<int64_t>(1, plan.pages);
  store.slots = plan.slots;
  store.reserve_pages = true;
  store.dtype = model.compute();
  store.kv_dtype = plan.kv_dtype;
  store.poison = options.poison;
  kv = std::make_unique<PagedKv>(config, model.plan(), store, rt.memory, cache_runtime(rt, plan.kv_dtype));
  cache = std::make_unique<PrefixCache>(*kv);
  of_kv.resize(static_cast<size_t>(plan.max_sequences));
  scratch.resize(static_cast<size_t>(rt.pool.threads()));
  publish(0, 0);
}

Engine::Impl::~Impl() {
  take_submitted();
  for (const auto& request : live)
    for (const auto& choice : request->choices)
      if (!choice->over()) finish(*choice, FinishReason::cancelled);
  deliver();
  post();
}

double Engine::Impl::now() const {
  if (options.clock) return options.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Engine::Impl::check_request(const Request& r) const {
  const auto n = static_cast<int64_t>(r.prompt.size());
  if (n == 0) throw expected_error("prompt", "at least one token", "none");
  if (n > context)
    throw input_error("prompt", fmt::format("{} tokens are more than the context of {}", n, context),
                      "shorten the prompt or raise the context");
  for (const int32_t id : r.prompt)
    if (id < 0 || id >= vocab)
      throw expected_error("prompt", fmt::format("ids in [0, {})", vocab), std::to_string(id),
                           "the tokenizer must belong to the model");
  if (r.n < 1 || r.n > Request::kMaxChoices)
    throw expected_error("n", fmt::format("1 to {} choices", Request::kMaxChoices), std::to_string(r.n));
  if (r.prompt_logprobs && (r.prompt_logprobs_from < 1 || r.prompt_logprobs_from > n))
    throw expected_error("prompt_logprobs_from", fmt::format("1 to the prompt's {} tokens", n),
                         std::to_string(r.prompt_logprobs_from));
  if (!r.stops.empty() && !options.token_bytes)
    throw input_error("stop", "stop strings need text, and this model has no tokenizer");
}

std::unique_ptr<Answer> Engine::Impl::submit(Request request) {
  check_request(request);
  auto next = std::make_unique<Live>();
  next->submitted = now();
  next->mailbox = std::make_shared<Mailbox>(signal, std::move(request.on_event));
  next->usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  AnswerOptions o;
  o.sampling = request.sampling;
  o.vocab = vocab;
  o.drawable = options.tokenizer_vocab;
  o.limit = context - static_cast<int64_t>(request.prompt.size());
  if (request.max_new_tokens >= 0) o.limit = std::min(o.limit, request.max_new_tokens);
  if (!request.ignore_eos) o.eos = options.eos;
  o.stops = request.stops;
  o.stop_ids = request.stop_ids;
  o.logprobs = request.logprobs;
  o.token_bytes = options.token_bytes;
  o.constraint = request.constraint;
  for (int i = 0; i < request.n; ++i) {
    o.sampling.choice = request.sampling.choice + static_cast<uint64_t>(i);
    next->choices.push_back(std::make_unique<Choice>(*next, i, o));
    Choice& choice = *next->choices.back();
    choice.writer.see_prompt(request.prompt);
    choice.tokens = request.prompt;
    choice.draft = request.speculate ? options.speculate : 0;
    choice.event.choice = i;
  }
  next->request = std::move(request);
  std::unique_ptr<Answer> answer;
  {
    const std::lock_guard lock(mutex);
    if (!broken.empty()) throw failure("engine", broken);
    const int64_t n = next->request.n;
    if (options.max_queued >= 0 && queued_choices + n > options.max_queued)
      throw failure("engine", fmt::format("the queue of {} is full", options.max_queued), "try again later");
    queued_choices += n;
    next->id = ++last_id;
    mailboxes[next->id] = next->mailbox;
    answer = std::make_unique<Answer>(next->id, next->mailbox);
    submitted.push_back(std::move(next));
    ++published.submitted;
    published.queued = queued_choices;
  }
  signal->raise();
  return answer;
}

void Engine::Impl::cancel(RequestId id) {
  std::shared_ptr<Mailbox> mailbox;
  {
    const std::lock_guard lock(mutex);
    const auto found = mailboxes.find(id);
    if (found != mailboxes.end()) mailbox = found->second.lock();
  }
  if (mailbox) mailbox->cancel();
}

EngineStats Engine::Impl::stats() const {
  const std::lock_guard lock(mutex);
  return published;
}

bool Engine::Impl::step() {
  {
    const std::lock_guard lock(mutex);
    if (!broken.empty()) throw failure("engine", broken);
  }
  const double start = now();
  try {
    take_submitted();
    identity = live.empty() ? identity : model.identity();
    end_cancelled();
    for (Choice* choice : of_kv)
      if (choice) choice->in_step = false;
    admit();
    std::vector<Row> rows = plan_step();
    int64_t tokens = 0;
    for (const Row& row : rows) tokens += row.count;
    if (!rows.empty()) run(rows);
    const bool delivered = deliver();
    HYSPARSE_CHECK(!rows.empty() || delivered || live.empty(), "{} choices wait and none can start",
                   waiting());
    if (!rows.empty()) ++counted.steps;
    if (options.check_steps) check();
    publish(rows.empty() ? 0 : now() - start, tokens);
    post();
    return !rows.empty() || delivered;
  } catch (const std::exception& e) {
    break_down(e.what());
    throw;
  }
}

void Engine::Impl::break_down(const std::string& why) {
  kv->discard();
  {
    const std::lock_guard lock(mutex);
    broken = why;
  }
  take_submitted();
  for (const auto& request : live)
    for (const auto& choice : request->choices)
      if (!choice->over()) {
        fail(*choice, why);
        release(*choice);
      }
  deliver();
  post();
  publish(0, 0);
}

// After the figures: whoever sees an answer end finds it counted.
void Engine::Impl::post() {
  for (auto& [mailbox, event] : outbox) mailbox->post(std::move(event));
  outbox.clear();
}

void Engine::Impl::publish(double seconds, int64_t tokens) {
  EngineStats& s = counted;
  s.running = std::count_if(of_kv.begin(), of_kv.end(), [](const Choice* c) { return c != nullptr; });
  s.swapped = 0;
  for (const auto& request : live)
    for (const auto& choice : request->choices) s.swapped += choice->image ? 1 : 0;
  s.page_size = plan.page_size;
  s.pages = plan.pages;
  s.pages_used = kv->pages_in_use();
  s.pages_cached = cache->pages();
  s.slots = kv->slots();
  if (kv->has_rings()) {
    s.slots_snapshots = cache->ends();
    s.slots_running = s.slots - kv->free_slots() - s.slots_snapshots;
  }
  s.swap_bytes = swapped_bytes;
  s.cache_evictions = cache->evictions();
  if (tokens > 0) {
    s.step_seconds += seconds;
    s.last_step_seconds = seconds;
    s.last_step_tokens = tokens;
  }
  s.last_progress = std::chrono::steady_clock::now();
  const int64_t here = waiting();
  const std::lock_guard lock(mutex);
  queued_choices = here;
  for (const auto& request : submitted) queued_choices += request->request.n;
  const int64_t submitted_so_far = published.submitted;
  published = counted;
  published.submitted = submitted_so_far;
  published.queued = queued_choices;
}

void Engine::Impl::check() const {
  std::vector<int32_t> pages, slots;
  cache->held(pages, slots);
  kv->check(pages, slots);
  size_t running = 0;
  int64_t swapped = 0;
  for (const auto& request : live) {
    HYSPARSE_CHECK(static_cast<int>(request->choices.size()) == request->request.n, "a request lost choices");
    for (const auto& c : request->choices) {
      if (c->image) swapped += static_cast<int64_t>(c->image->bytes.size());
      HYSPARSE_CHECK(!c->over() || (!c->running() && !c->image), "a choice that is over holds memory");
      HYSPARSE_CHECK(!c->running() || !c->image, "a choice runs and is moved out");
      HYSPARSE_CHECK(static_cast<int64_t>(c->tokens.size()) <= context, "{} tokens in a context of {}",
                     c->tokens.size(), context);
      if (!c->running()) continue;
      ++running;
      HYSPARSE_CHECK(of_kv[static_cast<size_t>(c->kv)] == c.get(), "cache sequence {} is another's", c->kv);
      HYSPARSE_CHECK(kv->length(c->kv) < static_cast<int64_t>(c->tokens.size()),
                     "a choice of {} tokens with {} in the cache", c->tokens.size(), kv->length(c->kv));
    }
  }
  for (size_t id = 0; id < of_kv.size(); ++id) {
    running -= of_kv[id] ? 1 : 0;
    HYSPARSE_CHECK(
        of_kv[id] || (kv->length(static_cast<int>(id)) == 0 && kv->pages(static_cast<int>(id)).empty()),
        "cache sequence {} belongs to nobody", id);
  }
  HYSPARSE_CHECK(running == 0 && swapped == swapped_bytes, "running choices or moved out bytes miscounted");
}

PrefixKey Engine::Impl::key_of(const Live& request) const {
  return {cache_identity(identity, plan.kv_dtype), request.request.cache_salt};
}

TensorView Engine::Impl::logits_row(int64_t row) const {
  return (host_logits ? host_logits : logits).view().at(row);
}

// ---- the public face

Engine::Engine(Runtime& rt, StepModel& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(rt, model, options)) {}
Engine::~Engine() = default;
std::unique_ptr<Answer> Engine::submit(Request request) {
  return impl_->submit(std::move(request));
}
void Engine::cancel(RequestId id) {
  impl_->cancel(id);
}
bool Engine::step() {
  return impl_->step();
}
bool Engine::wait(std::chrono::milliseconds timeout) {
  return !impl_->live.empty() || impl_->signal->wait(timeout);
}
EngineStats Engine::stats() const {
  return impl_->stats();
}
const KvPlan& Engine::memory_plan() const {
  return impl_->plan;
}
int64_t Engine::context() const {
  return impl_->context;
}
const StepModel& Engine::model() const {
  return impl_->model;
}
void Engine::check() const {
  impl_->check();
}

}  // namespace hysparse
