#include "kernels/cpu/gemm_multiply.h"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_onednn.h"

namespace hysparse::gemm {
namespace {

std::atomic<Engine> chosen_engine{Engine::automatic};

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
// Pieces of `extent`, at most `limit` each and nearly equal, rounded up to `multiple`.
int64_t balanced(int64_t extent, int64_t limit, int64_t multiple) {
  return ceil_div(ceil_div(extent, ceil_div(extent, limit)), multiple) * multiple;
}

bool both_bf16(const Matrix& a, const Matrix& b) {
  return a.dtype == DType::bf16 && b.dtype == DType::bf16;
}

// How a product is cut, by shape alone. Enough tasks for a desktop's cores where the work allows; a task
// keeps kTaskWork multiply-adds or more, so that handing it out is not felt.
struct Cut {
  int64_t rows = 0, cols = 0;  // of a task's tile
  int64_t splits = 1;          // of k: partial sums, added in order
  int64_t split_depth = 0;
};
constexpr int64_t kTasks = 16, kTaskWork = int64_t(4) << 20;
constexpr int64_t kRowMultiple = 12, kColMultiple = 32;  // register tiles of every level divide these

Cut cut_of(int64_t m, int64_t n, int64_t k, int64_t depth, bool may_split, bool onednn) {
  Cut cut;
  cut.rows = onednn ? kOnednnRows : balanced(m, kBlockRows, kRowMultiple);
  cut.cols = balanced(n, kBlockCols, kColMultiple);
  const auto tasks = [&] { return ceil_div(m, cut.rows) * ceil_div(n, cut.cols); };
  // Deep and small: split k, in whole blocks.
  const int64_t blocks = ceil_div(k, depth);
  if (may_split && blocks >= 4 && tasks() * 2 <= kTasks && m * n <= kBlockRows * kBlockCols * 4) {
    const int64_t work = cut.rows * cut.cols * depth;
    const int64_t step = std::max<int64_t>(blocks / ceil_div(kTasks, tasks()), ceil_div(kTaskWork, work));
    cut.splits = ceil_div(blocks, step);
    cut.split_depth = step * depth;
  }
  if (cut.splits <= 1) {
    cut.splits = 1;
    cut.split_depth = std::max<int64_t>(k, 1);
  }
  const auto divisible = [&] {
    return cut.splits * tasks() < kTasks && cut.rows * cut.cols * k >= 2 * kTaskWork;
  };
  while (!onednn && cut.splits == 1 && divisible() && cut.rows > 96)
    cut.rows = balanced(m, ceil_div(cut.rows, 2), kRowMultiple);
  while (divisible() && cut.cols > 64) cut.cols = balanced(n, ceil_div(cut.cols, 2), kColMultiple);
  return cut;
}

}  // namespace

Kernels kernels_for(const Matrix& a, const Matrix& b) {
  if (both_bf16(a, b) && use_native_bf16()) return {pack_block_bf16, multiply_block_bf16, 2 * kBlockDepth};
  return {pack_block, multiply_block, kBlockDepth};
}

bool use_onednn(const Matrix& a, const Matrix& b) {
  if (cpu_dispatch_forced() || a.dtype != b.dtype || !onednn_available(a.dtype)) return false;
  const Engine engine = chosen_engine;
  return engine == Engine::onednn || (engine == Engine::automatic && both_bf16(a, b) && cpu_has_amx_bf16());
}

void set_engine(Engine engine) {
  chosen_engine = engine;
}

void multiply(Runtime& rt, const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k,
              const Output& y) {
  if (m == 0 || n == 0) return;
  const Kernels kernels = kernels_for(a, b);
  const bool onednn = use_onednn(a, b);
  // Only where a row of y is no token's (weight gradients): how k is split depends on m.
  const bool may_split = a.col != 1;
  const Cut cut = cut_of(m, n, k, kernels.depth, may_split, onednn);
  const int64_t row_tasks = ceil_div(m, cut.rows), col_tasks = ceil_div(n, cut.cols);
  const int64_t blocks = std::max<int64_t>(1, ceil_div(k, kernels.depth));

  ArenaScope scope(rt.scratch);
  const auto allocate = [&](int64_t bytes) {
    return static_cast<char*>(rt.scratch.alloc_bytes(static_cast<size_t>(bytes)));
  };
  // b is packed once for all where tiles are low and it fits the caches; a high tile does better to pack the
  // part that it needs right before use.
  constexpr int64_t kSharedRows = 192, kSharedBytes = int64_t(8) << 20;
  const bool shared =
      !onednn && row_tasks > 1 && cut.rows <= kSharedRows && blocks * col_tasks * kPanelsB <= kSharedBytes;
  char* shared_b = nullptr;
  if (shared) {
    shared_b = allocate(blocks * col_tasks * kPanelsB);
    rt.pool.parallel_for(blocks * col_tasks, [&](int64_t task, int) {
      const int64_t k0 = task / col_tasks * kernels.depth, c = task % col_tasks * cut.cols;
      kernels.pack(b.block(k0, c), std::min(cut.cols, n - c), std::min(kernels.depth, k - k0),
                   shared_b + task * kPanelsB);
    });
  }
  const bool direct = cut.splits == 1 && y.dtype == DType::f32 && !y.bias;
  const int64_t tile_bytes = cut.rows * cut.cols * 4;
  char* partial = cut.splits > 1 ? allocate(cut.splits * row_tasks * col_tasks * tile_bytes) : nullptr;
  const int64_t worker_bytes = kPanelsA + (shared ? 0 : kPanelsB) + (direct || partial ? 0 : tile_bytes);
  char* workspace = allocate(worker_bytes * rt.pool.threads());

  rt.pool.parallel_for(cut.splits * row_tasks * col_tasks, [&](int64_t task, int worker) {
    const int64_t tile = task / cut.splits, split = task % cut.splits;
    const int64_t r = tile / col_tasks * cut.rows, c = tile % col_tasks * cut.cols;
    const int64_t rows = std::min(cut.rows, m - r), cols = std::min(cut.cols, n - c);
    char* a_panels = workspace + worker * worker_bytes;
    char* own_b = a_panels + kPanelsA;
    const Output out = y.block(r, c);
    float* product = direct    ? static_cast<float*>(out.data)
                     : partial ? reinterpret_cast<float*>(partial + task * tile_bytes)
                               : reinterpret_cast<float*>(own_b + (shared ? 0 : kPanelsB));
    const int64_t ld = direct ? y.row : cut.cols;
    const int64_t begin = split * cut.split_depth, end = std::min(k, begin + cut.split_depth);
    int64_t k0 = begin;
    do {  // once even for k == 0: the product is 0 then
      const int64_t depth = std::min(kernels.depth, end - k0);
      const bool add = (direct && y.accumulate) || k0 > begin;
      if (onednn && rows == kOnednnRows) {
        onednn_multiply(a.block(r, k0), b.block(k0, c), rows, cols, depth, product, ld, add);
      } else {
        if (!shared) kernels.pack(b.block(k0, c), cols, depth, own_b);
        const void* panels =
            shared ? shared_b + (k0 / kernels.depth * col_tasks + tile % col_tasks) * kPanelsB : own_b;
        kernels.multiply(a.block(r, k0), panels, rows, cols, depth, product, ld, add, a_panels);
      }
      k0 += kernels.depth;
    } while (k0 < end);
    if (!direct && !partial) store_tile(product, ld, rows, cols, out);
  });
  if (!partial) return;
  // A quarter of a tile's rows a task: the sum of its splits, in order.
  const int64_t step = ceil_div(cut.rows, 4);
  rt.pool.parallel_for(row_tasks * col_tasks * 4, [&](int64_t task, int) {
    const int64_t tile = task / 4, r0 = task % 4 * step;
    const int64_t r = tile / col_tasks * cut.rows, c = tile % col_tasks * cut.cols;
    const int64_t rows = std::min({step, cut.rows - r0, m - r - r0}), cols = std::min(cut.cols, n - c);
    if (rows <= 0) return;
    float* sum = reinterpret_cast<float*>(partial + tile * cut.splits * tile_bytes) + r0 * cut.cols;
    const Output total{.data = sum, .dtype = DType::f32, .row = cut.cols, .accumulate = true};
    for (int64_t s = 1; s < cut.splits; ++s)
      store_tile(sum + s * cut.rows * cut.cols, cut.cols, rows, cols, total);
    store_tile(sum, cut.cols, rows, cols, y.block(r + r0, c));
  });
}

}  // namespace hysparse::gemm
