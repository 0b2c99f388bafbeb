// Answers that must match a regular expression or a JSON schema: which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/automaton.h"
#include "engine/token_mask.h"

namespace hysparse {

class Tokenizer;

// The tokens that can stand in a text, as a trie over their bytes: those with bytes, without special ones.
// Made once for a tokenizer; nothing changes afterwards.
class TokenTrie {
 public:
  // Ids in [0, vocab) whose text is `bytes(id)`, none where that is empty. `eos` may follow a complete
  // answer.
  template <class Bytes>
  TokenTrie(int64_t vocab, const Bytes& bytes, std::vector<int64_t> eos)
      : vocab_(vocab), eos_(std::move(eos)) {
    std::vector<std::pair<std::string, int32_t>> tokens;
    for (int64_t id = 0; id < vocab; ++id)
      tokens.emplace_back(bytes(static_cast<int32_t>(id)), static_cast<int32_t>(id));
    build(std::move(tokens));
  }
  TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> eos);

  int64_t vocab() const { return vocab_; }
  const std::vector<int64_t>& eos() const { return eos_; }
  std::string_view bytes(int32_t id) const;
  // Tokens whose bytes lead from `state` to a state that is not dead.
  void collect(const Automaton& automaton, int32_t state, TokenMask& mask) const;

 private:
  struct Node {  // in the order of the bytes; what stands below a node follows it
    uint8_t byte;
    uint16_t depth;      // bytes up to and with this one
    int32_t skip;        // the node after all below this one
    int32_t token = -1;  // the first one that ends here
  };
  void build(std::vector<std::pair<std::string, int32_t>> tokens);

  int64_t vocab_;
  std::vector<int64_t> eos_;
  std::vector<Node> nodes_;
  std::vector<int32_t> same_;  // [vocab] the next token with the same bytes, -1: none
  std::string text_;           // of all tokens
  std::vector<uint32_t> begin_;
  size_t longest_ = 0;
};

// A compiled constraint; any number of answers may follow it at once, on any threads. The automaton is
// finished and bounded (engine/automaton.h) when this is made; of token masks, made as states are met, up to
// kMaskBytes are kept.
class Constraint {
 public:
  static constexpr size_t kMaskBytes = size_t(16) << 20;

  // Error(input) naming `where`: what is outside the subset (engine/pattern.h, engine/json_schema.h), too
  // complex, or matches no text at all.
  static std::shared_ptr<const Constraint> regex(std::string_view pattern,
                                                 std::shared_ptr<const TokenTrie> trie,
                                                 const std::string& where = "regex");
  static std::shared_ptr<const Constraint> json_schema(std::string_view schema,
                                                       std::shared_ptr<const TokenTrie> trie,
                                                       const std::string& where = "json_schema");
  static std::shared_ptr<const Constraint> json_object(std::shared_ptr<const TokenTrie> trie);

  const Automaton& automaton() const { return automaton_; }
  const TokenTrie& trie() const { return *trie_; }
  // What may follow a text that led to `state`; the EOS tokens where it may end there.
  std::shared_ptr<const TokenMask> mask(int32_t state) const;

 private:
  Constraint(Automaton automaton, std::shared_ptr<const TokenTrie> trie)
      : automaton_(std::move(automaton)), trie_(std::move(trie)) {}

  const Automaton automaton_;
  const std::shared_ptr<const TokenTrie> trie_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<int32_t, std::shared_ptr<const TokenMask>> masks_;
};

// Where one answer stands. A copy goes on by itself: keep one to take drafted tokens back.
class ConstraintState {
 public:
  explicit ConstraintState(std::shared_ptr<const Constraint> constraint)
      : constraint_(std::move(constraint)), state_(constraint_->automaton().start()) {}

  // Drawing outside of it breaks the promise. Empty only where no token of the vocabulary can go on: the
  // tokenizer lacks bytes that the constraint demands.
  std::shared_ptr<const TokenMask> allowed() const { return constraint_->mask(state_); }
  bool allows(int32_t token) const;
  // Appends a token that allowed() holds and that is no EOS; false, and nothing changes, for another.
  bool advance(int32_t token);
  bool may_end() const { return constraint_->automaton().accepts(state_); }
  // The answer is complete and nothing can follow: it ends here, also where EOS is ignored.
  bool complete() const { return constraint_->automaton().ends(state_); }

 private:
  int32_t after(int32_t token) const;

  std::shared_ptr<const Constraint> constraint_;
  int32_t state_;
};

}  // namespace hysparse
