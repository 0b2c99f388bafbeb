// From the logits of a step to tokens: on the device where a request asks for nothing but tokens, else here.
#include <algorithm>

#include "base/error.h"
#include "engine/engine_impl.h"

namespace hysparse {

// Draws what it can and brings the logits of the other rows to the host. A token that cannot be drawn (-1:
// logits that are no numbers) has its logits brought, too: drawing here says what is wrong with them.
void Engine::Impl::draw_on_device(std::vector<Row>& rows, const TensorView& logits_view) {
  std::vector<DrawSettings> settings(static_cast<size_t>(logits_view.dim(0)),
                                     {.temperature = 0, .vocab = vocab});
  const auto draws_of = [&](Row& row) {
    return std::span(settings).subspan(
        static_cast<size_t>(row.first_logits + row.logits) - row.drafts.size() - 1, row.drafts.size() + 1);
  };
  const auto to_draw = [&](Row& row) {
    const Choice& choice = *row.choice;
    const Live& request = choice.live;
    // Log-probabilities of the prompt, and siblings that draw from the same logits.
    if (row.logits == 0 ||
        (!request.prompt_done && (request.request.prompt_logprobs || request.request.n > 1)))
      return false;
    int64_t ahead = 0;
    for (DrawSettings& draw : draws_of(row)) {
      const auto wanted = choice.writer.settings(ahead++);
      if (!wanted) return false;
      draw = *wanted;
    }
    return true;
  };
  std::vector<bool> here(rows.size());
  std::transform(rows.begin(), rows.end(), here.begin(), [&](Row& row) { return to_draw(row); });
  if (std::find(here.begin(), here.end(), true) != here.end()) {
    ensure_rows(drawn, DType::i32, logits_view.dim(0), 0, rt.memory);
    const TensorView tokens = drawn.view().rows(0, logits_view.dim(0));
    std::vector<int32_t> got(settings.size(), -1);
    if (rt.ops.draw_tokens(rt, {logits_view, settings, tokens}))
      rt.memory.to_host(got.data(), tokens.data, tokens.bytes());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!here[i]) continue;
      const auto begin = draws_of(rows[i]).data() - settings.data();
      rows[i].drawn.assign(got.begin() + begin, got.begin() + begin + std::ssize(draws_of(rows[i])));
      here[i] = std::find(rows[i].drawn.begin(), rows[i].drawn.end(), -1) == rows[i].drawn.end();
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (here[i] || rows[i].logits == 0) continue;
    const int64_t first = rows[i].first_logits, end = first + rows[i].logits;
    const TensorView from = logits_view.rows(first, end);
    rt.memory.to_host(host_logits.view().rows(first, end).data, from.data, from.bytes());
  }
}

void Engine::Impl::draw(std::vector<Row>& rows) {
  rt.pool.parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int worker) {
    Row& row = rows[static_cast<size_t>(i)];
    row.kept = row.count - static_cast<int64_t>(row.drafts.size());
    try {
      draw_row(row, scratch[static_cast<size_t>(worker)]);
    } catch (const Error& e) {  // of this request alone: its logits are not numbers, say
      fail(*row.choice, e.what());
    }
  });
  for (const Row& row : rows) {
    Live& request = row.choice->live;
    const auto drawn = static_cast<int64_t>(row.choice->event.tokens.size());
    const auto drafted = static_cast<int64_t>(row.drafts.size());
    if (drawn > 0 && request.first_token < 0) request.first_token = now();
    request.usage.completion_tokens += drawn;
    counted.generated_tokens += drawn;
    const int64_t accepted = row.kept - (row.count - drafted);
    request.usage.drafted += drafted;
    request.usage.accepted += accepted;
    counted.drafted += drafted;
    counted.accepted += accepted;
    if (drafted == 0) continue;
    // Proposals that are refused cost a row of the step each: fewer next time, more after a full success.
    int64_t& draft = row.choice->draft;
    draft = accepted == drafted ? std::min(options.speculate, draft + 2) : std::max<int64_t>(1, accepted + 1);
  }
}

void Engine::Impl::draw_row(Row& row, SamplerScratch& scratch) {
  Choice& choice = *row.choice;
  const Request& request = choice.live.request;
  const int64_t length = kv->length(choice.kv);
  const int64_t fed = row.count - static_cast<int64_t>(row.drafts.size());
  if (request.prompt_logprobs && !choice.live.prompt_done)
    for (int64_t i = 0; i < row.logits; ++i) {
      const int64_t next = length + row.count - row.logits + i + 1;  // whose probability this row tells
      if (next >= choice.live.usage.prompt_tokens) break;
      if (next != static_cast<int64_t>(choice.prompt_logprobs.size()) + request.prompt_logprobs_from)
        continue;
      choice.prompt_logprobs.push_back(
          LogSoftmax(logits_row(row.first_logits + i))
              .report(request.prompt[static_cast<size_t>(next)], std::max(0, request.logprobs)));
    }
  if (length + fed < static_cast<int64_t>(choice.tokens.size())) return;
  if (choice.writer.left() == 0) {
    finish(choice, FinishReason::length);
    return;
  }
  const auto drafts = static_cast<int64_t>(row.drafts.size());
  const int64_t first = row.first_logits + row.logits - 1 - drafts;
  for (int64_t i = 0;; ++i) {
    const int32_t there = row.drawn.empty() ? -1 : row.drawn[static_cast<size_t>(i)];
    AnswerWriter::Piece piece =
        there >= 0 ? choice.writer.take(there) : choice.writer.draw(logits_row(first + i), scratch);
    choice.tokens.push_back(piece.token);
    choice.event.tokens.push_back(piece.token);
    choice.event.text += piece.text;
    if (piece.logprobs) choice.event.logprobs.push_back(std::move(*piece.logprobs));
    if (choice.over() || i == drafts || piece.token != row.drafts[static_cast<size_t>(i)]) return;
    ++row.kept;
  }
}

}  // namespace hysparse
