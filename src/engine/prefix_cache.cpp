#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

constexpr size_t kRemembered = 4096;  // beginnings of evicted prefixes
constexpr size_t kBeginning = 16;     // tokens

size_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::span<const int32_t> from(std::span<const int32_t> tokens, int64_t begin) {
  return tokens.subspan(std::min(tokens.size(), static_cast<size_t>(begin)));
}

}  // namespace

uint64_t cache_identity(uint64_t model, KvDtype pages) {
  return hash_words({model, static_cast<uint64_t>(pages)});
}

PrefixCache::PrefixCache(PagedKv& kv) : kv_(kv) {}

PrefixCache::~PrefixCache() {
  clear();
}

PrefixCache::Match PrefixCache::match(const PrefixKey& key, std::span<const int32_t> tokens) const {
  Match best;
  const auto root = roots_.find(key);
  if (root == roots_.end() || tokens.empty()) return best;
  const int64_t page = kv_.page_size(), most = static_cast<int64_t>(tokens.size()) - 1;
  const auto offer = [&](int64_t length, int64_t peak, const Node* node, int32_t last_page, const End* end) {
    length = std::min(length, most);
    if (length > best.length && kv_.rings_serve(length, peak))
      best = {length, node, last_page, end, best.pages_begin_so};
  };
  const Node* node = &root->second;
  while (true) {
    const int64_t begin = node->depth * page;
    const auto rest = from(tokens, begin);
    for (const Ends::iterator& end : node->ends)
      offer(begin + static_cast<int64_t>(common(end->tail, rest)), end->length, node, end->tail_page, &*end);
    if (!kv_.has_rings() && node->depth > 0) offer(begin, begin, node, -1, nullptr);
    const auto child = rest.size() < static_cast<size_t>(page)
                           ? node->children.end()
                           : node->children.find({rest.begin(), rest.begin() + page});
    if (child == node->children.end()) {
      if (kv_.has_rings()) return best;
      for (const auto& [ids, next] : node->children) {  // the part of a page
        const int64_t length = begin + static_cast<int64_t>(common(ids, rest));
        if (length > begin) offer(length, length, node, next->page, any_end(*next));
      }
      return best;
    }
    node = child->second.get();
    best.pages_begin_so = true;
  }
}

const PrefixCache::End* PrefixCache::any_end(const Node& node) const {
  const Node* n = &node;
  while (n->ends.empty()) n = n->children.begin()->second.get();
  return &*n->ends.front();
}

int64_t PrefixCache::peek(const PrefixKey& key, std::span<const int32_t> tokens) const {
  return match(key, tokens).length;
}

bool PrefixCache::covers(const PrefixKey& key, std::span<const int32_t> tokens) const {
  std::vector<int32_t> longer(tokens.begin(), tokens.end());
  longer.push_back(-1);  // so that all of `tokens` may match
  return peek(key, longer) == static_cast<int64_t>(tokens.size());
}

PrefixCache::Hit PrefixCache::find(const PrefixKey& key, std::span<const int32_t> tokens) {
  const Match m = match(key, tokens);
  Hit hit;
  hit.length = m.length;
  if (m.length == 0) {
    hit.reason = m.pages_begin_so ? CacheMiss::no_snapshot : why(key, tokens);
    return hit;
  }
  for (const Node* n = m.node; n->parent && n->page >= 0; n = n->parent) hit.pages.push_back(n->page);
  std::reverse(hit.pages.begin(), hit.pages.end());
  if (m.last_page >= 0) hit.pages.push_back(m.last_page);
  hit.pages.resize(static_cast<size_t>(kv_.pages_for(m.length)));
  hit.slot = m.end ? m.end->slot : -1;
  hit.peak = kv_.has_rings() ? m.end->length : m.length;
  const End* touched = m.end ? m.end : any_end(*m.node);
  for (const Ends::iterator& end : touched->node->ends)
    if (&*end == touched) used_.splice(used_.begin(), used_, end);
  return hit;
}

CacheMiss PrefixCache::why(const PrefixKey& key, std::span<const int32_t> tokens) const {
  for (const auto& [other, node] : roots_)
    if (other.identity != key.identity && other.salt == key.salt && match(other, tokens).length > 0)
      return CacheMiss::other_identity;
  const uint64_t begin = beginning(key, tokens);
  return std::find(evicted_.begin(), evicted_.end(), begin) != evicted_.end() ? CacheMiss::evicted
                                                                              : CacheMiss::unknown;
}

void PrefixCache::insert(const PrefixKey& key, std::span<const int32_t> tokens,
                         std::span<const int32_t> pages, int32_t slot) {
  const int64_t page = kv_.page_size(), length = static_cast<int64_t>(tokens.size());
  HYSPARSE_CHECK(length > 0 && static_cast<int64_t>(pages.size()) >= kv_.pages_for(length) &&
                     (slot >= 0) == kv_.has_rings(),
                 "an end of {} tokens in {} pages with slot {}", length, pages.size(), slot);
  const bool paged = kv_.pages_for(1) > 0;
  const auto [root, fresh] = roots_.try_emplace(key);
  Node* node = &root->second;
  node->key = &root->first;
  for (int64_t i = 0; (i + 1) * page <= length; ++i) {
    const auto ids = tokens.subspan(static_cast<size_t>(i * page), static_cast<size_t>(page));
    const auto [child, added] = node->children.try_emplace({ids.begin(), ids.end()});
    if (added) {
      child->second = std::make_unique<Node>();
      child->second->key = node->key;
      child->second->parent = node;
      child->second->depth = i + 1;
      child->second->tokens = &child->first;
      if (paged) {
        child->second->page = pages[static_cast<size_t>(i)];
        kv_.hold_page(child->second->page);
        ++pages_;
      }
    }
    node = child->second.get();
  }
  const auto tail = from(tokens, node->depth * page);
  for (const Ends::iterator& end : node->ends) {
    if (end->tail.size() != tail.size() || common(end->tail, tail) != tail.size()) continue;
    used_.splice(used_.begin(), used_, end);  // it is there already
    if (slot >= 0) kv_.drop_slot(slot);
    return;
  }
  End end{node, {tail.begin(), tail.end()}, -1, slot, length};
  if (paged && !tail.empty()) {
    end.tail_page = pages[static_cast<size_t>(node->depth)];
    kv_.hold_page(end.tail_page);
    ++pages_;
  }
  used_.push_front(std::move(end));
  node->ends.push_back(used_.begin());
}

bool PrefixCache::evict() {
  if (used_.empty()) return false;
  const Ends::iterator end = std::prev(used_.end());
  const Node* first = end->node;  // the page that its tokens begin with
  while (first->depth > 1) first = first->parent;
  const uint64_t begin = beginning(*first->key, first->tokens ? *first->tokens : end->tail);
  if (evicted_.size() < kRemembered)
    evicted_.push_back(begin);
  else
    evicted_[evicted_at_++ % kRemembered] = begin;
  ++evictions_;
  if (kv_.has_rings())
    drop_end(end);
  else
    shorten(end);
  return true;
}

// Without rings every page is a place to go on from: the end moves back by one.
void PrefixCache::shorten(Ends::iterator end) {
  Node* node = end->node;
  if (!end->tail.empty() && node->depth > 0) {
    if (end->tail_page >= 0) {
      kv_.drop_page(std::exchange(end->tail_page, -1));
      --pages_;
    }
    end->tail.clear();
    end->length = node->depth * kv_.page_size();
    return;
  }
  if (end->tail.empty() && node->depth > 1 && node->children.empty() && node->ends.size() == 1) {
    unhang(end);
    end->node = node->parent;
    end->node->ends.push_back(end);
    end->length -= kv_.page_size();
    prune(node);
    return;
  }
  drop_end(end);
}

void PrefixCache::unhang(Ends::iterator end) {
  auto& ends = end->node->ends;
  ends.erase(std::find(ends.begin(), ends.end(), end));
}

void PrefixCache::drop_end(Ends::iterator end) {
  if (end->tail_page >= 0) {
    kv_.drop_page(end->tail_page);
    --pages_;
  }
  if (end->slot >= 0) kv_.drop_slot(end->slot);
  Node* node = end->node;
  unhang(end);
  used_.erase(end);
  prune(node);
}

// Takes away what leads to no end.
void PrefixCache::prune(Node* node) {
  while (node->children.empty() && node->ends.empty()) {
    if (node->page >= 0) {
      kv_.drop_page(node->page);
      --pages_;
    }
    Node* parent = node->parent;
    if (!parent) {
      roots_.erase(roots_.find(*node->key));
      return;
    }
    parent->children.erase(parent->children.find(*node->tokens));
    node = parent;
  }
}

void PrefixCache::clear() {
  while (!used_.empty()) drop_end(used_.begin());
}

uint64_t PrefixCache::beginning(const PrefixKey& key, std::span<const int32_t> tokens) const {
  uint64_t h = key.identity;
  for (const char c : key.salt) h = mix64(h ^ static_cast<unsigned char>(c));
  const size_t n = std::min({tokens.size(), kBeginning, static_cast<size_t>(kv_.page_size())});
  for (size_t i = 0; i < n; ++i) h = hash_words({h, static_cast<uint64_t>(tokens[i])});
  return h;
}

void PrefixCache::held(std::vector<int32_t>& pages, std::vector<int32_t>& slots) const {
  const size_t before = pages.size();
  for (const End& end : used_) {
    if (end.slot >= 0) slots.push_back(end.slot);
    if (end.tail_page >= 0) pages.push_back(end.tail_page);
  }
  std::vector<const Node*> stack;
  for (const auto& [key, root] : roots_) stack.push_back(&root);
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    if (node->page >= 0) pages.push_back(node->page);
    HYSPARSE_CHECK(!node->children.empty() || !node->ends.empty(), "a cached page that leads to no end");
    for (const auto& [ids, child] : node->children) {
      HYSPARSE_CHECK(child->parent == node && child->depth == node->depth + 1, "a cached page out of place");
      stack.push_back(child.get());
    }
  }
  HYSPARSE_CHECK(static_cast<int64_t>(pages.size() - before) == pages_, "{} pages are cached, {} counted",
                 pages.size() - before, pages_);
}

}  // namespace hysparse
