// Prefixes that may be computed only once: their pages, shared with the sequences that use them, and
// snapshots of the rings at some positions.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"
#include "engine/paged_kv.h"

namespace hysparse {

// What a prefix belongs to: nothing is shared across different ones.
struct PrefixKey {
  uint64_t identity = 0;  // cache_identity()
  std::string salt;
  auto operator<=>(const PrefixKey&) const = default;
};

// Of weights and settings (StepModel::identity) and of the format of pages.
uint64_t cache_identity(uint64_t model, KvDtype pages);

// A tree of whole pages of tokens; at its nodes hang the ends: a position (in the middle of a page, too) with
// the pages up to there and, where the model has rings, the slot that holds their state. A prompt can go on
// from an end whose tokens it begins with. The least recently used end makes room first; pages that lead to
// no end any more go with it.
class PrefixCache {
 public:
  explicit PrefixCache(PagedKv& kv);  // keeps a reference
  ~PrefixCache();                     // gives everything back

  struct Hit {
    int64_t length = 0;  // 0: a miss
    std::vector<int32_t> pages;
    int32_t slot = -1;
    int64_t peak = 0;                       // tokens that the rings have taken
    CacheMiss reason = CacheMiss::unknown;  // of a miss
  };
  // The longest prefix of `tokens` to go on from that leaves at least one token to compute. Valid until the
  // next call of insert() or evict(): hold what it names before.
  Hit find(const PrefixKey& key, std::span<const int32_t> tokens);
  // How many tokens find() would give, without marking anything as used.
  int64_t peek(const PrefixKey& key, std::span<const int32_t> tokens) const;
  // Whether a longer prompt could go on from behind all of these.
  bool covers(const PrefixKey& key, std::span<const int32_t> tokens) const;
  // An end behind `tokens`, which lie in `pages`; the cache takes over `slot`, which has taken exactly these
  // tokens (-1: the model has no rings), and holds the pages.
  void insert(const PrefixKey& key, std::span<const int32_t> tokens, std::span<const int32_t> pages,
              int32_t slot);
  // Drops the least recently used end (without rings: its last page). False when there is none.
  bool evict();
  void clear();

  int64_t ends() const { return static_cast<int64_t>(used_.size()); }
  int64_t pages() const { return pages_; }  // held
  int64_t evictions() const { return evictions_; }
  // Appends an entry a hold: for PagedKv::check().
  void held(std::vector<int32_t>& pages, std::vector<int32_t>& slots) const;

 private:
  struct Node;
  struct End {
    Node* node = nullptr;       // the last whole page before it
    std::vector<int32_t> tail;  // tokens behind that
    int32_t tail_page = -1;
    int32_t slot = -1;
    int64_t length = 0;
  };
  using Ends = std::list<End>;
  struct Node {
    const PrefixKey* key = nullptr;
    Node* parent = nullptr;
    int64_t depth = 0;                             // pages from the root
    int32_t page = -1;                             // -1: the root, or a model without full layers
    const std::vector<int32_t>* tokens = nullptr;  // of the page; null: the root
    std::map<std::vector<int32_t>, std::unique_ptr<Node>> children;  // by a page of tokens
    std::vector<Ends::iterator> ends;
  };
  struct Match {
    int64_t length = 0;           // to go on from
    const Node* node = nullptr;   // whose pages, from the root down
    int32_t last_page = -1;       // and this one behind them
    const End* end = nullptr;     // the end in use; null: none of its own
    bool pages_begin_so = false;  // at least one whole page matches
  };

  Match match(const PrefixKey& key, std::span<const int32_t> tokens) const;
  const End* any_end(const Node& node) const;
  void shorten(Ends::iterator end);
  void drop_end(Ends::iterator end);
  void unhang(Ends::iterator end);
  void prune(Node* node);
  uint64_t beginning(const PrefixKey& key, std::span<const int32_t> tokens) const;
  CacheMiss why(const PrefixKey& key, std::span<const int32_t> tokens) const;

  PagedKv& kv_;
  std::map<PrefixKey, Node> roots_;
  Ends used_;  // most recently used first
  int64_t pages_ = 0, evictions_ = 0;
  std::vector<uint64_t> evicted_;  // beginnings of what was evicted; the oldest is overwritten
  size_t evicted_at_ = 0;
};

}  // namespace hysparse
