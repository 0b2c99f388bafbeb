// Who runs, who waits, and what goes into a step.
#include <algorithm>
#include <iterator>
#include <span>
#include <tuple>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/ngram.h"

namespace hysparse {

void Engine::Impl::take_submitted() {
  const std::lock_guard lock(mutex);
  std::move(submitted.begin(), submitted.end(), std::back_inserter(live));
  submitted.clear();
}

void Engine::Impl::end_cancelled() {
  for (const auto& request : live)
    if (request->mailbox->cancelled())
      for (const auto& choice : request->choices)
        if (!choice->over()) {
          finish(*choice, FinishReason::cancelled);
          release(*choice);
        }
}

// Starved first, then by priority, then by arrival.
bool Engine::Impl::before(const Choice& a, const Choice& b) const {
  const auto rank = [&](const Choice& c) {
    return std::tuple(!starving(c.live), -static_cast<int64_t>(c.live.request.priority), c.live.id, c.index);
  };
  return rank(a) < rank(b);
}

int64_t Engine::Impl::waiting() const {
  int64_t n = 0;
  for (const auto& request : live)
    for (const auto& choice : request->choices) n += !choice->over() && !choice->running() ? 1 : 0;
  return n;
}

int Engine::Impl::free_sequence() const {
  const auto at = std::find(of_kv.begin(), of_kv.end(), nullptr);
  return at == of_kv.end() ? -1 : static_cast<int>(at - of_kv.begin());
}

// ---- making room

bool Engine::Impl::make_slot() {
  if (!kv->has_rings()) return true;
  while (kv->free_slots() == 0)
    if (!cache->evict()) return false;
  return true;
}

// The last in rank of those that run and go after `choice`; at admission, of those with less priority only.
Choice* Engine::Impl::victim(const Choice& choice, bool admission) const {
  Choice* last = nullptr;
  for (Choice* c : of_kv) {
    if (!c || c == &choice || c->in_step || !before(choice, *c)) continue;
    if (admission && c->live.request.priority >= choice.live.request.priority) continue;
    if (!last || before(*last, *c)) last = c;
  }
  return last;
}

void Engine::Impl::preempt(Choice& choice) {
  const int64_t bytes = kv->image_bytes(choice.kv);
  const bool swap = options.preemption == Preemption::swap && kv->length(choice.kv) > 0 &&
                    swapped_bytes + bytes <= options.swap_bytes;
  if (swap) {
    choice.image = kv->move_out(choice.kv);
    swapped_bytes += bytes;
    ++counted.preempted_swap;
  } else {
    kv->clear(choice.kv);
    ++counted.preempted_recompute;
  }
  ++choice.live.usage.preemptions;
  of_kv[static_cast<size_t>(choice.kv)] = nullptr;
  choice.kv = -1;
}

bool Engine::Impl::make_pages(Choice& choice, int64_t pages) {
  while (kv->free_pages() < pages) {
    if (cache->evict()) continue;
    Choice* other = victim(choice, true);
    if (!other) return false;
    preempt(*other);
  }
  return true;
}

// ---- admission

// First come, first served: nobody passes one that has no room yet.
void Engine::Impl::admit() {
  std::vector<Choice*> queue;
  for (const auto& request : live)
    for (const auto& choice : request->choices)
      if (!choice->over() && !choice->running() && (choice->index == 0 || request->prompt_done))
        queue.push_back(choice.get());
  std::sort(queue.begin(), queue.end(), [&](const Choice* a, const Choice* b) { return before(*a, *b); });
  size_t in = 0;
  while (in < queue.size() && admit(*queue[in])) ++in;
  for (; in < queue.size(); ++in) ++queue[in]->live.waited;
}

bool Engine::Impl::admit(Choice& choice) {
  int id = free_sequence();
  if (id < 0) {
    Choice* other = victim(choice, true);
    if (!other) return false;
    preempt(*other);
    id = free_sequence();
  }
  const int64_t running = std::count_if(of_kv.begin(), of_kv.end(), [](const Choice* c) { return c; });
  if (choice.image ? !move_in(choice, id, running)
                   : !start(choice, id, running, true) && (running > 0 || !start(choice, id, running, false)))
    return false;
  choice.kv = id;
  of_kv[static_cast<size_t>(id)] = &choice;
  if (choice.live.computed < 0) choice.live.computed = now();
  return true;
}

// Beside what it needs itself, a page for each that runs is left: else it would soon be moved out again.
bool Engine::Impl::move_in(Choice& choice, int id, int64_t running) {
  const int64_t pages = kv->pages_for(choice.image->length + 1);
  if (!make_pages(choice, pages + running) || !make_slot()) return false;
  kv->move_in(id, *choice.image);
  swapped_bytes -= static_cast<int64_t>(choice.image->bytes.size());
  choice.image.reset();
  return true;
}

bool Engine::Impl::start(Choice& choice, int id, int64_t running, bool use_cache) {
  Live& request = choice.live;
  const auto tokens = static_cast<int64_t>(choice.tokens.size());
  PrefixCache::Hit hit;
  // The row before the first token whose logprob is asked for must be computed.
  const bool collects = request.request.prompt_logprobs && !request.prompt_done;
  const std::span<const int32_t> reusable(
      choice.tokens.data(),
      collects ? static_cast<size_t>(request.request.prompt_logprobs_from) : choice.tokens.size());
  if (!options.prefix_cache || !request.request.cache_prompt)
    hit.reason = CacheMiss::disabled;
  else if (collects && reusable.size() == 1)
    hit.reason = CacheMiss::prompt_logprobs;
  else if (use_cache)
    hit = cache->find(key_of(request), reusable);
  for (const int32_t page : hit.pages) kv->hold_page(page);
  if (hit.slot >= 0) kv->hold_slot(hit.slot);
  const int64_t pages = kv->pages_for(tokens) - (kv->pages_for(1) > 0 ? hit.length / plan.page_size : 0);
  const bool room = make_pages(choice, pages + running) && make_slot();
  if (room && hit.length > 0) kv->attach(id, hit.pages, hit.length, hit.slot, hit.peak);
  for (const int32_t page : hit.pages) kv->drop_page(page);
  if (hit.slot >= 0) kv->drop_slot(hit.slot);
  if (!room) return false;
  kv->reserve(id, tokens);
  request.identity = identity;
  if (choice.index == 0 && !request.looked_up) {
    request.looked_up = true;
    request.usage.cached_tokens = hit.length;
    if (hit.length > 0)
      ++counted.cache_hits;
    else
      ++counted.cache_misses[static_cast<size_t>(hit.reason)];
  }
  counted.cached_tokens += hit.length;
  return true;
}

// ---- a step

std::vector<Row> Engine::Impl::plan_step() {
  std::vector<Choice*> decoding, reading;
  for (Choice* c : of_kv) {
    if (!c) continue;
    const bool one_left = kv->length(c->kv) + 1 == static_cast<int64_t>(c->tokens.size());
    (one_left && !c->writer.tokens().empty() ? decoding : reading).push_back(c);
  }
  for (auto* list : {&decoding, &reading})
    std::sort(list->begin(), list->end(), [&](const Choice* a, const Choice* b) { return before(*a, *b); });
  std::vector<Row> rows;
  int64_t budget = options.step_tokens;
  const auto add = [&](Choice* choice, Row row) {
    choice->in_step = true;
    row.choice = choice;
    budget -= row.count;
    rows.push_back(std::move(row));
  };
  auto still_to_decode = static_cast<int64_t>(decoding.size());
  for (Choice* c : decoding) {
    --still_to_decode;
    Row row{};
    if (c->running() && plan_decode(*c, row, budget - still_to_decode)) add(c, std::move(row));
  }
  for (Choice* c : reading) {
    Row row{};
    if (budget > 0 && c->running() && plan_prefill(*c, row, budget)) add(c, std::move(row));
  }
  return rows;
}

bool Engine::Impl::plan_decode(Choice& choice, Row& row, int64_t budget) {
  const int64_t length = kv->length(choice.kv);
  const int64_t most = std::min({choice.draft, choice.writer.left() - 1, context - length - 1, budget - 1});
  if (most > 0) {
    row.drafts = propose_ngram(choice.tokens, {.draft = most});
    const int64_t target = length + 1 + static_cast<int64_t>(row.drafts.size());
    if (kv->pages_missing(choice.kv, target) > kv->free_pages())
      row.drafts.clear();  // not worth a page of others
  }
  row.count = 1 + static_cast<int64_t>(row.drafts.size());
  row.logits = row.count;
  while (kv->pages_missing(choice.kv, length + row.count) > kv->free_pages()) {
    if (cache->evict()) continue;
    Choice* other = victim(choice, false);
    if (!other) {
      preempt(choice);
      return false;
    }
    preempt(*other);
  }
  kv->reserve(choice.kv, length + row.count);  // before the next one counts what is free
  return true;
}

bool Engine::Impl::plan_prefill(Choice& choice, Row& row, int64_t budget) {
  const Request& request = choice.live.request;
  const int64_t length = kv->length(choice.kv), tokens = static_cast<int64_t>(choice.tokens.size()),
                prompt = static_cast<int64_t>(request.prompt.size());
  row.count = std::min(budget, tokens - length);
  if (length < prompt) {  // stops where a snapshot is due
    if (options.prefix_cache && request.cache_prompt)
      row.count = std::min(row.count, options.snapshot_interval - length % options.snapshot_interval);
    row.count = std::min(row.count, prompt - length);
  }
  row.prefill = true;
  // Rows that come before the first asked for go through without logits.
  const int64_t silent = request.prompt_logprobs_from - 1 - length;
  const bool collects = request.prompt_logprobs && !choice.live.prompt_done && silent <= 0;
  if (request.prompt_logprobs && !choice.live.prompt_done && silent > 0)
    row.count = std::min(row.count, silent);
  if (collects) {
    const auto a = static_cast<int64_t>(size_of(accumulation_dtype(model.compute())));
    row.count = std::min(row.count, std::max<int64_t>(1, rt.ops.chunk_bytes() / (vocab * a)));
  }
  row.logits = collects ? row.count : length + row.count == tokens ? 1 : 0;
  while (kv->pages_missing(choice.kv, length + row.count) > kv->free_pages()) {
    if (cache->evict()) continue;
    Choice* other = victim(choice, false);
    if (!other) return false;
    preempt(*other);
  }
  kv->reserve(choice.kv, length + row.count);
  return true;
}

}  // namespace hysparse
