#include "kernels/cpu/gemm_panels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/elem_kernels.h"
#include "kernels/quantise.h"

namespace hysparse::gemm {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// Pieces of `extent`, at most `limit` each and nearly equal, rounded up to `multiple`.
int64_t balanced(int64_t extent, int64_t limit, int64_t multiple) {
  return ceil_div(ceil_div(extent, ceil_div(extent, limit)), multiple) * multiple;
}

// Up to so many rows a panel is read from its beginning to its end while all rows meet it: one stream, at the
// speed of memory. More of them are cut in tiles, which meet a block at a time.
constexpr int64_t kStreamRows = 32;
constexpr int64_t kTileRows = 192, kTilePanels = 8;
constexpr int64_t kTasks = 16;                        // wanted in all, for many rows
constexpr int64_t kWorthSharing = int64_t(64) << 10;  // bytes of weights, or so
constexpr int64_t kRowMultiple = 12;                  // the kernels' groups of rows divide it

// How x is handed to the kernels: rows of blocks, as f32 or (AVX512-BF16) bf16.
struct Rows {
  DType dtype = DType::f32;
  explicit Rows(const PanelProduct& p)
      : dtype(p.x.dtype == DType::bf16 && p.w.dtype == DType::bf16 && use_native_bf16() ? DType::bf16
                                                                                        : DType::f32) {}
  int64_t block_row_bytes() const { return kPanelDepth * static_cast<int64_t>(size_of(dtype)); }
  // Rows [r, r + rows) of x, block k0, to dst [rows][kPanelDepth].
  void load(const PanelProduct& p, int64_t r, int64_t rows, int64_t k0, char* dst) const {
    const int64_t depth = std::min(kPanelDepth, p.w.k - k0);
    const auto bytes = static_cast<size_t>(depth) * size_of(dtype);
    for (int64_t i = 0; i < rows; ++i, dst += block_row_bytes()) {
      const Matrix from = p.x.block(r + i, k0);
      if (from.dtype == dtype)
        std::memcpy(dst, from.data, bytes);
      else
        elem::cast(from.data, from.dtype, dst, dtype, depth);
      if (depth % 2 != 0) std::memset(dst + bytes, 0, size_of(dtype));
    }
  }
};

// Tiles of the products.
struct Task {
  int32_t product;
  int32_t row, rows;
  int32_t panel, panels;
};

// What a worker needs beside the operands.
struct Workspace {
  char *block, *x;
  float *scales, *total;

  static constexpr int64_t kScales = kPanelDepth / kQuantGroup * kPanelCols;
  static constexpr int64_t kTotal = kTileRows * kTilePanels * kPanelCols;
  static constexpr int64_t kX = kTileRows * kPanelDepth * 4;
  static constexpr int64_t bytes(bool tiles) {
    return kPanelBlockBytes + kScales * 4 + (tiles ? kX + kTotal * 4 : kStreamRows * kPanelCols * 4);
  }
  explicit Workspace(char* base)
      : block(base),
        x(base + kPanelBlockBytes + kScales * 4),
        scales(reinterpret_cast<float*>(base + kPanelBlockBytes)),
        total(reinterpret_cast<float*>(x)) {}
  float* tile_total() const { return reinterpret_cast<float*>(x + kX); }
};

// Whether the panel lies in memory as one.
bool made(const PanelSource& w, int64_t panel) {
  return w.rest || (w.panels && (panel + 1) * kPanelCols <= w.n);
}
// Block k0 of a panel, where it lies or packed now.
void take_block(const PanelSource& w, int64_t panel, int64_t k0, const Workspace& space, PanelBlock& out) {
  const auto size = static_cast<int64_t>(size_of(w.dtype));
  const int64_t first = panel * kPanelCols, rows = std::min(kPanelCols, w.n - first);
  const int64_t group = k0 / kQuantGroup, groups = quant_groups(w.k);
  out.dtype = w.dtype;
  out.depth = std::min(kPanelDepth, w.k - k0);
  const bool whole = w.panels && rows == kPanelCols;
  if (made(w, panel)) {
    out.b = static_cast<const char*>(whole ? w.data : w.rest) +
            ((whole ? first * w.k : 0) + k0 * kPanelCols) * size;
    if (w.scales)
      out.scales =
          whole ? w.scales + first * groups + group * kPanelCols : w.rest_scales + group * kPanelCols;
    return;
  }
  pack_panel(static_cast<const char*>(w.data) + (first * w.row + k0) * size, w.dtype, w.row * size, rows,
             out.depth, space.block);
  out.b = space.block;
  if (!w.scales) return;
  for (int64_t g = 0; g < quant_groups(out.depth); ++g)
    for (int64_t c = 0; c < kPanelCols; ++c)
      space.scales[g * kPanelCols + c] = c < rows ? w.scales[(first + c) * groups + group + g] : 0.0f;
  out.scales = space.scales;
}

void run_kernel(const PanelBlock& block, DType x) {
  x == DType::bf16 ? multiply_panel_bf16(block) : multiply_panel(block);
}

void store_panel(const PanelProduct& p, const Task& t, int64_t panel, const float* total) {
  const int64_t c = panel * kPanelCols;
  store_tile(total, kPanelCols, t.rows, std::min(kPanelCols, p.w.n - c), p.y.block(t.row, c));
}

// x: all rows of the product, [k / kPanelDepth][rows][kPanelDepth].
void run_stream(const PanelProduct& p, const Task& t, const char* x, const Workspace& space) {
  const Rows rows(p);
  PanelBlock block;
  block.rows = t.rows;
  block.total = space.total;
  if (p.w.panels) block.ahead = kFetchAhead;
  if (p.w.k == 0) std::fill_n(space.total, t.rows * kPanelCols, 0.0f);
  for (int64_t panel = t.panel; panel < t.panel + t.panels; ++panel) {
    const int64_t step = made(p.w, panel) ? p.w.k : kPanelDepth;
    for (int64_t k0 = 0; k0 < p.w.k; k0 += step) {
      take_block(p.w, panel, k0, space, block);
      block.depth = std::min(step, p.w.k - k0);
      block.x = x + k0 / kPanelDepth * t.rows * rows.block_row_bytes();
      block.add = k0 > 0;
      run_kernel(block, rows.dtype);
    }
    store_panel(p, t, panel, space.total);
  }
}

void run_tile(const PanelProduct& p, const Task& t, const Workspace& space) {
  const Rows rows(p);
  const auto size = static_cast<int64_t>(size_of(p.w.dtype));
  PanelBlock block;
  block.rows = t.rows;
  block.x = space.x;
  const int64_t panel_total = t.rows * kPanelCols;
  if (p.w.k == 0) std::fill_n(space.tile_total(), t.panels * panel_total, 0.0f);
  for (int64_t k0 = 0; k0 < p.w.k; k0 += kPanelDepth) {
    rows.load(p, t.row, t.rows, k0, space.x);
    block.add = k0 > 0;
    for (int64_t i = 0; i < t.panels; ++i) {
      take_block(p.w, t.panel + i, k0, space, block);
      // Next: the same block of the panel beside it, or the next block of the first.
      const int64_t panel = kPanelCols * p.w.k, depth = kPanelCols * block.depth;
      if (p.w.panels) block.ahead = (i + 1 < t.panels ? panel : depth - i * panel) * size;
      block.total = space.tile_total() + i * panel_total;
      run_kernel(block, rows.dtype);
    }
  }
  for (int64_t i = 0; i < t.panels; ++i) store_panel(p, t, t.panel + i, space.tile_total() + i * panel_total);
}

// Panels that a worker reads in one go.
int64_t stream_panels(int64_t panels) {
  return std::clamp<int64_t>(panels / 64, 1, 4);
}

// By shapes alone. Appends tiles of `panels` panels at most.
void cut(const PanelProduct& p, int32_t index, int64_t most_panels, std::vector<Task>& tasks) {
  const int64_t panels = ceil_div(p.w.n, kPanelCols);
  const bool stream = p.m <= kStreamRows;
  const int64_t rows = stream ? p.m : balanced(p.m, kTileRows, kRowMultiple);
  const int64_t step = stream ? stream_panels(panels) : balanced(panels, most_panels, 1);
  for (int64_t r = 0; r < p.m; r += rows)
    for (int64_t c = 0; c < panels; c += step)
      tasks.push_back({index, static_cast<int32_t>(r), static_cast<int32_t>(std::min(rows, p.m - r)),
                       static_cast<int32_t>(c), static_cast<int32_t>(std::min(step, panels - c))});
}

// Where each of the workers begins among the panels of such weights.
std::vector<ThreadPool::Memory> beginnings(std::span<const Weight* const> weights, int workers) {
  constexpr int64_t kFetched = int64_t(32) << 10;
  const auto rows_of = [](const Weight* w) {
    return kPanelCols * stream_panels(ceil_div(w->value.dim(0), kPanelCols));
  };
  int64_t tasks = 0;
  for (const Weight* w : weights) tasks += ceil_div(w->value.dim(0), rows_of(w));
  std::vector<ThreadPool::Memory> out;
  for (int worker = 0; worker < workers; ++worker) {
    int64_t task = tasks * worker / workers;
    for (const Weight* w : weights) {
      const int64_t here = ceil_div(w->value.dim(0), rows_of(w));
      if (task < here) {
        const TensorView rest = w->value.rows(task * rows_of(w), w->value.dim(0));
        out.push_back({rest.data, std::min(kFetched, static_cast<int64_t>(rest.bytes()))});
        break;
      }
      task -= here;
    }
  }
  return out;
}

// x of the products of few rows, as run_stream() reads it; products of the same x share one copy.
std::vector<const char*> stream_rows(Runtime& rt, std::span<const PanelProduct> products) {
  struct Piece {
    const PanelProduct* p;
    int64_t k0;
    char* to;
  };
  std::vector<const char*> xs(products.size(), nullptr);
  std::vector<Piece> pieces;
  int64_t elements = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const PanelProduct& p = products[i];
    if (p.m == 0 || p.m > kStreamRows || p.w.k == 0) continue;
    const Rows rows(p);
    if (i > 0 && xs[i - 1] && p.x.data == products[i - 1].x.data && p.m == products[i - 1].m &&
        Rows(products[i - 1]).dtype == rows.dtype) {
      xs[i] = xs[i - 1];
      continue;
    }
    if (p.m == 1 && p.x.dtype == rows.dtype && p.w.k % 2 == 0) {
      xs[i] = static_cast<const char*>(p.x.data);
      continue;
    }
    const int64_t blocks = ceil_div(p.w.k, kPanelDepth), bytes = p.m * rows.block_row_bytes();
    char* to = static_cast<char*>(rt.scratch.alloc_bytes(static_cast<size_t>(blocks * bytes)));
    for (int64_t b = 0; b < blocks; ++b) pieces.push_back({&p, b * kPanelDepth, to + b * bytes});
    xs[i] = to;
    elements += p.m * p.w.k;
  }
  const auto load = [&](int64_t i, int) {
    const Piece& piece = pieces[size_t(i)];
    Rows(*piece.p).load(*piece.p, 0, piece.p->m, piece.k0, piece.to);
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (elements >= kWorthSharing)
    rt.pool.parallel_for(count, load);
  else
    for (int64_t i = 0; i < count; ++i) load(i, 0);
  return xs;
}

}  // namespace

PanelSource panel_source(const Weight& w) {
  PanelSource s;
  s.data = w.value.data;
  s.dtype = w.value.dtype;
  s.n = w.value.dim(0);
  s.k = w.value.dim(1);
  s.row = w.value.stride[0];
  if (w.scales) s.scales = w.scales.as<float>();
  s.panels = w.panels;
  if (w.panels && w.packed) {
    const auto* rest = static_cast<const PanelRest*>(w.packed.get());
    s.rest = rest->value.view().data;
    if (w.scales) s.rest_scales = rest->scales.view().as<float>();
  }
  return s;
}

void multiply_panels(Runtime& rt, std::span<const PanelProduct> products,
                     std::span<const Weight* const> next) {
  std::vector<Task> tasks;
  int64_t work = 0, most_rows = 0;
  bool tiles = false;
  for (const PanelProduct& p : products) {
    if (p.m == 0 || p.w.n == 0) continue;
    tiles = tiles || p.m > kStreamRows;
    most_rows = std::max(most_rows, p.m);
    work += p.w.n * p.w.k * (static_cast<int64_t>(size_of(p.w.dtype)) + p.m / 4);
  }
  for (int64_t panels = kTilePanels;; panels /= 2) {
    tasks.clear();
    for (size_t i = 0; i < products.size(); ++i)
      if (products[i].w.n > 0) cut(products[i], static_cast<int32_t>(i), panels, tasks);
    if (!tiles || panels == 1 || static_cast<int64_t>(tasks.size()) >= kTasks) break;
  }
  if (tasks.empty()) return;
  ArenaScope scope(rt.scratch);
  const std::vector<const char*> xs = stream_rows(rt, products);
  const int64_t bytes = Workspace::bytes(tiles);
  char* spaces = static_cast<char*>(rt.scratch.alloc_bytes(static_cast<size_t>(bytes * rt.pool.threads())));
  const auto run = [&](int64_t i, int worker) {
    const Task& t = tasks[size_t(i)];
    const PanelProduct& p = products[size_t(t.product)];
    const Workspace space(spaces + worker * bytes);
    if (p.m <= kStreamRows)
      run_stream(p, t, xs[size_t(t.product)], space);
    else
      run_tile(p, t, space);
  };
  const auto count = static_cast<int64_t>(tasks.size());
  if (work < kWorthSharing) {
    rt.pool.parallel_for(1, [&](int64_t, int worker) {
      for (int64_t i = 0; i < count; ++i) run(i, worker);
    });
  } else if (tiles) {
    rt.pool.parallel_for(count, run);
  } else {
    std::vector<ThreadPool::Memory> begins;
    if (most_rows == 1 && !next.empty()) begins = beginnings(next, rt.pool.threads());
    rt.pool.parallel_runs(count, run, begins);
  }
}

}  // namespace hysparse::gemm
