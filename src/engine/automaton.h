// Byte-level automata: a builder of nondeterministic ones, and the deterministic one that is run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hysparse {

// Unicode code points as sorted ranges that neither touch nor overlap; never a surrogate.
class CodePointSet {
 public:
  CodePointSet() = default;
  CodePointSet(std::initializer_list<std::pair<uint32_t, uint32_t>> ranges) {
    for (const auto& [lo, hi] : ranges) add(lo, hi);
  }
  void add(uint32_t lo, uint32_t hi);
  void add(const CodePointSet& other);
  void remove(uint32_t lo, uint32_t hi);
  CodePointSet complement() const;
  bool contains(uint32_t code_point) const;
  const std::vector<std::pair<uint32_t, uint32_t>>& ranges() const { return ranges_; }

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

// Part of an automaton: what leads from `begin` to `end`.
struct Fragment {
  int32_t begin, end;
};

// Every call makes new states; a part that stands in two places is made twice. More than kMaxStates throw
// Error(input) naming `where`.
class AutomatonBuilder {
 public:
  static constexpr int32_t kMaxStates = 200'000;

  explicit AutomatonBuilder(std::string where) : where_(std::move(where)) {}
  int32_t state();
  void join(int32_t from, int32_t to);  // without reading anything
  void edge(int32_t from, uint8_t lo, uint8_t hi, int32_t to);

  Fragment empty();
  Fragment literal(std::string_view bytes);
  Fragment characters(const CodePointSet& set);  // one of them, in UTF-8; an empty set matches nothing
  Fragment then(Fragment a, Fragment b);
  Fragment either(const std::vector<Fragment>& options);
  Fragment optional(Fragment a);
  Fragment star(Fragment a);  // `a` itself becomes the loop
  // `make` builds one copy of what is repeated; most < 0: without end.
  template <class Make>
  Fragment repeat(const Make& make, int64_t least, int64_t most) {
    Fragment out = empty();
    for (int64_t i = 0; i < least; ++i) out = then(out, make());
    if (most < 0) return then(out, star(make()));
    // What may follow is optional as a whole: (a(a(a)?)?)?
    const int32_t end = state();
    int32_t at = out.end;
    for (int64_t i = least; i < most; ++i) {
      join(at, end);
      const Fragment next = make();
      join(at, next.begin);
      at = next.end;
    }
    join(at, end);
    return {out.begin, end};
  }

  const std::string& where() const { return where_; }

 private:
  friend class Automaton;
  struct Edge {
    uint8_t lo, hi;
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<int32_t> joins;
  };
  std::string where_;
  std::vector<State> states_;
};

// Deterministic, complete before it is used: nothing about it changes while it runs, and what it costs is
// known when it is built. A state from which no accepted text can be reached any more does not exist: going
// there is kDead.
class Automaton {
 public:
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kMaxStates = 65'536;

  // What leads from whole.begin to whole.end. Error(input) naming where() for more than kMaxStates, or where
  // no text at all is accepted.
  Automaton(const AutomatonBuilder& builder, Fragment whole);

  int32_t start() const { return 0; }
  int32_t next(int32_t state, uint8_t byte) const {
    return table_[static_cast<size_t>(state) * classes_ + class_of_[byte]];
  }
  bool accepts(int32_t state) const { return accepting_[static_cast<size_t>(state)]; }
  bool ends(int32_t state) const { return final_[static_cast<size_t>(state)]; }  // nothing may follow
  int32_t size() const { return static_cast<int32_t>(accepting_.size()); }
  bool matches(std::string_view text) const;

 private:
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;
  std::vector<int32_t> table_;  // [states, classes]
  std::vector<bool> accepting_, final_;
};

}  // namespace hysparse
