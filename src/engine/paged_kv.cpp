#include "engine/paged_kv.h"

#include "base/rng.h"
#include "engine/paged_kv_impl.h"

namespace hysparse {

int64_t page_size_of(const ModelConfig& config, const PagedKvOptions& options) {
  const int64_t block = config.hysparse_block_size;
  const int64_t size =
      options.page_size > 0 ? options.page_size : ceil_div(std::max<int64_t>(64, block), block) * block;
  if (options.page_size < 0 || size % block != 0)
    throw expected_error("page_size", fmt::format("a multiple of the selection block ({})", block),
                         std::to_string(options.page_size));
  return size;
}

PagedKv::PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
                 Memory& memory, Runtime* runtime) {
  HYSPARSE_CHECK(options.dtype == DType::f64 || options.dtype == DType::f32 || options.dtype == DType::bf16,
                 "a cache of {}", name_of(options.dtype));
  HYSPARSE_CHECK(options.max_tokens > 0 && options.max_sequences > 0, "a cache of {} sequences of {} tokens",
                 options.max_sequences, options.max_tokens);
  HYSPARSE_CHECK(!runtime || &runtime->memory == &memory, "a cache in another memory than its runtime's");
  HYSPARSE_CHECK(runtime || options.kv_dtype == KvDtype::compute, "a cache in {} without operations",
                 enum_name(options.kv_dtype));
  impl_ = std::make_unique<Impl>(config, plan, options, memory, runtime);
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
  m.build_tables(batch.kv_bound);
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
                       view->dim(2) == tensor->dim && view->dtype == m.options.dtype,
                   "layer {}: {} does not fit a cache of {}[{}, {}, {}]", layer, view->describe(),
                   name_of(m.options.dtype), batch.tokens(), tensor->heads, tensor->dim);
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
  if (m.runtime && !m.partial && !m.rings_written) m.write_rings();
  if (!m.rings_written)
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

bool PagedKv::can_repeat() const {
  return impl_->runtime && impl_->memory.device() != DeviceKind::cpu;
}

int64_t PagedKv::repeat_bound(int64_t length) const {
  int64_t unit = 1024;
  while (unit * 8 < length) unit *= 2;
  return std::min(ceil_div(length, unit) * unit, impl_->options.max_tokens);
}

void PagedKv::repeat(const std::vector<int>& ids, RaggedBatch batch, uint64_t model_layout,
                     const TensorView& tokens, const TensorView& logits,
                     const std::function<void(const RaggedBatch&)>& body) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(m.runtime && batch.tokens() == batch.sequences(), "a step that cannot repeat");
  batch.kv_bound = repeat_bound(batch.max_kv_len());
  begin_step(ids, batch);
  RepeatedStep step;
  step.key = hash_words({model_layout, static_cast<uint64_t>(batch.sequences()),
                         static_cast<uint64_t>(batch.kv_bound), batch.logit_rows.size(),
                         reinterpret_cast<uintptr_t>(this), reinterpret_cast<uintptr_t>(tokens.data),
                         reinterpret_cast<uintptr_t>(logits.data), m.staging.bytes_reserved()});
  for (const KvLayer& pool : m.storage.pools())  // they move when they grow
    for (const KvTensor* t : pool.tensors())
      step.key = hash_words({step.key, reinterpret_cast<uintptr_t>(t->block.data())});
  const auto add = [&](const auto& table) {
    step.tables.push_back({table.data(), table.size() * sizeof(table[0])});
  };
  add(batch.position), add(batch.kv_lens), add(m.page_table), add(m.slots), add(m.page_rows);
  for (const Impl::RingRows& ring : m.ring_rows) add(ring.aside), add(ring.home);
  try {
    m.runtime->ops.repeat(*m.runtime, step, [&] {
      body(batch);
      m.write_rings();
    });
  } catch (...) {
    discard();
    throw;
  }
  m.appended.assign(m.appended.size(), true);  // by the recording, where it was one
  m.rings_written = true;
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
  KvImage image{s.length, s.peak, s.slot >= 0, m.options.dtype, m.options.kv_dtype, {}};
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
  HYSPARSE_CHECK(image.dtype == m.options.dtype && image.kv_dtype == m.options.kv_dtype,
                 "an image of {}, {} for a cache of {}, {}", name_of(image.dtype), enum_name(image.kv_dtype),
                 name_of(m.options.dtype), enum_name(m.options.kv_dtype));
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
