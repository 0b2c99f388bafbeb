#include "eval/recall_task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {

const std::vector<std::pair<RecallKind, std::string_view>>& EnumNames<RecallKind>::list() {
  static const std::vector<std::pair<RecallKind, std::string_view>> names = {
      {RecallKind::mqar, "mqar"},   {RecallKind::copy, "copy"}, {RecallKind::phonebook, "phonebook"},
      {RecallKind::chain, "chain"}, {RecallKind::walk, "walk"}, {RecallKind::paragraph, "paragraph"}};
  return names;
}

namespace {

using namespace recall;

constexpr int64_t kDigitsOfNumber = 4, kDigits = 10;

bool has_hops(RecallKind kind) {
  return kind == RecallKind::chain || kind == RecallKind::walk || kind == RecallKind::paragraph;
}
bool labelled(const RecallTask& t) {
  return t.task == RecallKind::walk && t.chains > 1;
}
int64_t max_hops(const RecallTask& t) {
  return has_hops(t.task) ? *std::max_element(t.hops.begin(), t.hops.end()) : 1;
}

int64_t unit_tokens(const RecallTask& t) {
  if (t.task == RecallKind::phonebook) return 2 + kDigitsOfNumber;
  return labelled(t) ? 3 : 2;
}
int64_t query_tokens(const RecallTask& t) {
  return 1 + unit_tokens(t);
}  // with its answer
int64_t body_tokens(const RecallTask& t) {
  return t.length - t.queries * query_tokens(t);
}

// The most pairs that the symbols can name.
int64_t nameable(const RecallTask& t) {
  switch (t.task) {
    case RecallKind::mqar:
      return t.symbols / 2;
    case RecallKind::phonebook:
      return t.symbols * t.symbols;
    case RecallKind::chain:
      return t.symbols / 2;  // the other half are values
    case RecallKind::paragraph:
      return t.symbols - t.chains;  // a path has one node more than edges
    default:
      return t.chains * (t.symbols - 1);
  }
}
int64_t edges_of_chain(const RecallTask& t) {
  return recall_pairs(t) / t.chains;
}

// Different questions that a row allows, at its longest hop.
int64_t askable(const RecallTask& t) {
  switch (t.task) {
    case RecallKind::chain:
      return t.chains;
    case RecallKind::walk:
    case RecallKind::paragraph:
      return t.chains * (edges_of_chain(t) - max_hops(t) + 1);
    default:
      return recall_pairs(t);
  }
}

std::vector<int32_t> shuffled(int32_t first, int64_t count, Rng& rng) {
  std::vector<int32_t> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), first);
  for (size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.below(i)]);
  return out;
}

// A row under construction: units in random places among filler, then questions.
class RowMaker {
 public:
  RowMaker(const RecallTask& task, Rng& rng) : task_(task), rng_(rng) {}

  // `tracks`: units of one track keep their order. Leaves place(track, i): where the unit's last token is.
  void body(const std::vector<std::vector<std::vector<int32_t>>>& tracks) {
    std::vector<int64_t> order;  // the track of each unit in turn; -1: filler
    int64_t used = 0;
    for (size_t k = 0; k < tracks.size(); ++k)
      for (const auto& unit : tracks[k]) {
        order.push_back(static_cast<int64_t>(k));
        used += std::ssize(unit);
      }
    order.resize(order.size() + static_cast<size_t>(body_tokens(task_) - used), -1);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
    places_.assign(tracks.size(), {});
    for (const int64_t k : order) {
      if (k < 0) {
        row_.tokens.push_back(kFiller + static_cast<int32_t>(rng_.below(kFillers)));
        continue;
      }
      auto& places = places_[static_cast<size_t>(k)];
      const std::vector<int32_t>& unit = tracks[static_cast<size_t>(k)][places.size()];
      row_.tokens.insert(row_.tokens.end(), unit.begin(), unit.end());
      places.push_back(std::ssize(row_.tokens) - 1);
    }
  }
  int64_t place(size_t track, size_t i) const { return places_[track][i]; }

  void ask(int64_t hops, std::initializer_list<int32_t> key, const std::vector<int32_t>& answer,
           const std::vector<int64_t>& gold) {
    row_.tokens.push_back(hop(hops));
    row_.tokens.insert(row_.tokens.end(), key);
    for (const int32_t token : answer) {
      row_.answers.push_back({std::ssize(row_.tokens), hops, gold});
      row_.tokens.push_back(token);
    }
  }
  RecallRow finish() {
    HYSPARSE_CHECK(std::ssize(row_.tokens) == task_.length, "a row of {} tokens for {}", row_.tokens.size(),
                   task_.length);
    return std::move(row_);
  }

 private:
  const RecallTask& task_;
  Rng& rng_;
  RecallRow row_;
  std::vector<std::vector<int64_t>> places_;
};

// `queries` different numbers below `count`, in random order.
std::vector<int32_t> asked(const RecallTask& t, int64_t count, Rng& rng) {
  std::vector<int32_t> all = shuffled(0, count, rng);
  all.resize(static_cast<size_t>(t.queries));
  return all;
}
int64_t drawn_hops(const RecallTask& t, Rng& rng) {
  return t.hops[rng.below(t.hops.size())];
}

RecallRow make_mqar(const RecallTask& t, Rng& rng) {
  RowMaker row(t, rng);
  const int64_t half = t.symbols / 2, pairs = recall_pairs(t);
  const std::vector<int32_t> keys = shuffled(kSymbol, half, rng);
  std::vector<std::vector<std::vector<int32_t>>> tracks;
  for (int64_t i = 0; i < pairs; ++i)
    tracks.push_back(
        {{keys[size_t(i)], kSymbol + static_cast<int32_t>(half + int64_t(rng.below(uint64_t(half))))}});
  row.body(tracks);
  for (const int32_t i : asked(t, pairs, rng)) {
    const std::vector<int32_t>& pair = tracks[size_t(i)][0];
    row.ask(1, {pair[0]}, {pair[1]}, {row.place(size_t(i), 0)});
  }
  return row.finish();
}

RecallRow make_phonebook(const RecallTask& t, Rng& rng) {
  RowMaker row(t, rng);
  const int64_t entries = recall_pairs(t);
  std::vector<int32_t> names;  // n1 * symbols + n2, all different
  while (std::ssize(names) < entries) {
    const auto name = static_cast<int32_t>(rng.below(uint64_t(t.symbols * t.symbols)));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::vector<std::vector<std::vector<int32_t>>> tracks;
  for (const int32_t name : names) {
    std::vector<int32_t> entry = {kSymbol + name / static_cast<int32_t>(t.symbols),
                                  kSymbol + name % static_cast<int32_t>(t.symbols)};
    for (int64_t d = 0; d < kDigitsOfNumber; ++d)
      entry.push_back(kDigit + static_cast<int32_t>(rng.below(kDigits)));
    tracks.push_back({entry});
  }
  row.body(tracks);
  for (const int32_t i : asked(t, entries, rng)) {
    const std::vector<int32_t>& entry = tracks[size_t(i)][0];
    row.ask(1, {entry[0], entry[1]}, {entry.begin() + 2, entry.end()}, {row.place(size_t(i), 0)});
  }
  return row.finish();
}

RecallRow make_copy(const RecallTask& t, Rng& rng) {
  RecallRow row;
  const int64_t n = (t.length - 1) / 2, before = t.length - 2 * n - 1;
  for (int64_t i = 0; i < before; ++i)
    row.tokens.push_back(kFiller + static_cast<int32_t>(rng.below(kFillers)));
  for (int64_t i = 0; i < n; ++i)
    row.tokens.push_back(kSymbol + static_cast<int32_t>(rng.below(uint64_t(t.symbols))));
  row.tokens.push_back(kSeparator);
  for (int64_t i = 0; i < n; ++i) {
    row.answers.push_back({std::ssize(row.tokens), 1, {before + i}});
    row.tokens.push_back(row.tokens[size_t(before + i)]);
  }
  return row;
}

RecallRow make_chain(const RecallTask& t, Rng& rng) {
  RowMaker row(t, rng);
  const int64_t half = t.symbols / 2, steps = edges_of_chain(t);
  const std::vector<int32_t> names = shuffled(kSymbol, half, rng);
  const std::vector<int32_t> values = shuffled(kSymbol + static_cast<int32_t>(half), half, rng);
  const auto name = [&](int64_t chain, int64_t i) { return names[size_t(chain * steps + i)]; };
  std::vector<std::vector<std::vector<int32_t>>> tracks(static_cast<size_t>(t.chains));
  for (int64_t c = 0; c < t.chains; ++c)
    for (int64_t i = 0; i < steps; ++i)
      tracks[size_t(c)].push_back({name(c, i), i == 0 ? values[size_t(c)] : name(c, i - 1)});
  row.body(tracks);
  for (const int32_t c : asked(t, t.chains, rng)) {
    const int64_t hops = drawn_hops(t, rng);
    std::vector<int64_t> gold;
    for (int64_t i = hops - 1; i >= 0; --i) gold.push_back(row.place(size_t(c), size_t(i)));
    row.ask(hops, {name(c, hops - 1)}, {values[size_t(c)]}, gold);
  }
  return row.finish();
}

RecallRow make_walk(const RecallTask& t, Rng& rng) {
  RowMaker row(t, rng);
  const int64_t edges = edges_of_chain(t);
  const std::vector<int32_t> labels = shuffled(kLabel, kMaxLabels, rng);
  std::vector<std::vector<int32_t>> nodes;
  std::vector<std::vector<std::vector<int32_t>>> tracks;  // an edge each: any order
  for (int64_t c = 0; c < t.chains; ++c) {
    nodes.push_back(shuffled(kSymbol, t.symbols, rng));
    for (int64_t i = 0; i < edges; ++i) {
      std::vector<int32_t> edge = {nodes[size_t(c)][size_t(i)], nodes[size_t(c)][size_t(i) + 1]};
      if (labelled(t)) edge.insert(edge.begin(), labels[size_t(c)]);
      tracks.push_back({edge});
    }
  }
  row.body(tracks);
  // Starts from which the longest way does not leave the path.
  const int64_t starts = edges - max_hops(t) + 1;
  for (const int32_t which : asked(t, t.chains * starts, rng)) {
    const auto c = static_cast<size_t>(which / starts), start = static_cast<size_t>(which % starts);
    const int64_t hops = drawn_hops(t, rng);
    std::vector<int64_t> gold;
    for (size_t i = 0; i < static_cast<size_t>(hops); ++i)
      gold.push_back(row.place(c * static_cast<size_t>(edges) + start + i, 0));
    const std::vector<int32_t> answer = {nodes[c][start + static_cast<size_t>(hops)]};
    if (labelled(t))
      row.ask(hops, {labels[c], nodes[c][start]}, answer, gold);
    else
      row.ask(hops, {nodes[c][start]}, answer, gold);
  }
  return row.finish();
}

RecallRow make_paragraph(const RecallTask& t, Rng& rng) {
  RowMaker row(t, rng);
  const int64_t edges = edges_of_chain(t), nodes = edges + 1;
  const std::vector<int32_t> names = shuffled(kSymbol, t.symbols, rng);
  const auto name = [&](int64_t chain, int64_t i) { return names[size_t(chain * nodes + i)]; };
  std::vector<std::vector<std::vector<int32_t>>> tracks;  // a paragraph each
  std::vector<std::vector<int32_t>> orders;               // of a paragraph: the edge that stands i-th
  for (int64_t c = 0; c < t.chains; ++c) {
    orders.push_back(shuffled(0, edges, rng));
    std::vector<int32_t> paragraph;
    for (const int32_t e : orders.back()) paragraph.insert(paragraph.end(), {name(c, e), name(c, e + 1)});
    tracks.push_back({paragraph});
  }
  row.body(tracks);
  const auto place = [&](int64_t c, int64_t edge) {
    const std::vector<int32_t>& order = orders[size_t(c)];
    const auto behind = order.end() - std::find(order.begin(), order.end(), edge) - 1;
    return row.place(size_t(c), 0) - 2 * behind;
  };
  const int64_t starts = edges - max_hops(t) + 1;
  for (const int32_t which : asked(t, t.chains * starts, rng)) {
    const int64_t c = which / starts, start = which % starts, hops = drawn_hops(t, rng);
    std::vector<int64_t> gold;
    for (int64_t i = 0; i < hops; ++i) gold.push_back(place(c, start + i));
    row.ask(hops, {name(c, start)}, {name(c, start + hops)}, gold);
  }
  return row.finish();
}

}  // namespace

int64_t recall_pairs(const RecallTask& t) {
  if (t.task == RecallKind::copy) return (t.length - 1) / 2;
  int64_t pairs = t.pairs > 0 ? t.pairs : std::min(body_tokens(t) / unit_tokens(t), nameable(t));
  if (has_hops(t.task)) pairs -= pairs % t.chains;
  return pairs;
}

void validate_recall_task(const RecallTask& t, const std::string& where) {
  const auto whole = [&](const char* key, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      throw expected_error(where, fmt::format("{} from {} to {}", key, low, high), std::to_string(value));
  };
  whole("length", t.length, 3, int64_t(1) << 24);
  whole("symbols", t.symbols, 2, kMaxSymbols);
  if (t.task == RecallKind::copy) return;
  whole("pairs", t.pairs, 0, t.length);
  whole("queries", t.queries, 1, t.length);
  whole("chains", t.chains, 1, t.task == RecallKind::walk ? kMaxLabels : kMaxSymbols / 2);
  if (t.hops.empty()) throw expected_error(where, "hops: at least one number", "none");
  for (const int64_t h : t.hops) whole("hops", h, 1, kMaxHops);
  if (!has_hops(t.task) && (t.hops != std::vector<int64_t>{1} || t.chains != 1))
    throw input_error(where, fmt::format("{} has neither hops nor chains", enum_name(t.task)),
                      "chain, walk and paragraph have");
  const int64_t pairs = body_tokens(t) >= 0 ? recall_pairs(t) : 0;
  const auto no_room = [&](const std::string& what, const std::string& hint) {
    throw input_error(
        where,
        fmt::format("{} of {} tokens with {} questions: {}", enum_name(t.task), t.length, t.queries, what),
        hint);
  };
  if (pairs < 1 || pairs * unit_tokens(t) > body_tokens(t))
    no_room(
        fmt::format("no room for {} of {} tokens",
                    t.pairs > 0 ? fmt::format("{} pairs", t.pairs) : std::string("a pair for every chain"),
                    unit_tokens(t)),
        "make length larger, or pairs or queries smaller");
  if (pairs > nameable(t))
    no_room(fmt::format("{} pairs, but {} symbols name {} at most", pairs, t.symbols, nameable(t)),
            "make symbols larger or pairs smaller");
  if (has_hops(t.task) && edges_of_chain(t) < max_hops(t))
    no_room(fmt::format("a chain of {} pairs is shorter than {} hops", edges_of_chain(t), max_hops(t)),
            "make pairs or length larger, or hops or chains fewer");
  if (askable(t) < t.queries)
    no_room(fmt::format("only {} different questions can be asked", askable(t)), "make queries smaller");
}

double recall_chance(const RecallTask& t) {
  switch (t.task) {
    case RecallKind::phonebook:
      return 1.0 / static_cast<double>(kDigits);
    case RecallKind::copy:
      return 1.0 / static_cast<double>(t.symbols);
    case RecallKind::mqar:
      return 1.0 / static_cast<double>(t.symbols / 2);
    case RecallKind::chain:
      return 1.0 / static_cast<double>(t.chains);
    default:
      return 1.0 / static_cast<double>(edges_of_chain(t));
  }
}

RecallRow make_recall_row(const RecallTask& t, uint64_t seed, uint64_t index) {
  Rng rng(hash_words({seed, index}), static_cast<uint64_t>(t.task));
  switch (t.task) {
    case RecallKind::mqar:
      return make_mqar(t, rng);
    case RecallKind::copy:
      return make_copy(t, rng);
    case RecallKind::phonebook:
      return make_phonebook(t, rng);
    case RecallKind::chain:
      return make_chain(t, rng);
    case RecallKind::paragraph:
      return make_paragraph(t, rng);
    default:
      return make_walk(t, rng);
  }
}

std::string describe(const RecallTask& t) {
  std::string out(enum_name(t.task));
  if (has_hops(t.task)) {
    out += fmt::format(", hops {}", fmt::join(t.hops, " "));
    if (t.chains > 1) out += fmt::format(", {} chains", t.chains);
  }
  if (t.task != RecallKind::copy) out += fmt::format(", {} pairs", recall_pairs(t));
  return out + fmt::format(", {} tokens", t.length);
}

}  // namespace hysparse
