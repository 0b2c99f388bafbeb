#include "engine/paged_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace hysparse {
namespace {

// Uninitialised memory: untouched pages of a large pool cost address space only.
class Block {
 public:
  Block() = default;
  Block(size_t bytes, Memory& memory) : data_(memory.allocate(bytes)), bytes_(bytes), memory_(&memory) {}
  Block(Block&& o) noexcept { *this = std::move(o); }
  Block& operator=(Block&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(memory_, o.memory_);
    return *this;
  }
  ~Block() {
    if (memory_) memory_->release(data_, bytes_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Memory* memory_ = nullptr;
};

// K or V of one layer: `groups` (pages or ring slots) of `rows` tokens of `heads` x `dim`.
struct Store {
  int64_t groups = 0, rows = 0, heads = 0, dim = 0;
  DType dtype = DType::f32;
  Block block;

  size_t row_bytes() const { return static_cast<size_t>(heads * dim) * size_of(dtype); }
  size_t group_bytes() const { return static_cast<size_t>(rows) * row_bytes(); }
  std::byte* at(int64_t group, int64_t row) const {
    return block.data() + static_cast<size_t>(group) * group_bytes() + static_cast<size_t>(row) * row_bytes();
  }
  TensorView view() const { return TensorView(block.data(), dtype, {groups, rows, heads, dim}); }
};

struct KvPair {
  Store k, v;
  bool appended = false;  // in the running step
};

// Rows [first, first + count) of src [n, heads, dim] (dense in dim only) to contiguous rows at dst.
void copy_rows(Memory& memory, const TensorView& src, int64_t first, int64_t count, std::byte* dst) {
  const size_t element = size_of(src.dtype);
  const int64_t heads = src.dim(1), dim = src.dim(2);
  const bool dense_heads = heads == 1 || src.stride[1] == dim;
  const auto* base =
      static_cast<const std::byte*>(src.data) + static_cast<size_t>(first * src.stride[0]) * element;
  const size_t row = static_cast<size_t>(heads * dim) * element;
  if (dense_heads && (src.stride[0] == heads * dim || count == 1)) {
    memory.copy(dst, base, static_cast<size_t>(count) * row);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto* from = base + static_cast<size_t>(i * src.stride[0]) * element;
    std::byte* to = dst + static_cast<size_t>(i) * row;
    if (dense_heads) {
      memory.copy(to, from, row);
      continue;
    }
    const size_t head = static_cast<size_t>(dim) * element;
    for (int64_t h = 0; h < heads; ++h)
      memory.copy(to + static_cast<size_t>(h) * head, from + static_cast<size_t>(h * src.stride[1]) * element,
                  head);
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

struct PagedKv::Impl {
  struct Sequence {
    int64_t length = 0;  // committed
    int64_t peak = 0;    // largest length since the rings were empty: they lost what lies below peak - w
    std::vector<int32_t> pages;  // at least ceil(length / page_size)
  };
  struct Bound {  // a sequence of the running step
    int id;
    int64_t first_row, count;  // its query rows
    size_t pages_before;       // to give back on discard
  };
  struct Staged {  // a ring's new rows of the running step: the last min(count, w) of each bound sequence
    TensorView k, v;
  };

  PagedKvOptions options;
  Memory& memory;
  int64_t page_size = 0, max_pages = 0, capacity = 0;  // pages
  std::vector<int> slot_of_layer;                      // index into pools or rings, -1: stores nothing
  std::vector<bool> is_ring;
  std::vector<KvPair> pools, rings;
  std::vector<Staged> staged;
  std::vector<Sequence> sequences;
  std::vector<int32_t> free_pages;  // a stack; the lowest id is handed out first while nothing was freed

  bool in_step = false;
  std::vector<Bound> bound;
  std::vector<int32_t> page_table, slots;
  int64_t page_table_stride = 0;
  Arena staging;

  Impl(const PagedKvOptions& o, Memory& m) : options(o), memory(m), staging(m) {}

  const Sequence& sequence(int id) const {
    HYSPARSE_CHECK(id >= 0 && id < static_cast<int>(sequences.size()), "cache sequence {} of {}", id,
                   sequences.size());
    return sequences[static_cast<size_t>(id)];
  }
  Sequence& sequence(int id) { return const_cast<Sequence&>(std::as_const(*this).sequence(id)); }
  int64_t free_count() const { return static_cast<int64_t>(free_pages.size()) + max_pages - capacity; }

  void poison(std::byte* p, size_t bytes) {
    if (!options.poison || bytes == 0) return;
    const size_t element = size_of(options.dtype);
    std::vector<std::byte> fill(bytes);
    for (size_t at = 0; at < bytes; at += element) {
      const double wide = *options.poison;
      const auto single = static_cast<float>(wide);
      const bf16 half(single);
      const void* from = options.dtype == DType::f64   ? static_cast<const void*>(&wide)
                         : options.dtype == DType::f32 ? static_cast<const void*>(&single)
                                                       : static_cast<const void*>(&half);
      std::memcpy(fill.data() + at, from, element);
    }
    memory.from_host(p, fill.data(), bytes);
  }
  void poison_page(int32_t page, int64_t from_row) {
    for (const KvPair& pool : pools)
      for (const Store* s : {&pool.k, &pool.v})
        poison(s->at(page, from_row), static_cast<size_t>(page_size - from_row) * s->row_bytes());
  }
  // What the rings hold at positions [begin, end) of a sequence no longer counts.
  void poison_rings(int id, int64_t begin, int64_t end) {
    if (!options.poison) return;
    for (const KvPair& ring : rings)
      for (const Store* s : {&ring.k, &ring.v})
        for (int64_t p = std::max(begin, end - s->rows); p < end; ++p)
          poison(s->at(id, p % s->rows), s->row_bytes());
  }

  // Makes the pools hold at least `pages`. Layer by layer: the old pool is gone before the next one grows.
  void grow(int64_t pages) {
    if (pages <= capacity) return;
    const int64_t target =
        std::min(max_pages, std::max(pages, capacity + std::max<int64_t>(capacity / 2, 4)));
    for (KvPair& pool : pools) {
      for (Store* s : {&pool.k, &pool.v}) {
        if (s->groups >= target) continue;
        Block block(static_cast<size_t>(target) * s->group_bytes(), memory);
        const size_t used = static_cast<size_t>(capacity) * s->group_bytes();
        if (used > 0) memory.copy(block.data(), s->block.data(), used);
        s->block = std::move(block);
        s->groups = target;
        poison(s->block.data() + used, s->block.bytes() - used);
      }
    }
    std::vector<int32_t> stack;
    for (int64_t p = target - 1; p >= capacity; --p) stack.push_back(static_cast<int32_t>(p));
    stack.insert(stack.end(), free_pages.begin(), free_pages.end());
    free_pages = std::move(stack);
    capacity = target;
  }
  void take_pages(Sequence& s, int64_t tokens) {
    while (static_cast<int64_t>(s.pages.size()) * page_size < tokens) {
      s.pages.push_back(free_pages.back());
      free_pages.pop_back();
    }
  }
  void release_pages(Sequence& s, size_t keep) {
    while (s.pages.size() > keep) {
      poison_page(s.pages.back(), 0);
      free_pages.push_back(s.pages.back());
      s.pages.pop_back();
    }
  }
  int64_t missing_pages(const Sequence& s, int64_t tokens) const {
    if (pools.empty()) return 0;
    return std::max<int64_t>(0, ceil_div(tokens, page_size) - static_cast<int64_t>(s.pages.size()));
  }
  void check_limit(int id, int64_t tokens) const {
    if (tokens > options.max_tokens)
      throw input_error(
          "KV cache",
          fmt::format("sequence {} would hold {} tokens, the context is {}", id, tokens, options.max_tokens),
          "a longer context is set where the cache is made");
  }
  void check_free(int64_t pages) const {
    if (pages > free_count())
      throw failure("KV cache", fmt::format("{} more pages of {} tokens are needed, {} of {} are free", pages,
                                            page_size, free_count(), max_pages));
  }

  void build_tables() {
    page_table_stride = 1;
    for (const Bound& b : bound)
      page_table_stride = std::max(page_table_stride, static_cast<int64_t>(sequence(b.id).pages.size()));
    page_table.assign(bound.size() * static_cast<size_t>(page_table_stride), -1);
    slots.clear();
    for (size_t s = 0; s < bound.size(); ++s) {
      const auto& pages = sequence(bound[s].id).pages;
      std::copy(pages.begin(), pages.end(), page_table.begin() + static_cast<int64_t>(s) * page_table_stride);
      slots.push_back(bound[s].id);
    }
  }

  KvView append_pages(KvPair& pool, const TensorView& k, const TensorView& v) {
    for (const Bound& b : bound) {
      const Sequence& s = sequence(b.id);
      for (int64_t i = 0; i < b.count;) {
        const int64_t p = s.length + i;
        const int64_t run = std::min(b.count - i, page_size - p % page_size);
        const int32_t page = s.pages[static_cast<size_t>(p / page_size)];
        copy_rows(memory, k, b.first_row + i, run, pool.k.at(page, p % page_size));
        copy_rows(memory, v, b.first_row + i, run, pool.v.at(page, p % page_size));
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

  // The new rows stay where they are for this layer; what the ring will keep is copied aside, so that nothing
  // depends on the life of the layer's workspace.
  KvView append_ring(size_t index, const TensorView& k, const TensorView& v) {
    KvPair& ring = rings[index];
    const int64_t w = ring.k.rows;
    int64_t rows = 0;
    for (const Bound& b : bound) rows += std::min(b.count, w);
    Staged& stage = staged[index];
    stage.k = staging.alloc(k.dtype, {rows, ring.k.heads, ring.k.dim});
    stage.v = staging.alloc(v.dtype, {rows, ring.v.heads, ring.v.dim});
    rows = 0;
    for (const Bound& b : bound) {
      const int64_t n = std::min(b.count, w), first = b.first_row + b.count - n;
      copy_rows(memory, k, first, n,
                static_cast<std::byte*>(stage.k.data) + static_cast<size_t>(rows) * ring.k.row_bytes());
      copy_rows(memory, v, first, n,
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

  void commit_ring(size_t index) {
    const KvPair& ring = rings[index];
    const int64_t w = ring.k.rows;
    int64_t row = 0;
    for (const Bound& b : bound) {
      const int64_t n = std::min(b.count, w);
      const int64_t end = sequence(b.id).length + b.count;
      for (int64_t i = 0; i < n;) {
        const int64_t p = end - n + i;
        const int64_t run = std::min(n - i, w - p % w);
        copy_rows(memory, staged[index].k, row + i, run, ring.k.at(b.id, p % w));
        copy_rows(memory, staged[index].v, row + i, run, ring.v.at(b.id, p % w));
        i += run;
      }
      row += n;
    }
  }

  void end_step() {
    in_step = false;
    bound.clear();
    for (auto* pairs : {&pools, &rings})
      for (KvPair& pair : *pairs) pair.appended = false;
    staging.reset();
  }
};

PagedKv::PagedKv(const ModelConfig& config, const LayerPlan& plan, const PagedKvOptions& options,
                 Memory& memory)
    : impl_(std::make_unique<Impl>(options, memory)) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(options.dtype == DType::f64 || options.dtype == DType::f32 || options.dtype == DType::bf16,
                 "a cache of {}", name_of(options.dtype));
  HYSPARSE_CHECK(options.max_tokens > 0 && options.max_sequences > 0, "a cache of {} sequences of {} tokens",
                 options.max_sequences, options.max_tokens);
  const int64_t block = config.hysparse_block_size;
  m.page_size =
      options.page_size > 0 ? options.page_size : ceil_div(std::max<int64_t>(64, block), block) * block;
  if (options.page_size < 0 || m.page_size % block != 0)
    throw expected_error("page_size", fmt::format("a multiple of the selection block ({})", block),
                         std::to_string(options.page_size));
  m.max_pages = options.max_pages > 0 ? options.max_pages
                                      : ceil_div(options.max_tokens, m.page_size) * options.max_sequences;
  if (m.max_pages > INT32_MAX)
    throw expected_error("page_size", "at most 2^31 - 1 pages in all", std::to_string(m.max_pages),
                         "take larger pages");
  m.sequences.resize(static_cast<size_t>(options.max_sequences));

  const auto make = [&](int64_t groups, int64_t rows, int64_t dim) {
    Store s;
    s.groups = groups;
    s.rows = rows;
    s.heads = config.kv_heads();
    s.dim = dim;
    s.dtype = options.dtype;
    s.block = Block(static_cast<size_t>(groups) * s.group_bytes(), memory);
    m.poison(s.block.data(), s.block.bytes());
    return s;
  };
  for (const LayerPlanEntry& layer : plan) {
    const bool full = layer.kind == LayerKind::full;
    const bool ring = !full && layer.own_window_kv;
    m.is_ring.push_back(ring);
    m.slot_of_layer.push_back(full || ring ? static_cast<int>(ring ? m.rings.size() : m.pools.size()) : -1);
    if (!full && !ring) continue;
    KvPair pair;
    pair.k = make(ring ? options.max_sequences : 0, ring ? layer.window : m.page_size, config.d());
    pair.v = make(ring ? options.max_sequences : 0, ring ? layer.window : m.page_size, config.dv());
    (ring ? m.rings : m.pools).push_back(std::move(pair));
  }
  m.staged.resize(m.rings.size());
}

PagedKv::~PagedKv() = default;

void PagedKv::begin_step(const std::vector<int>& ids, const RaggedBatch& batch) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "begin_step() before commit() or discard() of the last one");
  HYSPARSE_CHECK(static_cast<int64_t>(ids.size()) == batch.sequences(),
                 "{} cache sequences for a batch of {}", ids.size(), batch.sequences());
  int64_t missing = 0;
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
  }
  m.check_free(missing);
  if (missing > static_cast<int64_t>(m.free_pages.size()))
    m.grow(m.capacity + missing - static_cast<int64_t>(m.free_pages.size()));
  m.bound.clear();
  for (size_t s = 0; s < ids.size(); ++s) {
    Impl::Sequence& sequence = m.sequence(ids[s]);
    m.bound.push_back({ids[s], batch.cu_q[s], batch.q_len(static_cast<int64_t>(s)), sequence.pages.size()});
    if (!m.pools.empty()) m.take_pages(sequence, batch.kv_len(static_cast<int64_t>(s)));
  }
  m.build_tables();
  m.in_step = true;
}

KvView PagedKv::append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(m.in_step, "append() outside a step");
  HYSPARSE_CHECK(layer >= 0 && layer < static_cast<int>(m.slot_of_layer.size()), "layer {} of {}", layer,
                 m.slot_of_layer.size());
  const int index = m.slot_of_layer[static_cast<size_t>(layer)];
  HYSPARSE_CHECK(index >= 0, "layer {} has no K and V of its own", layer);
  const bool ring = m.is_ring[static_cast<size_t>(layer)];
  KvPair& pair = (ring ? m.rings : m.pools)[static_cast<size_t>(index)];
  HYSPARSE_CHECK(!pair.appended, "layer {} appended twice in one step", layer);
  for (const auto& [view, store] : {std::pair{&k, &pair.k}, std::pair{&v, &pair.v}}) {
    HYSPARSE_CHECK(view->rank == 3 && view->dim(0) == batch.tokens() && view->dim(1) == store->heads &&
                       view->dim(2) == store->dim && view->dtype == store->dtype,
                   "layer {}: {} does not fit a cache of {}[{}, {}, {}]", layer, view->describe(),
                   name_of(store->dtype), batch.tokens(), store->heads, store->dim);
  }
  pair.appended = true;
  return ring ? m.append_ring(static_cast<size_t>(index), k, v) : m.append_pages(pair, k, v);
}

void PagedKv::commit() {
  Impl& m = *impl_;
  HYSPARSE_CHECK(m.in_step, "commit() outside a step");
  for (size_t layer = 0; layer < m.slot_of_layer.size(); ++layer) {
    const int index = m.slot_of_layer[layer];
    if (index < 0) continue;
    HYSPARSE_CHECK((m.is_ring[layer] ? m.rings : m.pools)[static_cast<size_t>(index)].appended,
                   "commit() before layer {} was appended", layer);
  }
  for (size_t i = 0; i < m.rings.size(); ++i) m.commit_ring(i);
  for (const Impl::Bound& b : m.bound) {
    Impl::Sequence& s = m.sequence(b.id);
    s.length += b.count;
    s.peak = std::max(s.peak, s.length);
  }
  m.end_step();
}

void PagedKv::discard() {
  Impl& m = *impl_;
  if (!m.in_step) return;
  for (const Impl::Bound& b : m.bound) {
    Impl::Sequence& s = m.sequence(b.id);
    m.release_pages(s, b.pages_before);
    const int64_t end =
        std::min<int64_t>(s.length + b.count, static_cast<int64_t>(s.pages.size()) * m.page_size);
    for (int64_t p = s.length; p < end; p += m.page_size - p % m.page_size)
      m.poison_page(s.pages[static_cast<size_t>(p / m.page_size)], p % m.page_size);
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
  for (const KvPair& ring : m.rings) {
    const int64_t w = ring.k.rows;
    const int64_t needed = std::max<int64_t>(0, length - w + 1);  // first key that the next query sees
    if (needed < length && needed < s.peak - w) return false;
  }
  m.poison_rings(id, length, s.length);
  m.release_pages(s, static_cast<size_t>(m.pools.empty() ? 0 : ceil_div(length, m.page_size)));
  if (length % m.page_size != 0 && !s.pages.empty()) m.poison_page(s.pages.back(), length % m.page_size);
  s.length = length;
  if (length == 0) s.peak = 0;
  return true;
}

void PagedKv::clear(int id) {
  HYSPARSE_CHECK(truncate(id, 0), "an empty sequence needs no window");
}

void PagedKv::reserve(int id, int64_t tokens) {
  Impl& m = *impl_;
  HYSPARSE_CHECK(!m.in_step, "reserve() inside a step");
  m.check_limit(id, tokens);
  if (m.pools.empty()) return;
  Impl::Sequence& s = m.sequence(id);
  const int64_t missing = m.missing_pages(s, tokens);
  m.check_free(missing);
  if (missing > static_cast<int64_t>(m.free_pages.size()))
    m.grow(m.capacity + missing - static_cast<int64_t>(m.free_pages.size()));
  m.take_pages(s, tokens);
}

bool PagedKv::fits(int id, int64_t tokens) const {
  return tokens <= impl_->options.max_tokens &&
         impl_->missing_pages(impl_->sequence(id), tokens) <= impl_->free_count();
}

int64_t PagedKv::pages_in_use() const {
  int64_t n = 0;
  for (const Impl::Sequence& s : impl_->sequences) n += static_cast<int64_t>(s.pages.size());
  return n;
}

int64_t PagedKv::page_bytes() const {
  size_t a_page = 0;
  for (const KvPair& pool : impl_->pools) a_page += pool.k.group_bytes() + pool.v.group_bytes();
  return pages_in_use() * static_cast<int64_t>(a_page);
}

int64_t PagedKv::ring_bytes() const {
  size_t bytes = 0;
  for (const KvPair& ring : impl_->rings) bytes += ring.k.block.bytes() + ring.v.block.bytes();
  return static_cast<int64_t>(bytes);
}

int64_t PagedKv::reserved_bytes() const {
  size_t bytes = 0;
  for (const KvPair& pool : impl_->pools) bytes += pool.k.block.bytes() + pool.v.block.bytes();
  return static_cast<int64_t>(bytes) + ring_bytes();
}

int64_t PagedKv::page_size() const {
  return impl_->page_size;
}

int64_t PagedKv::max_tokens() const {
  return impl_->options.max_tokens;
}

void PagedKv::check() const {
  const Impl& m = *impl_;
  std::vector<int> owners(static_cast<size_t>(m.capacity), 0);
  const auto own = [&](int32_t page) {
    HYSPARSE_CHECK(page >= 0 && page < m.capacity, "page {} of {}", page, m.capacity);
    ++owners[static_cast<size_t>(page)];
  };
  for (const int32_t page : m.free_pages) own(page);
  for (size_t id = 0; id < m.sequences.size(); ++id) {
    const Impl::Sequence& s = m.sequences[id];
    for (const int32_t page : s.pages) own(page);
    HYSPARSE_CHECK(0 <= s.length && s.length <= s.peak && s.peak <= m.options.max_tokens,
                   "sequence {}: length {}, peak {}, limit {}", id, s.length, s.peak, m.options.max_tokens);
    HYSPARSE_CHECK(
        m.pools.empty() ? s.pages.empty() : static_cast<int64_t>(s.pages.size()) * m.page_size >= s.length,
        "sequence {}: {} pages of {} for {} tokens", id, s.pages.size(), m.page_size, s.length);
  }
  for (size_t page = 0; page < owners.size(); ++page)
    HYSPARSE_CHECK(owners[page] == 1, "page {} has {} owners", page, owners[page]);
  HYSPARSE_CHECK(m.capacity <= m.max_pages, "{} pages of at most {}", m.capacity, m.max_pages);
  for (const KvPair& pool : m.pools)
    HYSPARSE_CHECK(pool.k.groups >= m.capacity && pool.v.groups >= m.capacity, "a pool of {} pages of {}",
                   std::min(pool.k.groups, pool.v.groups), m.capacity);
}

}  // namespace hysparse
