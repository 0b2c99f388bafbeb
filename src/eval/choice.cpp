#include "eval/choice.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"
#include "io/text_lines.h"

namespace hysparse {
namespace {

ChoiceItem read_item(const Json& json, const std::string& where) {
  if (!json.is_object()) throw expected_error(where, "a JSON object", json.type_name());
  const std::vector<std::string> keys{"context", "choices", "gold", "id"};
  for (const auto& [key, value] : json.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::string near = nearest_name(key, keys);
    throw input_error(where, "unknown key " + quote_text(key),
                      near.empty() ? "" : "did you mean " + near + "?");
  }
  const auto get = [&](const char* key) -> const Json& {
    const auto at = json.find(key);
    if (at == json.end()) throw input_error(where, fmt::format("\"{}\" is missing", key));
    return *at;
  };
  const auto text = [&](const Json& value, const std::string& at) {
    if (!value.is_string()) throw expected_error(at, "a text", value.type_name());
    return value.get<std::string>();
  };
  ChoiceItem item;
  if (json.contains("id"))
    item.id = json["id"].is_string() ? json["id"].get<std::string>() : dump_json(json["id"], -1);
  item.context = text(get("context"), where + ".context");
  const Json& choices = get("choices");
  if (!choices.is_array() || choices.size() < 2)
    throw expected_error(where + ".choices", "a list of at least two texts",
                         choices.is_array() ? fmt::format("{}", choices.size()) : choices.type_name());
  for (size_t i = 0; i < choices.size(); ++i)
    item.choices.push_back(text(choices[i], fmt::format("{}.choices[{}]", where, i)));
  const Json& gold = get("gold");
  if (!gold.is_number_integer()) throw expected_error(where + ".gold", "a whole number", gold.type_name());
  item.gold = gold.get<int64_t>();
  if (item.gold < 0 || item.gold >= static_cast<int64_t>(item.choices.size()))
    throw expected_error(where + ".gold", fmt::format("0 to {}", item.choices.size() - 1), gold.dump());
  return item;
}

// An item on its way: first its context alone, then its choices beside each other.
struct Running {
  size_t item = 0;
  std::vector<Continuation> continuations;
  std::unique_ptr<Answer> context;
  struct Choice {
    std::unique_ptr<Answer> answer;
    std::vector<TokenLogprobs> logprobs;
    bool done = false;
  };
  std::vector<Choice> choices;
};

class Scorer {
 public:
  Scorer(Engine& engine, const TextModel& model, const std::vector<ChoiceItem>& items,
         const ChoiceOptions& options)
      : engine_(engine), model_(model), items_(items), options_(options), scored_(items.size()) {}

  std::vector<ScoredItem> run() {
    const auto most = static_cast<size_t>(engine_.memory_plan().max_sequences);
    size_t next = 0;
    int64_t done = 0;
    while (next < items_.size() || !running_.empty()) {
      if (options_.stop && options_.stop->load()) throw Error(ErrorKind::interrupted, "interrupted");
      for (; next < items_.size() && running_.size() < most; ++next) start(next);
      const bool worked = engine_.step();
      const size_t before = running_.size();
      for (Running& r : running_) collect(r);
      std::erase_if(running_, [](const Running& r) {
        return !r.choices.empty() &&
               std::all_of(r.choices.begin(), r.choices.end(), [](const auto& c) { return c.done; });
      });
      done += static_cast<int64_t>(before - running_.size());
      if (before != running_.size() && options_.progress) options_.progress(done);
      HYSPARSE_CHECK(worked || before != running_.size() || running_.empty(),
                     "the engine stopped before its requests were done");
    }
    return std::move(scored_);
  }

 private:
  std::string name(size_t item) const {
    return items_[item].id.empty() ? fmt::format("item {}", item + 1)
                                   : fmt::format("item {} ({})", item + 1, items_[item].id);
  }

  void start(size_t index) {
    const ChoiceItem& item = items_[index];
    Running r;
    r.item = index;
    for (size_t c = 0; c < item.choices.size(); ++c) {
      Continuation next = encode_continuation(model_, item.context, options_.delimiter + item.choices[c]);
      const auto n = static_cast<int64_t>(next.ids.size());
      const std::string where = fmt::format("{}, choice {}", name(index), c);
      if (n <= next.context) throw input_error(where, "the choice adds no token to the context");
      if (n > engine_.context())
        throw input_error(where,
                          fmt::format("{} tokens are more than the context of {}", n, engine_.context()),
                          "shorten it, or raise --context");
      r.continuations.push_back(std::move(next));
    }
    const Continuation& first = r.continuations.front();
    Request request;
    request.prompt.assign(first.ids.begin(), first.ids.begin() + first.context);
    request.max_new_tokens = 0;
    r.context = engine_.submit(std::move(request));
    running_.push_back(std::move(r));
  }

  void ask_choices(Running& r) {
    for (const Continuation& c : r.continuations) {
      Request request;
      request.prompt = c.ids;
      request.max_new_tokens = 0;
      request.logprobs = 1;
      request.prompt_logprobs = true;
      request.prompt_logprobs_from = c.context;
      r.choices.push_back({engine_.submit(std::move(request)), {}, false});
    }
  }

  void check(const Event& e, const Running& r) const {
    if (e.finish == FinishReason::error || e.finish == FinishReason::cancelled)
      throw failure(name(r.item), e.error.empty() ? "it was cancelled" : e.error);
  }

  void collect(Running& r) {
    if (r.context) {
      bool ended = false;
      while (auto e = r.context->next(std::chrono::milliseconds(0))) {
        check(*e, r);
        ended = ended || e->usage;
      }
      if (!ended) return;
      r.context.reset();
      ask_choices(r);
    }
    for (size_t c = 0; c < r.choices.size(); ++c) {
      Running::Choice& choice = r.choices[c];
      while (auto e = choice.answer->next(std::chrono::milliseconds(0))) {
        check(*e, r);
        for (TokenLogprobs& l : e->prompt_logprobs) choice.logprobs.push_back(std::move(l));
        choice.done = choice.done || e->usage;
      }
    }
    if (!r.choices.empty() &&
        std::all_of(r.choices.begin(), r.choices.end(), [](const auto& c) { return c.done; }))
      finish(r);
  }

  void finish(Running& r) {
    const ChoiceItem& item = items_[r.item];
    ScoredItem& out = scored_[r.item];
    const auto normalised = [](const ScoredChoice& c) {
      return c.loglikelihood / static_cast<double>(std::max<int64_t>(1, c.bytes));
    };
    for (size_t c = 0; c < r.choices.size(); ++c) {
      ScoredChoice s;
      s.bytes = static_cast<int64_t>(item.choices[c].size());
      for (const TokenLogprobs& l : r.choices[c].logprobs) {
        s.tokens.push_back(l.token);
        s.loglikelihood += static_cast<double>(l.token.logprob);
        s.greedy = s.greedy && !l.top.empty() && l.top.front().logprob == l.token.logprob;
      }
      if (std::isnan(s.loglikelihood))
        throw failure(fmt::format("{}, choice {}", name(r.item), c), "its log-likelihood is not a number",
                      "the weights or the computation are broken");
      HYSPARSE_CHECK(static_cast<int64_t>(s.tokens.size()) + r.continuations[c].context ==
                         static_cast<int64_t>(r.continuations[c].ids.size()),
                     "{} logprobs of a continuation", s.tokens.size());
      const auto at = static_cast<int64_t>(c);
      out.choices.push_back(std::move(s));
      const auto& all = out.choices;
      if (all.back().loglikelihood > all[static_cast<size_t>(out.best)].loglikelihood) out.best = at;
      if (normalised(all.back()) > normalised(all[static_cast<size_t>(out.best_normalised)]))
        out.best_normalised = at;
    }
  }

  Engine& engine_;
  const TextModel& model_;
  const std::vector<ChoiceItem>& items_;
  const ChoiceOptions& options_;
  std::vector<ScoredItem> scored_;
  std::deque<Running> running_;
};

}  // namespace

std::vector<ChoiceItem> read_choice_items(const std::string& path) {
  return parse_choice_items(read_file(path), path);
}

std::vector<ChoiceItem> parse_choice_items(std::string_view lines, const std::string& where) {
  std::vector<ChoiceItem> out;
  for_each_line(lines, [&](std::string_view line, int64_t number) {
    const std::string at = fmt::format("{}:{}", where, number);
    out.push_back(read_item(parse_json(line, at), at));
  });
  if (out.empty()) throw input_error(where, "no item in it");
  return out;
}

Continuation encode_continuation(const TextModel& model, std::string_view context, std::string_view text) {
  size_t end = context.size();
  while (end > 0 && std::string_view(" \t\n\r\f\v").find(context[end - 1]) != std::string_view::npos) --end;
  const std::string moved = std::string(context.substr(end)) + std::string(text);
  context = context.substr(0, end);
  const Tokenizer& tokenizer = model.text();
  Continuation out;
  const std::vector<int32_t> alone = model.or_start(tokenizer.encode_from_start(context));
  out.context = static_cast<int64_t>(alone.size());
  if (context.empty()) {
    out.ids = alone;
    const std::vector<int32_t> behind = tokenizer.encode(moved);
    out.ids.insert(out.ids.end(), behind.begin(), behind.end());
  } else {
    out.ids = tokenizer.encode_from_start(std::string(context) + moved);
  }
  return out;
}

std::vector<ScoredItem> score_choices(Engine& engine, const TextModel& model,
                                      const std::vector<ChoiceItem>& items, const ChoiceOptions& options) {
  return Scorer(engine, model, items, options).run();
}

ChoiceResult summarise(const std::vector<ChoiceItem>& items, const std::vector<ScoredItem>& scored) {
  ChoiceResult r;
  r.items = static_cast<int64_t>(items.size());
  const auto n = static_cast<double>(r.items);
  for (size_t i = 0; i < items.size(); ++i) {
    r.accuracy += scored[i].best == items[i].gold;
    r.normalised += scored[i].best_normalised == items[i].gold;
    r.chance += 1.0 / static_cast<double>(items[i].choices.size());
  }
  r.accuracy /= n;
  r.normalised /= n;
  r.chance /= n;
  const auto error = [&](double p) {
    return r.items > 1 ? std::sqrt(p * (1 - p) / (n - 1)) : std::numeric_limits<double>::quiet_NaN();
  };
  r.accuracy_error = error(r.accuracy);
  r.normalised_error = error(r.normalised);
  return r;
}

}  // namespace hysparse
