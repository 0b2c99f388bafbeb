#include "eval/ruler/sample.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hysparse::ruler {
namespace {

constexpr int64_t kAnswerSlack = 8;  // tokens beside the reference answer's own: a line end, other spaces

// A prompt that was tried.
struct Probe {
  int64_t units = 0, tokens = 0;
  Text text;
  std::vector<int32_t> prompt;
};

Probe try_units(const Draft& draft, const Prompter& prompter, int64_t units) {
  Probe p;
  p.units = units;
  p.text = draft.text(units);
  p.prompt = prompter.prompt(p.text.user, p.text.prefix);
  p.tokens = static_cast<int64_t>(p.prompt.size());
  return p;
}

// The largest prompt within `room`, from `best` (which fits) on. Prompts grow nearly evenly with their units,
// so a straight line through two of them finds the end in a few probes; halving is what is sure.
Probe grow(const Draft& draft, const Prompter& prompter, int64_t room, Probe best) {
  const int64_t most = draft.most();
  // Tokens a unit, at first from the bytes a unit adds: no tokens need to be made for that.
  const int64_t step = std::min<int64_t>(64, most - best.units);
  if (step == 0) return best;
  const auto bytes = [](const Text& t) { return static_cast<double>(t.user.size() + t.prefix.size()); };
  const double added = (bytes(draft.text(best.units + step)) - bytes(best.text)) / static_cast<double>(step);
  double slope = std::max(0.05, added * static_cast<double>(best.tokens) / bytes(best.text));
  int64_t bad = most + 1;  // does not fit, or is not there
  const int64_t endless = std::numeric_limits<int32_t>::max();
  for (int probes = 0; best.units + 1 < bad; ++probes) {
    const int64_t left = room - best.tokens;
    if (left < room / 500) break;  // as near as anyone can tell
    int64_t next = best.units + static_cast<int64_t>(static_cast<double>(left) / slope);
    if (probes > 3 && probes % 2 == 1 && bad <= endless) next = best.units + (bad - best.units) / 2;
    next = std::clamp(next, best.units + 1, bad - 1);
    Probe p = try_units(draft, prompter, next);
    if (p.units != best.units && p.tokens != best.tokens)
      slope = std::max(
          0.05, static_cast<double>(p.tokens - best.tokens) / static_cast<double>(p.units - best.units));
    if (p.tokens <= room)
      best = std::move(p);
    else
      bad = next;
  }
  return best;
}

}  // namespace

Sample fit_sample(const Task& task, const DraftOptions& o, int64_t answer_tokens) {
  Sample s;
  s.task = &task;
  s.length = o.length;
  s.index = o.index;
  std::unique_ptr<Draft> draft = make_draft(task, o);
  for (;;) {
    Probe least = try_units(*draft, o.prompter, draft->least());
    s.answer_tokens = std::max(answer_tokens > 0 ? answer_tokens : task.answer_tokens,
                               o.prompter.count(least.text.answer) + kAnswerSlack);
    const int64_t room = o.length - s.answer_tokens;
    if (least.tokens > room) {
      std::unique_ptr<Draft> smaller = draft->smaller();
      if (!smaller)
        throw expected_error(fmt::format("{} at length {}", task.name, o.length),
                             fmt::format("at least {} tokens ({} of the shortest prompt, {} for the answer)",
                                         least.tokens + s.answer_tokens, least.tokens, s.answer_tokens),
                             std::to_string(o.length),
                             "take a longer length, or leave the task out with --tasks");
      draft = std::move(smaller);
      continue;
    }
    Probe best = grow(*draft, o.prompter, room, std::move(least));
    s.units = best.units;
    s.exhausted = best.units == draft->most() && (room - best.tokens) * 100 > room;
    s.form = draft->form();
    s.text = std::move(best.text);
    s.prompt = std::move(best.prompt);
    return s;
  }
}

}  // namespace hysparse::ruler
