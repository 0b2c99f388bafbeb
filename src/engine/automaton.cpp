#include "engine/automaton.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

constexpr uint32_t kLastCodePoint = 0x10ffff;

Error too_complex(const std::string& where, std::string_view what, int64_t limit) {
  return input_error(where, fmt::format("too complex: more than {} {}", limit, what),
                     "use smaller repetition counts and fewer alternatives");
}

struct SetHash {
  size_t operator()(const std::vector<int32_t>& set) const {
    uint64_t h = set.size();
    for (const int32_t s : set) h = mix64(h ^ static_cast<uint64_t>(s));
    return h;
  }
};

}  // namespace

void CodePointSet::add(uint32_t lo, uint32_t hi) {
  if (lo > hi) return;
  if (lo < 0xd800 && hi > 0xdfff) {
    add(lo, 0xd7ff);
    return add(0xe000, hi);
  }
  if (lo >= 0xd800 && lo <= 0xdfff) lo = 0xe000;
  if (hi >= 0xd800 && hi <= 0xdfff) hi = 0xd7ff;
  hi = std::min(hi, kLastCodePoint);
  if (lo > hi) return;
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (const auto& r : ranges_) {
    if (r.second + 1 < lo || r.first > hi + 1) {
      out.push_back(r);
    } else {
      lo = std::min(lo, r.first);
      hi = std::max(hi, r.second);
    }
  }
  out.emplace_back(lo, hi);
  std::sort(out.begin(), out.end());
  ranges_ = std::move(out);
}

void CodePointSet::add(const CodePointSet& other) {
  for (const auto& [lo, hi] : other.ranges_) add(lo, hi);
}

void CodePointSet::remove(uint32_t lo, uint32_t hi) {
  std::vector<std::pair<uint32_t, uint32_t>> out;
  for (const auto& [a, b] : ranges_) {
    if (a < lo) out.emplace_back(a, std::min(b, lo - 1));
    if (b > hi) out.emplace_back(std::max(a, hi + 1), b);
  }
  ranges_ = std::move(out);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out{{0, kLastCodePoint}};
  for (const auto& [lo, hi] : ranges_) out.remove(lo, hi);
  return out;
}

bool CodePointSet::contains(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const auto& r) { return r.first <= c && c <= r.second; });
}

int32_t AutomatonBuilder::state() {
  if (states_.size() >= static_cast<size_t>(kMaxStates)) throw too_complex(where_, "parts", kMaxStates);
  states_.emplace_back();
  return static_cast<int32_t>(states_.size()) - 1;
}

void AutomatonBuilder::join(int32_t from, int32_t to) {
  states_[static_cast<size_t>(from)].joins.push_back(to);
}

void AutomatonBuilder::edge(int32_t from, uint8_t lo, uint8_t hi, int32_t to) {
  states_[static_cast<size_t>(from)].edges.push_back({lo, hi, to});
}

Fragment AutomatonBuilder::empty() {
  const int32_t s = state();
  return {s, s};
}

Fragment AutomatonBuilder::literal(std::string_view bytes) {
  Fragment out = empty();
  for (const char c : bytes) {
    const int32_t next = state();
    edge(out.end, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    out.end = next;
  }
  return out;
}

Fragment AutomatonBuilder::characters(const CodePointSet& set) {
  const Fragment out{state(), state()};
  // A range of one encoded length becomes sequences of byte ranges: as long as lo and hi differ in a byte
  // that is followed by others, the odd ends are cut off so that what remains spans all values of those
  // others.
  const auto emit = [&](const auto& self, uint32_t lo, uint32_t hi) -> void {
    for (const uint32_t last : {0x7fu, 0x7ffu, 0xffffu}) {
      if (lo <= last && hi > last) {
        self(self, lo, last);
        return self(self, last + 1, hi);
      }
    }
    const int bytes = lo <= 0x7f ? 1 : lo <= 0x7ff ? 2 : lo <= 0xffff ? 3 : 4;
    for (int i = 1; i < bytes; ++i) {
      const uint32_t low = (1u << (6 * i)) - 1;
      if ((lo & ~low) == (hi & ~low)) continue;
      if ((lo & low) != 0) {
        self(self, lo, lo | low);
        return self(self, (lo | low) + 1, hi);
      }
      if ((hi & low) != low) {
        self(self, lo, (hi & ~low) - 1);
        return self(self, hi & ~low, hi);
      }
    }
    std::string a, b;
    append_utf8(a, lo);
    append_utf8(b, hi);
    int32_t at = out.begin;
    for (size_t i = 0; i < a.size(); ++i) {
      const int32_t next = i + 1 == a.size() ? out.end : state();
      edge(at, static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]), next);
      at = next;
    }
  };
  for (const auto& [lo, hi] : set.ranges()) emit(emit, lo, hi);
  return out;
}

Fragment AutomatonBuilder::then(Fragment a, Fragment b) {
  join(a.end, b.begin);
  return {a.begin, b.end};
}

Fragment AutomatonBuilder::either(const std::vector<Fragment>& options) {
  const Fragment out{state(), state()};
  for (const Fragment& o : options) {
    join(out.begin, o.begin);
    join(o.end, out.end);
  }
  return out;
}

Fragment AutomatonBuilder::optional(Fragment a) {
  return either({a, empty()});
}

Fragment AutomatonBuilder::star(Fragment a) {
  const Fragment out{state(), state()};
  join(out.begin, a.begin);
  join(out.begin, out.end);
  join(a.end, out.begin);
  return out;
}

Automaton::Automaton(const AutomatonBuilder& builder, Fragment whole) {
  const auto& nfa = builder.states_;
  // Bytes that no edge tells apart share a class.
  std::array<bool, 257> cuts{};
  cuts[0] = true;
  for (const auto& s : nfa)
    for (const auto& e : s.edges) cuts[e.lo] = cuts[static_cast<size_t>(e.hi) + 1] = true;
  std::vector<uint8_t> representative;
  for (size_t b = 0; b < 256; ++b) {
    if (cuts[b]) representative.push_back(static_cast<uint8_t>(b));
    class_of_[b] = static_cast<uint8_t>(representative.size() - 1);
  }
  classes_ = representative.size();

  // Sets of states, closed under joins; only those with edges, and the end, are kept in a set.
  std::vector<int32_t> mark(nfa.size(), -1), stack;
  int32_t round = 0;
  int64_t work = 0;
  constexpr int64_t kMaxWork = 20'000'000;  // states and sets that were looked at: well below a second
  const auto close = [&](std::vector<int32_t>& set) {
    ++round;
    stack = set;
    set.clear();
    for (const int32_t s : stack) mark[static_cast<size_t>(s)] = round;
    while (!stack.empty()) {
      const int32_t s = stack.back();
      stack.pop_back();
      ++work;
      const auto& state = nfa[static_cast<size_t>(s)];
      if (!state.edges.empty() || s == whole.end) set.push_back(s);
      for (const int32_t t : state.joins) {
        if (mark[static_cast<size_t>(t)] == round) continue;
        mark[static_cast<size_t>(t)] = round;
        stack.push_back(t);
      }
    }
    std::sort(set.begin(), set.end());
  };

  std::unordered_map<std::vector<int32_t>, int32_t, SetHash> index;
  std::vector<const std::vector<int32_t>*> sets;
  const auto intern = [&](std::vector<int32_t>& set) {
    close(set);
    work += static_cast<int64_t>(set.size()) + 1;
    const auto [it, fresh] = index.try_emplace(set, static_cast<int32_t>(sets.size()));
    if (fresh) {
      if (sets.size() >= static_cast<size_t>(kMaxStates))
        throw too_complex(builder.where(), "states", kMaxStates);
      sets.push_back(&it->first);
      accepting_.push_back(std::binary_search(set.begin(), set.end(), whole.end));
    }
    if (work > kMaxWork) throw too_complex(builder.where(), "steps to build it", kMaxWork);
    return it->second;
  };
  std::vector<int32_t> set{whole.begin};
  intern(set);
  std::vector<std::vector<int32_t>> targets(classes_);
  for (size_t d = 0; d < sets.size(); ++d) {
    for (auto& t : targets) t.clear();
    for (const int32_t s : *sets[d])
      for (const auto& e : nfa[static_cast<size_t>(s)].edges)
        for (size_t c = class_of_[e.lo]; c <= class_of_[e.hi]; ++c) targets[c].push_back(e.to);
    for (size_t c = 0; c < classes_; ++c) {
      std::vector<int32_t>& t = targets[c];
      std::sort(t.begin(), t.end());
      t.erase(std::unique(t.begin(), t.end()), t.end());
      work += static_cast<int64_t>(t.size());
      // Neighbouring classes mostly lead to the same place.
      table_.push_back(t.empty()                      ? kDead
                       : c > 0 && t == targets[c - 1] ? table_.back()
                                                      : [&] {
                                                          std::vector<int32_t> copy = t;
                                                          return intern(copy);
                                                        }());
    }
  }

  // States that cannot reach an accepting one (a class of no character leads there) are dead.
  const size_t n = accepting_.size();
  std::vector<std::vector<int32_t>> sources(n);
  for (size_t d = 0; d < n; ++d) {
    int32_t before = kDead;
    for (size_t c = 0; c < classes_; ++c) {
      const int32_t t = table_[d * classes_ + c];
      if (t != kDead && t != before) sources[static_cast<size_t>(t)].push_back(static_cast<int32_t>(d));
      before = t;
    }
  }
  std::vector<bool> alive = accepting_;
  for (size_t d = 0; d < n; ++d)
    if (alive[d]) stack.push_back(static_cast<int32_t>(d));
  while (!stack.empty()) {
    const int32_t d = stack.back();
    stack.pop_back();
    for (const int32_t s : sources[static_cast<size_t>(d)]) {
      if (alive[static_cast<size_t>(s)]) continue;
      alive[static_cast<size_t>(s)] = true;
      stack.push_back(s);
    }
  }
  if (!alive[0]) throw input_error(builder.where(), "no text at all can match");
  for (int32_t& t : table_)
    if (t != kDead && !alive[static_cast<size_t>(t)]) t = kDead;
  final_.resize(n);
  for (size_t d = 0; d < n; ++d)
    final_[d] = std::all_of(table_.begin() + static_cast<std::ptrdiff_t>(d * classes_),
                            table_.begin() + static_cast<std::ptrdiff_t>((d + 1) * classes_),
                            [](int32_t t) { return t == kDead; });
}

bool Automaton::matches(std::string_view text) const {
  int32_t s = start();
  for (const char c : text) {
    s = next(s, static_cast<uint8_t>(c));
    if (s == kDead) return false;
  }
  return accepts(s);
}

}  // namespace hysparse
