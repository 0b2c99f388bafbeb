// What comes out of a step: draws, forks, snapshots, events.
#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"

namespace hysparse {
namespace {

constexpr int64_t kLeastCached = 16;  // tokens: a shorter prefix is computed as fast as it is found

}  // namespace

void ensure_rows(Tensor& buffer, DType dtype, int64_t rows, int64_t columns, Memory& memory) {
  if (buffer && buffer.view().dim(0) >= rows) return;
  buffer = {};  // before the new one is taken
  buffer = columns > 0 ? Tensor(dtype, {rows, columns}, memory) : Tensor(dtype, {rows}, memory);
}

void Engine::Impl::run(std::vector<Row>& rows) {
  RaggedBatch batch;
  std::vector<int> ids;
  std::vector<int32_t> tokens;
  int64_t logits_count = 0;
  bool drafts = false;
  for (Row& row : rows) {
    const Choice& choice = *row.choice;
    const int64_t length = kv->length(choice.kv), first = batch.tokens(),
                  fed = row.count - static_cast<int64_t>(row.drafts.size());
    batch.add_sequence(row.count, length);
    ids.push_back(choice.kv);
    tokens.insert(tokens.end(), choice.tokens.begin() + length, choice.tokens.begin() + length + fed);
    tokens.insert(tokens.end(), row.drafts.begin(), row.drafts.end());
    row.first_logits = logits_count;
    logits_count += row.logits;
    for (int64_t i = row.count - row.logits; i < row.count; ++i) batch.logit_rows.push_back(first + i);
    drafts = drafts || !row.drafts.empty();
  }
  const DType a = accumulation_dtype(model.compute());
  ensure_rows(token_buffer, DType::i32, std::max(batch.tokens(), options.step_tokens), 0, rt.memory);
  if (logits_count > 0) ensure_rows(logits, a, logits_count, vocab, rt.memory);
  const TensorView token_view = token_buffer.view().rows(0, batch.tokens());
  rt.memory.from_host(token_view.data, tokens.data(), token_view.bytes());
  const TensorView logits_view = logits_count > 0 ? logits.view().rows(0, logits_count) : TensorView{};
  forward(ids, batch, token_view, logits_view, drafts);
  if (logits_count > 0 && rt.memory.device() != DeviceKind::cpu) {
    ensure_rows(host_logits, a, logits_count, vocab, host_memory());
    draw_on_device(rows, logits_view);
  }
  draw(rows);
  std::vector<int64_t> kept;
  for (const Row& row : rows) kept.push_back(row.kept);
  kv->commit(kept);
  for (Row& row : rows) {
    Choice& choice = *row.choice;
    if (row.prefill) counted.prompt_tokens += row.count;
    if (!choice.over()) keep_prefix(choice, false);
    fork_choices(row);
    if (choice.over()) release(choice);
  }
}

// Decoding alone is a step that repeats.
void Engine::Impl::forward(const std::vector<int>& ids, const RaggedBatch& batch, const TensorView& tokens,
                           const TensorView& logits, bool drafts) {
  const uint64_t layout =
      kv->can_repeat() && batch.tokens() == batch.sequences() && batch.logit_rows.size() == ids.size()
          ? model.layout(rt, kv->repeat_bound(batch.max_kv_len()))
          : 0;
  if (layout != 0)
    return kv->repeat(ids, batch, layout, tokens, logits,
                      [&](const RaggedBatch& bounded) { model.forward(rt, bounded, tokens, *kv, logits); });
  kv->begin_step(ids, batch, drafts);
  model.forward(rt, batch, tokens, *kv, logits);
}

// The prompt of choice 0 is read: the others start from its end, as far as there is room; the rest wait, and
// find the prompt in the prefix cache.
void Engine::Impl::fork_choices(Row& row) {
  Choice& first = *row.choice;
  Live& request = first.live;
  if (first.index != 0 || request.prompt_done) return;
  const auto prompt = request.usage.prompt_tokens;
  if (!first.over() && kv->length(first.kv) < prompt) return;
  request.prompt_done = true;
  first.event.prompt_logprobs = std::move(first.prompt_logprobs);
  if (kv->length(first.kv) != prompt || row.logits == 0) return;
  for (const auto& sibling : request.choices) {
    Choice& choice = *sibling;
    if (choice.index == 0 || choice.over() || choice.running() || choice.image) continue;
    if (choice.writer.left() == 0) {
      finish(choice, FinishReason::length);
      continue;
    }
    const int id = free_sequence();
    if (id < 0 || !make_slot()) return;
    kv->fork(first.kv, id);
    choice.kv = id;
    of_kv[static_cast<size_t>(id)] = &choice;
    try {
      const AnswerWriter::Piece piece =
          choice.writer.draw(logits_row(row.first_logits + row.logits - 1), scratch.front());
      choice.tokens.push_back(piece.token);
      choice.event.tokens.push_back(piece.token);
      choice.event.text += piece.text;
      if (piece.logprobs) choice.event.logprobs.push_back(*piece.logprobs);
      ++request.usage.completion_tokens;
      ++counted.generated_tokens;
    } catch (const Error& e) {
      fail(choice, e.what());
    }
    if (choice.over()) release(choice);
  }
}

// Puts what the choice has in the cache now among the prefixes, where a snapshot is due: at multiples of the
// interval within the prompt, at its end, and (at_end) behind the answer.
void Engine::Impl::keep_prefix(Choice& choice, bool at_end) {
  const Live& request = choice.live;
  const int64_t length = kv->length(choice.kv), prompt = request.usage.prompt_tokens;
  if (!options.prefix_cache || !request.request.cache_prompt || length < kLeastCached) return;
  const bool due = at_end || length == prompt || (length < prompt && length % options.snapshot_interval == 0);
  if (!due || request.identity != identity) return;
  const std::span<const int32_t> tokens(choice.tokens.data(), static_cast<size_t>(length));
  const PrefixKey key = key_of(request);
  if (cache->covers(key, tokens)) {
    cache->find(key, choice.tokens);  // in use
    return;
  }
  int32_t slot = -1;
  if (kv->has_rings()) {
    if (!at_end && !make_slot()) return;
    slot = at_end ? kv->take_rings(choice.kv) : kv->copy_rings(choice.kv);
  }
  const auto pages = kv->pages(choice.kv).first(static_cast<size_t>(kv->pages_for(length)));
  cache->insert(key, tokens, pages, slot);
}

void Engine::Impl::fail(Choice& choice, const std::string& why) {
  choice.event.error = why;
  if (!choice.over()) finish(choice, FinishReason::error);
}

void Engine::Impl::finish(Choice& choice, FinishReason reason) {
  choice.event.text += choice.writer.finish(reason);
}

void Engine::Impl::release(Choice& choice) {
  if (choice.running()) {
    if (choice.writer.finished() != FinishReason::error) keep_prefix(choice, true);
    kv->clear(choice.kv);
    of_kv[static_cast<size_t>(choice.kv)] = nullptr;
    choice.kv = -1;
  }
  if (choice.image) swapped_bytes -= static_cast<int64_t>(choice.image->bytes.size());
  choice.image.reset();
}

bool Engine::Impl::deliver() {
  bool any = false;
  for (const auto& request : live) {
    // Where choice 0 ended within the prompt, the others read it themselves.
    if (request->choices.front()->over()) request->prompt_done = true;
    Choice* last = nullptr;
    bool all_over = true;
    for (const auto& choice : request->choices) {
      Event& e = choice->event;
      if (choice->over() && !choice->told) {
        e.finish = choice->writer.finished();
        choice->told = true;
      }
      all_over = all_over && choice->over();
      if (e.finish || !e.tokens.empty() || !e.text.empty() || !e.prompt_logprobs.empty()) last = choice.get();
    }
    if (!last) continue;
    any = true;
    if (all_over) {
      const double end = now();
      Usage& u = request->usage;
      const double computed = request->computed < 0 ? end : request->computed,
                   first = request->first_token < 0 ? end : request->first_token;
      u.queue_seconds = computed - request->submitted;
      u.prompt_seconds = first - computed;
      u.decode_seconds = end - first;
      last->event.usage = u;
      const auto ended = [&](FinishReason reason) {
        return std::any_of(request->choices.begin(), request->choices.end(),
                           [&](const auto& c) { return c->writer.finished() == reason; });
      };
      ++(ended(FinishReason::error)       ? counted.failed
         : ended(FinishReason::cancelled) ? counted.cancelled
                                          : counted.finished);
      const std::lock_guard lock(mutex);
      mailboxes.erase(request->id);
    }
    for (const auto& choice : request->choices) {
      Event& e = choice->event;
      if (!e.finish && e.tokens.empty() && e.text.empty() && e.prompt_logprobs.empty()) continue;
      Event next;
      next.choice = choice->index;
      std::swap(next, e);
      outbox.emplace_back(request->mailbox, std::move(next));
    }
  }
  std::erase_if(live, [](const auto& request) {
    return std::all_of(request->choices.begin(), request->choices.end(),
                       [](const auto& c) { return c->told; });
  });
  return any;
}

}  // namespace hysparse
