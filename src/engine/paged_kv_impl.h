// The books of PagedKv and the running step: who holds which page and slot, and where new rows go.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/kv_storage.h"
#include "engine/paged_kv.h"
#include "engine/shared_ids.h"

namespace hysparse {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Of `options`, checked.
int64_t page_size_of(const ModelConfig& config, const PagedKvOptions& options);

struct PagedKv::Impl {
  struct Sequence {
    int64_t length = 0;  // committed
    int64_t peak = 0;    // largest length since the rings were empty: they lost what lies below peak - w
    std::vector<int32_t> pages;  // at least ceil(length / page_size)
    int32_t slot = -1;
    bool empty() const { return length == 0 && pages.empty() && slot < 0; }
  };
  struct Bound {  // a sequence of the running step
    int id;
    int64_t first_row, count;  // its query rows
    size_t pages_before;       // to give back on discard
  };
  struct Staged {  // a ring's new rows of the running step, of each bound sequence its last staged_rows()
    TensorView k, v;
  };
  // Where the running step's rows go, for operations: to pages; of rings of one length, aside and on commit.
  struct RingRows {
    int64_t length = 0;
    std::vector<int64_t> aside, home;
  };

  const PagedKvOptions options;
  Memory& memory;
  Runtime* const runtime;
  const int64_t page_size, max_pages;
  KvStorage storage;
  SharedIds page_ids, slot_ids;
  std::vector<Sequence> sequences;

  bool in_step = false, partial = false;
  std::vector<Bound> bound;
  std::vector<bool> appended;  // a layer
  std::vector<Staged> staged;  // a ring
  std::vector<int32_t> page_table, slots;
  int64_t page_table_stride = 0;
  std::vector<int64_t> page_rows;
  std::vector<RingRows> ring_rows;
  bool rings_written = false;  // before commit()
  Arena staging;

  Impl(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& o, Memory& m, Runtime* rt)
      : options(o),
        memory(m),
        runtime(rt),
        page_size(page_size_of(config, o)),
        max_pages(o.max_pages > 0 ? o.max_pages : ceil_div(o.max_tokens, page_size) * o.max_sequences),
        storage(config, plan, o.dtype, o.kv_dtype, page_size, o.slots > 0 ? o.slots : o.max_sequences,
                o.poison, m),
        sequences(static_cast<size_t>(o.max_sequences)),
        appended(plan.size()),
        staged(storage.rings().size()),
        staging(m) {
    for (const KvLayer& ring : storage.rings())
      if (std::none_of(ring_rows.begin(), ring_rows.end(),
                       [&](const RingRows& r) { return r.length == ring.k.rows; }))
        ring_rows.push_back({ring.k.rows, {}, {}});
    if (max_pages > INT32_MAX)
      throw expected_error("page_size", "at most 2^31 - 1 pages in all", std::to_string(max_pages),
                           "take larger pages");
    if (!storage.rings().empty()) slot_ids.grow(o.slots > 0 ? o.slots : o.max_sequences);
    if (o.reserve_pages && !storage.pools().empty()) {
      storage.grow(max_pages);
      page_ids.grow(max_pages);
    }
  }

  const Sequence& sequence(int id) const {
    HYSPARSE_CHECK(id >= 0 && id < static_cast<int>(sequences.size()), "cache sequence {} of {}", id,
                   sequences.size());
    return sequences[static_cast<size_t>(id)];
  }
  Sequence& sequence(int id) { return const_cast<Sequence&>(std::as_const(*this).sequence(id)); }
  Sequence& empty_sequence(int id) {
    Sequence& s = sequence(id);
    HYSPARSE_CHECK(!in_step && s.empty(), "cache sequence {} is not empty", id);
    return s;
  }
  bool has_pools() const { return !storage.pools().empty(); }
  bool has_rings() const { return !storage.rings().empty(); }
  int64_t free_pages() const { return page_ids.free() + max_pages - page_ids.size(); }

  void make_free(int64_t pages) {
    if (pages <= page_ids.free()) return;
    const int64_t capacity = page_ids.size(), wanted = capacity + pages - page_ids.free();
    const int64_t target =
        std::min(max_pages, std::max(wanted, capacity + std::max<int64_t>(capacity / 2, 4)));
    storage.grow(target);
    page_ids.grow(target);
  }
  void take_pages(Sequence& s, int64_t tokens) {
    while (static_cast<int64_t>(s.pages.size()) * page_size < tokens) s.pages.push_back(page_ids.take());
  }
  void drop_page(int32_t page) {
    if (page_ids.drop(page)) storage.poison_page(page, 0);
  }
  void release_pages(Sequence& s, size_t keep) {
    while (s.pages.size() > keep) {
      drop_page(s.pages.back());
      s.pages.pop_back();
    }
  }
  void drop_slot(int32_t slot) {
    if (slot_ids.drop(slot)) storage.poison_slot(slot, 0, INT32_MAX);
  }
  // The page that the next token goes into is there, and others hold it, too.
  bool writes_shared(const Sequence& s) const {
    const auto page = static_cast<size_t>(s.length / page_size);
    return page < s.pages.size() && page_ids.holders(s.pages[page]) > 1;
  }
  void own_next_page(Sequence& s) {
    if (!writes_shared(s)) return;
    int32_t& page = s.pages[static_cast<size_t>(s.length / page_size)];
    const int32_t copy = page_ids.take();
    storage.copy_page(page, copy, s.length % page_size);
    drop_page(page);
    page = copy;
  }
  int64_t missing_pages(const Sequence& s, int64_t tokens) const {
    if (!has_pools()) return 0;
    const int64_t more =
        std::max<int64_t>(0, ceil_div(tokens, page_size) - static_cast<int64_t>(s.pages.size()));
    return more + (tokens > s.length && writes_shared(s) ? 1 : 0);
  }
  void check_limit(int id, int64_t tokens) const {
    if (tokens > options.max_tokens)
      throw input_error(
          "KV cache",
          fmt::format("sequence {} would hold {} tokens, the context is {}", id, tokens, options.max_tokens),
          "a longer context is set where the cache is made");
  }
  void check_free(int64_t pages, int64_t slots) const {
    if (pages > free_pages())
      throw failure("KV cache", fmt::format("{} more pages of {} tokens are needed, {} of {} are free", pages,
                                            page_size, free_pages(), max_pages));
    if (slots > slot_ids.free())
      throw failure("KV cache", fmt::format("{} more slots of rings are needed, {} of {} are free", slots,
                                            slot_ids.free(), slot_ids.size()));
  }
  bool rings_serve(int64_t length, int64_t peak) const {
    for (const KvLayer& ring : storage.rings()) {
      const int64_t w = ring.k.rows;
      const int64_t needed = std::max<int64_t>(0, length - w + 1);  // first key that the next query sees
      if (needed < length && needed < peak - w) return false;
    }
    return true;
  }

  // kv_bound: RaggedBatch's.
  void build_tables(int64_t kv_bound) {
    page_table_stride = std::max<int64_t>(1, ceil_div(kv_bound, page_size));
    for (const Bound& b : bound)
      page_table_stride = std::max(page_table_stride, static_cast<int64_t>(sequence(b.id).pages.size()));
    page_table.assign(bound.size() * static_cast<size_t>(page_table_stride), -1);
    slots.clear();
    for (size_t s = 0; s < bound.size(); ++s) {
      const Sequence& sequence = this->sequence(bound[s].id);
      std::copy(sequence.pages.begin(), sequence.pages.end(),
                page_table.begin() + static_cast<int64_t>(s) * page_table_stride);
      slots.push_back(sequence.slot);
    }
    if (runtime) build_rows();
  }

  void build_rows() {
    page_rows.clear();
    for (RingRows& ring : ring_rows) ring.aside.clear(), ring.home.clear();
    for (const Bound& b : bound) {
      const Sequence& s = sequence(b.id);
      for (int64_t p = s.length; p < s.length + b.count; ++p) {
        if (has_pools())
          page_rows.push_back(s.pages[static_cast<size_t>(p / page_size)] * page_size + p % page_size);
        for (RingRows& ring : ring_rows) {
          const bool kept = p >= s.length + b.count - staged_rows(b, ring.length);
          ring.aside.push_back(kept ? static_cast<int64_t>(ring.home.size()) : -1);
          if (kept) ring.home.push_back(s.slot * ring.length + p % ring.length);
        }
      }
    }
  }
  RingRows& rows_of(const KvLayer& ring) {
    return *std::find_if(ring_rows.begin(), ring_rows.end(),
                         [&](const RingRows& r) { return r.length == ring.k.rows; });
  }
  // [groups, rows, heads, dim] as rows.
  static TensorView all_rows(const KvTensor& t) {
    return TensorView(t.block.data(), t.dtype, {t.groups * t.rows, t.heads, t.dim});
  }
  bool scatters(const TensorView& k, const TensorView& v) const {
    const auto dense = [](const TensorView& t) { return t.dim(1) == 1 || t.stride[1] == t.dim(2); };
    return runtime && dense(k) && dense(v);
  }
  void scatter(const std::vector<int64_t>& rows, std::span<const ScatterRows::Pair> pairs) {
    runtime->ops.scatter_rows(*runtime, {rows.data(), pairs});
  }
  // Brings what append() kept aside to its rings, each row.
  void write_rings() {
    for (const RingRows& rows : ring_rows) {
      std::vector<ScatterRows::Pair> pairs;
      for (size_t i = 0; i < staged.size(); ++i) {
        const KvLayer& ring = storage.rings()[i];
        if (ring.k.rows != rows.length) continue;
        pairs.push_back({staged[i].k, all_rows(ring.k)});
        pairs.push_back({staged[i].v, all_rows(ring.v)});
      }
      scatter(rows.home, pairs);
    }
    rings_written = true;
  }

  void write_pages(const KvLayer& pool, const TensorView& k, const TensorView& v) {
    if (pool.in_8_bits())
      return runtime->ops.quantise_kv(
          *runtime, {k, v, page_rows.data(), all_rows(pool.k), all_rows(pool.v), all_rows(pool.scales)});
    const ScatterRows::Pair pairs[] = {{k, all_rows(pool.k)}, {v, all_rows(pool.v)}};
    if (scatters(k, v)) return scatter(page_rows, pairs);
    for (const Bound& b : bound) {
      const Sequence& s = sequence(b.id);
      for (int64_t i = 0; i < b.count;) {
        const int64_t p = s.length + i;
        const int64_t run = std::min(b.count - i, page_size - p % page_size);
        const int32_t page = s.pages[static_cast<size_t>(p / page_size)];
        copy_kv_rows(memory, k, b.first_row + i, run, pool.k.at(page, p % page_size));
        copy_kv_rows(memory, v, b.first_row + i, run, pool.v.at(page, p % page_size));
        i += run;
      }
    }
  }
  KvView append_pages(const KvLayer& pool, const TensorView& k, const TensorView& v) {
    write_pages(pool, k, v);
    KvView view;
    view.kind = KvView::Kind::paged;
    view.k = pool.k.view();
    view.v = pool.v.view();
    if (pool.in_8_bits()) {
      view.scales = pool.scales.view();
      view.version = std::make_shared<int>(0);
    }
    view.page_table = page_table.data();
    view.page_table_stride = page_table_stride;
    view.page_size = page_size;
    return view;
  }

  // How many of a sequence's new rows are kept aside for its ring of w: the last ones that the ring will
  // hold, or all where it is open how many of them will be kept.
  int64_t staged_rows(const Bound& b, int64_t w) const { return partial ? b.count : std::min(b.count, w); }

  // The new rows stay where they are for this layer; what the ring will keep is copied aside, so that nothing
  // depends on the life of the layer's workspace.
  KvView append_ring(const KvLayer& ring, const TensorView& k, const TensorView& v) {
    const int64_t w = ring.k.rows;
    int64_t rows = 0;
    for (const Bound& b : bound) rows += staged_rows(b, w);
    Staged& stage = staged[static_cast<size_t>(&ring - storage.rings().data())];
    stage.k = staging.alloc(k.dtype, {rows, ring.k.heads, ring.k.dim});
    stage.v = staging.alloc(v.dtype, {rows, ring.v.heads, ring.v.dim});
    rows = 0;
    const ScatterRows::Pair pairs[] = {{k, stage.k}, {v, stage.v}};
    const bool scattered = scatters(k, v);
    if (scattered) scatter(rows_of(ring).aside, pairs);
    for (const Bound& b : bound) {
      if (scattered) break;
      const int64_t n = staged_rows(b, w), first = b.first_row + b.count - n;
      copy_kv_rows(memory, k, first, n,
                   static_cast<std::byte*>(stage.k.data) + static_cast<size_t>(rows) * ring.k.row_bytes());
      copy_kv_rows(memory, v, first, n,
                   static_cast<std::byte*>(stage.v.data) + static_cast<size_t>(rows) * ring.v.row_bytes());
      rows += n;
    }
    KvView view;
    view.kind = KvView::Kind::ring;
    view.k = ring.k.view();
    view.v = ring.v.view();
    view.fresh_k = k;
    view.fresh_v = v;
    view.slot = slots.data();
    view.ring_len = w;
    return view;
  }

  void commit_ring(size_t index, std::span<const int64_t> kept) {
    const KvLayer& ring = storage.rings()[index];
    const int64_t w = ring.k.rows;
    int64_t first = 0;  // staged row of the sequence
    for (size_t s = 0; s < bound.size(); ++s) {
      const Bound& b = bound[s];
      const int64_t staged_here = staged_rows(b, w), count = kept[s];
      const int64_t n = std::min(count, w);
      const int64_t end = sequence(b.id).length + count;
      // Of the rows staged, which end at the last new token, those before position `end`.
      const int64_t row = first + staged_here - (b.count - count) - n;
      for (int64_t i = 0; i < n;) {
        const int64_t p = end - n + i;
        const int64_t run = std::min(n - i, w - p % w);
        const int32_t slot = sequence(b.id).slot;
        copy_kv_rows(memory, staged[index].k, row + i, run, ring.k.at(slot, p % w));
        copy_kv_rows(memory, staged[index].v, row + i, run, ring.v.at(slot, p % w));
        i += run;
      }
      first += staged_here;
    }
  }

  // Rows of the sequence's own last pages that hold nothing.
  void poison_behind(const Sequence& s, int64_t end) {
    for (int64_t p = s.length; p < end; p += page_size - p % page_size) {
      const auto page = static_cast<size_t>(p / page_size);
      if (page < s.pages.size() && page_ids.holders(s.pages[page]) == 1)
        storage.poison_page(s.pages[page], p % page_size);
    }
  }

  void end_step() {
    in_step = rings_written = false;
    bound.clear();
    std::fill(appended.begin(), appended.end(), false);
    staging.reset();
  }
};

}  // namespace hysparse
