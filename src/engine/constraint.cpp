#include "engine/constraint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/json_schema.h"
#include "engine/pattern.h"
#include "io/json_value.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, std::vector<int64_t> eos)
    : TokenTrie(
          tokenizer.vocab_size(),
          [&](int32_t id) {
            return tokenizer.is_special(id) ? std::string_view() : tokenizer.token_bytes(id);
          },
          std::move(eos)) {}

void TokenTrie::build(std::vector<std::pair<std::string, int32_t>> tokens) {
  begin_.push_back(0);
  for (const auto& [bytes, id] : tokens) {
    text_ += bytes;
    begin_.push_back(static_cast<uint32_t>(text_.size()));
  }
  same_.assign(static_cast<size_t>(vocab_), -1);
  std::erase_if(tokens, [&](const auto& t) {
    return t.first.empty() || t.first.size() > 0xffff ||
           std::find(eos_.begin(), eos_.end(), t.second) != eos_.end();
  });
  std::sort(tokens.begin(), tokens.end());
  std::vector<size_t> open;  // the nodes from the root to the last one
  const auto close = [&](size_t depth) {
    while (open.size() > depth) {
      nodes_[open.back()].skip = static_cast<int32_t>(nodes_.size());
      open.pop_back();
    }
  };
  std::string_view before;
  for (const auto& [bytes, id] : tokens) {
    const size_t common = static_cast<size_t>(
        std::mismatch(bytes.begin(), bytes.end(), before.begin(), before.end()).first - bytes.begin());
    if (common == bytes.size()) {  // the same bytes as the token before
      Node& node = nodes_[open.back()];
      same_[static_cast<size_t>(id)] = node.token;
      node.token = id;
      continue;
    }
    close(common);
    for (size_t i = common; i < bytes.size(); ++i) {
      open.push_back(nodes_.size());
      nodes_.push_back({static_cast<uint8_t>(bytes[i]), static_cast<uint16_t>(i + 1), 0, -1});
    }
    nodes_.back().token = id;
    before = bytes;
    longest_ = std::max(longest_, bytes.size());
  }
  close(0);
}

std::string_view TokenTrie::bytes(int32_t id) const {
  if (id < 0 || id >= vocab_) return {};
  const uint32_t begin = begin_[static_cast<size_t>(id)];
  return std::string_view(text_).substr(begin, begin_[static_cast<size_t>(id) + 1] - begin);
}

void TokenTrie::collect(const Automaton& automaton, int32_t state, TokenMask& mask) const {
  std::vector<int32_t> path(longest_ + 1);  // the state after so many bytes
  path[0] = state;
  for (size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const int32_t next = automaton.next(path[node.depth - 1u], node.byte);
    if (next == Automaton::kDead) {
      i = static_cast<size_t>(node.skip);
      continue;
    }
    path[node.depth] = next;
    for (int32_t t = node.token; t >= 0; t = same_[static_cast<size_t>(t)]) mask.set(t);
    ++i;
  }
}

std::shared_ptr<const Constraint> Constraint::regex(std::string_view pattern,
                                                    std::shared_ptr<const TokenTrie> trie,
                                                    const std::string& where) {
  AutomatonBuilder b(where);
  const Fragment whole = build_pattern(b, pattern, PatternUse::whole);
  return std::shared_ptr<const Constraint>(new Constraint(Automaton(b, whole), std::move(trie)));
}

std::shared_ptr<const Constraint> Constraint::json_schema(std::string_view schema,
                                                          std::shared_ptr<const TokenTrie> trie,
                                                          const std::string& where) {
  AutomatonBuilder b(where);
  const Fragment whole = build_json_schema(b, parse_json(schema, where));
  return std::shared_ptr<const Constraint>(new Constraint(Automaton(b, whole), std::move(trie)));
}

std::shared_ptr<const Constraint> Constraint::json_object(std::shared_ptr<const TokenTrie> trie) {
  AutomatonBuilder b("json_object");
  const Fragment whole = build_json_object(b);
  return std::shared_ptr<const Constraint>(new Constraint(Automaton(b, whole), std::move(trie)));
}

std::shared_ptr<const TokenMask> Constraint::mask(int32_t state) const {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = masks_.find(state);
    if (it != masks_.end()) return it->second;
  }
  auto made = std::make_shared<TokenMask>(trie_->vocab());
  trie_->collect(automaton_, state, *made);
  if (automaton_.accepts(state))
    for (const int64_t id : trie_->eos())
      if (id < trie_->vocab()) made->set(static_cast<int32_t>(id));
  const std::lock_guard<std::mutex> lock(mutex_);
  if ((masks_.size() + 1) * made->words().size() * 8 > kMaskBytes) masks_.clear();
  masks_[state] = made;
  return made;
}

int32_t ConstraintState::after(int32_t token) const {
  const std::vector<int64_t>& eos = constraint_->trie().eos();
  const std::string_view bytes = constraint_->trie().bytes(token);
  if (bytes.empty() || std::find(eos.begin(), eos.end(), token) != eos.end()) return Automaton::kDead;
  int32_t s = state_;
  for (const char c : bytes) {
    s = constraint_->automaton().next(s, static_cast<uint8_t>(c));
    if (s == Automaton::kDead) break;
  }
  return s;
}

bool ConstraintState::allows(int32_t token) const {
  const std::vector<int64_t>& eos = constraint_->trie().eos();
  if (std::find(eos.begin(), eos.end(), token) != eos.end()) return may_end();
  return after(token) != Automaton::kDead;
}

bool ConstraintState::advance(int32_t token) {
  const int32_t s = after(token);
  if (s == Automaton::kDead) return false;
  state_ = s;
  return true;
}

}  // namespace hysparse
