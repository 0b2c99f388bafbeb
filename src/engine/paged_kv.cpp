#include "engine/paged_kv.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/kv_storage.h"
#include "engine/shared_ids.h"

namespace hysparse {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t page_size_of(const ModelConfig& config, const PagedKvOptions& options) {
  const int64_t block = config.hysparse_block_size;
  const int64_t size =
      options.page_size > 0 ? options.page_size : ceil_div(std::max<int64_t>(64, block), block) * block;
  if (options.page_size < 0 || size % block != 0)
    throw expected_error("page_size", fmt::format("a multiple of the selection block ({})", block),
                         std::to_string(options.page_size));
  return size;
}

}  // namespace

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

  const PagedKvOptions options;
  Memory& memory;
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
  Arena staging;

  Impl(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& o, Memory& m)
      : options(o),
        memory(m),
        page_size(page_size_of(config, o)),
        max_pages(o.max_pages > 0 ? o.max_pages : ceil_div(o.max_tokens, page_size) * o.max_sequences),
        storage(config, plan, o.dtype, page_size, o.slots > 0 ? o.slots : o.max_sequences, o.poison, m),
        sequences(static_cast<size_t>(o.max_sequences)),
        appended(plan.size()),
        staged(storage.rings().size()),
        staging(m) {
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

  void build_tables() {
    page_table_stride = 1;
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
  }

  KvView append_pages(const KvLayer& pool, const TensorView& k, const TensorView& v) {
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
    KvView view;
    view.kind = KvView::Kind::paged;
    view.k = pool.k.view();
    view.v = pool.v.view();
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
    for (const Bound& b : bound) {
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
    in_step = false;
    bound.clear();
    std::fill(appended.begin(), appended.end(), false);
    staging.reset();
  }
};

PagedKv::PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
                 Memory& memory) {
  HYSPARSE_CHECK(options.dtype == DType::f64 || options.dtype == DType::f32 || options.dtype == DType::bf16,
                 "a cache of {}", name_of(options.dtype));
  HYSPARSE_CHECK(options.max_tokens > 0 && options.max_sequences > 0, "a cache of {} sequences of {} tokens",
                 options.max_sequences, options.max_tokens);
  impl_ = std::make_unique<Impl>(config, plan, options, memory);
}

PagedKv::~PagedKv() = default;

void PagedKv::begin_step(const std::vector<int>& ids, const RaggedBatch& batch, bool partial) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "begin_step() before commit() or discard() of the last one");
  HYSPARSE_CHECK(static_cast<int64_t>(ids.size()) == batch.sequences(),
                 "{} cache sequences for a batch of {}", ids.size(), batch.sequences());
  int64_t missing = 0, slots = 0;
  for (size_t s = 0; s < ids.size(); ++s) {
    const Impl::Sequence& sequence = m.sequence(ids[s]);
    HYSPARSE_CHECK(std::count(ids.begin(), ids.end(), ids[s]) == 1, "cache sequence {} twice in a batch",
                   ids[s]);
    HYSPARSE_CHECK(batch.past_len[s] == sequence.length,
                   "past_len {} of cache sequence {}, which holds {} tokens", batch.past_len[s], ids[s],
                   sequence.length);
    const int64_t end = batch.kv_len(static_cast<int64_t>(s));
    m.check_limit(ids[s], end);
    missing += m.missing_pages(sequence, end);
    slots += m.has_rings() && sequence.slot < 0 ? 1 : 0;
  }
  m.check_free(missing, slots);
  m.make_free(missing);
  m.bound.clear();
  m.partial = partial;
  for (size_t s = 0; s < ids.size(); ++s) {
    Impl::Sequence& sequence = m.sequence(ids[s]);
    m.bound.push_back({ids[s], batch.cu_q[s], batch.q_len(static_cast<int64_t>(s)), sequence.pages.size()});
    if (m.has_pools()) {
      m.own_next_page(sequence);
      m.take_pages(sequence, batch.kv_len(static_cast<int64_t>(s)));
    }
    if (m.has_rings() && sequence.slot < 0) sequence.slot = m.slot_ids.take();
  }
  m.build_tables();
  m.in_step = true;
}

KvView PagedKv::append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(m.in_step, "append() outside a step");
  HYSPARSE_CHECK(layer >= 0 && layer < m.storage.layers(), "layer {} of {}", layer, m.storage.layers());
  const KvLayer* store = m.storage.layer(layer);
  HYSPARSE_CHECK(store, "layer {} has no K and V of its own", layer);
  HYSPARSE_CHECK(!m.appended[static_cast<size_t>(layer)], "layer {} appended twice in one step", layer);
  for (const auto& [view, tensor] : {std::pair{&k, &store->k}, std::pair{&v, &store->v}}) {
    HYSPARSE_CHECK(view->rank == 3 && view->dim(0) == batch.tokens() && view->dim(1) == tensor->heads &&
                       view->dim(2) == tensor->dim && view->dtype == tensor->dtype,
                   "layer {}: {} does not fit a cache of {}[{}, {}, {}]", layer, view->describe(),
                   name_of(tensor->dtype), batch.tokens(), tensor->heads, tensor->dim);
  }
  m.appended[static_cast<size_t>(layer)] = true;
  return store->ring ? m.append_ring(*store, k, v) : m.append_pages(*store, k, v);
}

void PagedKv::commit() {
  std::vector<int64_t> all;
  for (const Impl::Bound& b : impl_->bound) all.push_back(b.count);
  commit(all);
}

void PagedKv::commit(std::span<const int64_t> kept) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(m.in_step, "commit() outside a step");
  for (int layer = 0; layer < m.storage.layers(); ++layer)
    HYSPARSE_CHECK(!m.storage.layer(layer) || m.appended[static_cast<size_t>(layer)],
                   "commit() before layer {} was appended", layer);
  HYSPARSE_CHECK(kept.size() == m.bound.size(), "commit() of {} sequences of {}", kept.size(),
                 m.bound.size());
  for (size_t s = 0; s < kept.size(); ++s)
    HYSPARSE_CHECK(kept[s] == m.bound[s].count || (m.partial && kept[s] >= 1 && kept[s] < m.bound[s].count),
                   "commit() of {} of {} tokens", kept[s], m.bound[s].count);
  for (size_t i = 0; i < m.staged.size(); ++i) m.commit_ring(i, kept);
  for (size_t s = 0; s < kept.size(); ++s) {
    const Impl::Bound& b = m.bound[s];
    Impl::Sequence& sequence = m.sequence(b.id);
    sequence.length += kept[s];
    sequence.peak = std::max(sequence.peak, sequence.length);
    if (kept[s] == b.count) continue;
    const auto needed = static_cast<size_t>(m.has_pools() ? ceil_div(sequence.length, m.page_size) : 0);
    m.poison_behind(sequence, sequence.length + b.count - kept[s]);
    m.release_pages(sequence, std::max(needed, b.pages_before));
  }
  m.end_step();
}

void PagedKv::discard() {
  Impl& m = *impl_;
  if (!m.in_step) return;
  for (const Impl::Bound& b : m.bound) {
    Impl::Sequence& s = m.sequence(b.id);
    m.release_pages(s, b.pages_before);
    m.poison_behind(s, s.length + b.count);
    if (s.slot >= 0 && s.length == 0) m.drop_slot(std::exchange(s.slot, -1));
  }
  m.end_step();
}

int64_t PagedKv::length(int id) const {
  return impl_->sequence(id).length;
}

bool PagedKv::truncate(int id, int64_t length) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "truncate() inside a step");
  Impl::Sequence& s = m.sequence(id);
  HYSPARSE_CHECK(0 <= length && length <= s.length, "truncate to {} of {} tokens", length, s.length);
  if (!m.rings_serve(length, s.peak)) return false;
  if (s.slot >= 0) m.storage.poison_slot(s.slot, length, s.length);
  m.release_pages(s, static_cast<size_t>(m.has_pools() ? ceil_div(length, m.page_size) : 0));
  std::swap(s.length, length);
  m.poison_behind(s, length);
  if (s.length > 0) return true;
  s.peak = 0;
  if (s.slot >= 0) m.drop_slot(std::exchange(s.slot, -1));
  return true;
}

void PagedKv::clear(int id) {
  HYSPARSE_CHECK(truncate(id, 0), "an empty sequence needs no window");
}

void PagedKv::reserve(int id, int64_t tokens) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "reserve() inside a step");
  m.check_limit(id, tokens);
  Impl::Sequence& s = m.sequence(id);
  const bool slot = m.has_rings() && s.slot < 0;
  const int64_t missing = m.missing_pages(s, tokens);
  m.check_free(missing, slot ? 1 : 0);
  m.make_free(missing);
  if (slot) s.slot = m.slot_ids.take();
  if (!m.has_pools()) return;
  if (tokens > s.length) m.own_next_page(s);
  m.take_pages(s, tokens);
}

bool PagedKv::fits(int id, int64_t tokens) const {
  return tokens <= impl_->options.max_tokens &&
         impl_->missing_pages(impl_->sequence(id), tokens) <= impl_->free_pages();
}

int64_t PagedKv::pages_missing(int id, int64_t tokens) const {
  return impl_->missing_pages(impl_->sequence(id), tokens);
}

int64_t PagedKv::pages_for(int64_t tokens) const {
  return impl_->has_pools() ? ceil_div(tokens, impl_->page_size) : 0;
}

// ---- sharing

bool PagedKv::has_rings() const {
  return impl_->has_rings();
}

std::span<const int32_t> PagedKv::pages(int id) const {
  return impl_->sequence(id).pages;
}

void PagedKv::hold_page(int32_t page) {
  impl_->page_ids.share(page);
}

void PagedKv::drop_page(int32_t page) {
  impl_->drop_page(page);
}

int32_t PagedKv::copy_rings(int id) {
  Impl& m = *impl_;
  const Impl::Sequence& s = m.sequence(id);
  HYSPARSE_CHECK(!m.in_step && s.slot >= 0, "cache sequence {} has no rings", id);
  const int32_t slot = m.slot_ids.take();
  m.storage.copy_slot(s.slot, slot);
  return slot;
}

int32_t PagedKv::take_rings(int id) {
  Impl::Sequence& s = impl_->sequence(id);
  HYSPARSE_CHECK(!impl_->in_step && s.slot >= 0, "cache sequence {} has no rings", id);
  return std::exchange(s.slot, -1);
}

void PagedKv::hold_slot(int32_t slot) {
  impl_->slot_ids.share(slot);
}

void PagedKv::drop_slot(int32_t slot) {
  impl_->drop_slot(slot);
}

bool PagedKv::rings_serve(int64_t length, int64_t peak) const {
  return impl_->rings_serve(length, peak);
}

void PagedKv::attach(int id, std::span<const int32_t> pages, int64_t length, int32_t slot, int64_t peak) {
  Impl& m = *impl_;
  Impl::Sequence& s = m.empty_sequence(id);
  HYSPARSE_CHECK(static_cast<int64_t>(pages.size()) == pages_for(length), "{} pages for {} tokens",
                 pages.size(), length);
  HYSPARSE_CHECK(length > 0 && length <= peak && m.rings_serve(length, peak),
                 "rings of {} tokens cannot serve {}", peak, length);
  m.check_limit(id, length);
  if (m.has_rings()) {
    s.slot = m.slot_ids.take();
    m.storage.copy_slot(slot, s.slot);
  }
  for (const int32_t page : pages) m.page_ids.share(page);
  s.pages.assign(pages.begin(), pages.end());
  s.length = length;
  s.peak = peak;
}

void PagedKv::fork(int from, int to) {
  const Impl::Sequence& s = impl_->sequence(from);
  const auto count = static_cast<size_t>(pages_for(s.length));
  attach(to, std::span(s.pages).first(count), s.length, s.slot, s.peak);
}

int64_t PagedKv::image_bytes(int id) const {
  const Impl& m = *impl_;
  const Impl::Sequence& s = m.sequence(id);
  return s.length * (m.storage.page_bytes() / m.page_size) + (s.slot >= 0 ? m.storage.slot_bytes() : 0);
}

KvImage PagedKv::move_out(int id) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "move_out() inside a step");
  const Impl::Sequence& s = m.sequence(id);
  KvImage image{s.length, s.peak, s.slot >= 0, {}};
  image.bytes.resize(static_cast<size_t>(image_bytes(id)));
  std::byte* to = image.bytes.data();
  for (int64_t p = 0; p < s.length && m.has_pools(); p += m.page_size) {
    const int64_t rows = std::min(m.page_size, s.length - p);
    m.storage.page_to_host(s.pages[static_cast<size_t>(p / m.page_size)], rows, to);
    to += rows * (m.storage.page_bytes() / m.page_size);
  }
  if (image.slot) m.storage.slot_to_host(s.slot, to);
  clear(id);
  return image;
}

void PagedKv::move_in(int id, const KvImage& image) {
  Impl& m = *impl_;
  Impl::Sequence& s = m.empty_sequence(id);
  const int64_t pages = pages_for(image.length);
  m.check_free(pages, image.slot ? 1 : 0);
  m.make_free(pages);
  if (m.has_pools()) m.take_pages(s, image.length);
  const std::byte* from = image.bytes.data();
  for (int64_t p = 0; p < image.length && m.has_pools(); p += m.page_size) {
    const int64_t rows = std::min(m.page_size, image.length - p);
    m.storage.page_from_host(s.pages[static_cast<size_t>(p / m.page_size)], rows, from);
    from += rows * (m.storage.page_bytes() / m.page_size);
  }
  if (image.slot) {
    s.slot = m.slot_ids.take();
    m.storage.slot_from_host(s.slot, from);
  }
  s.length = image.length;
  s.peak = image.peak;
}

// ---- figures

int64_t PagedKv::free_pages() const {
  return impl_->has_pools() ? impl_->free_pages() : impl_->max_pages;
}
int64_t PagedKv::free_slots() const {
  return impl_->slot_ids.free();
}
int64_t PagedKv::slots() const {
  return impl_->slot_ids.size();
}
int64_t PagedKv::slot_bytes() const {
  return impl_->storage.slot_bytes();
}
int64_t PagedKv::pages_in_use() const {
  return impl_->page_ids.used();
}
int64_t PagedKv::page_bytes() const {
  return pages_in_use() * impl_->storage.page_bytes();
}
int64_t PagedKv::ring_bytes() const {
  return slots() * impl_->storage.slot_bytes();
}
int64_t PagedKv::reserved_bytes() const {
  return static_cast<int64_t>(impl_->storage.allocated_bytes());
}
int64_t PagedKv::page_size() const {
  return impl_->page_size;
}
int64_t PagedKv::max_pages() const {
  return impl_->max_pages;
}
int64_t PagedKv::max_tokens() const {
  return impl_->options.max_tokens;
}

void PagedKv::check(std::span<const int32_t> held_pages, std::span<const int32_t> held_slots) const {
  const Impl& m = *impl_;
  std::vector<int> pages(static_cast<size_t>(m.page_ids.size()), 0),
      slots(static_cast<size_t>(m.slot_ids.size()), 0);
  const auto count = [](std::vector<int>& holders, int32_t id, const char* what) {
    HYSPARSE_CHECK(id >= 0 && id < static_cast<int32_t>(holders.size()), "{} {} of {}", what, id,
                   holders.size());
    ++holders[static_cast<size_t>(id)];
  };
  for (const int32_t page : held_pages) count(pages, page, "page");
  for (const int32_t slot : held_slots) count(slots, slot, "slot");
  for (size_t id = 0; id < m.sequences.size(); ++id) {
    const Impl::Sequence& s = m.sequences[id];
    for (const int32_t page : s.pages) count(pages, page, "page");
    if (s.slot >= 0) count(slots, s.slot, "slot");
    HYSPARSE_CHECK(0 <= s.length && s.length <= s.peak && s.peak <= m.options.max_tokens,
                   "sequence {}: length {}, peak {}, limit {}", id, s.length, s.peak, m.options.max_tokens);
    HYSPARSE_CHECK(s.length == 0 || !m.has_rings() || s.slot >= 0, "sequence {}: {} tokens without rings", id,
                   s.length);
    HYSPARSE_CHECK(
        m.has_pools() ? static_cast<int64_t>(s.pages.size()) * m.page_size >= s.length : s.pages.empty(),
        "sequence {}: {} pages of {} for {} tokens", id, s.pages.size(), m.page_size, s.length);
  }
  m.page_ids.check("page", pages);
  m.slot_ids.check("slot", slots);
  HYSPARSE_CHECK(m.page_ids.size() <= m.max_pages && m.page_ids.size() == m.storage.pages(),
                 "{} pages of at most {}, {} in memory", m.page_ids.size(), m.max_pages, m.storage.pages());
}

}  // namespace hysparse
