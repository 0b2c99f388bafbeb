// Independent products in one parallel region: the backward pass of the experts of a layer.
#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm_multiply.h"

namespace hysparse::gemm {
namespace {

// A tile of one product.
struct Task {
  const Product* product;
  int64_t row, rows, col, cols;
};

int64_t pieces(int64_t extent, int64_t limit) {
  return (extent + limit - 1) / limit;
}
int64_t piece(int64_t extent, int64_t limit, int64_t multiple) {
  const int64_t even = pieces(extent, pieces(extent, limit));
  return pieces(even, multiple) * multiple;
}

void cut(const Product& p, int64_t rows, int64_t cols, std::vector<Task>& tasks) {
  for (int64_t r = 0; r < p.m; r += rows)
    for (int64_t c = 0; c < p.n; c += cols)
      tasks.push_back({&p, r, std::min(rows, p.m - r), c, std::min(cols, p.n - c)});
}

// By shapes alone. Tiles are as large as the kernels take them, and smaller where that leaves few of them.
std::vector<Task> cut_all(std::span<const Product> products) {
  constexpr size_t kEnough = 16;
  std::vector<Task> tasks;
  for (int64_t cols = kBlockCols, rows = kBlockRows;;) {
    tasks.clear();
    for (const Product& p : products) {
      if (p.m == 0 || p.n == 0) continue;
      cut(p, piece(p.m, rows, 12), piece(p.n, cols, 32), tasks);
    }
    if (tasks.size() >= kEnough || (cols <= 64 && rows <= 96)) return tasks;
    if (cols > 64)
      cols /= 2;
    else
      rows /= 2;
  }
}

// One tile by the packed kernels. panels: kPanelsA + kPanelsB bytes, and a tile of f32 where y needs one.
void multiply_tile(const Task& t, char* panels) {
  const Product& p = *t.product;
  const Kernels kernels = kernels_for(p.a, p.b);
  const Output out = p.y.block(t.row, t.col);
  const bool direct = out.dtype == DType::f32 && !out.bias;
  float* product =
      direct ? static_cast<float*>(out.data) : reinterpret_cast<float*>(panels + kPanelsA + kPanelsB);
  const int64_t ld = direct ? out.row : t.cols;
  for (int64_t k = 0; k == 0 || k < p.k; k += kernels.depth) {  // once even for no k: the product is 0 then
    const int64_t depth = std::min(kernels.depth, p.k - k);
    kernels.pack(p.b.block(k, t.col), t.cols, depth, panels + kPanelsA);
    kernels.multiply(p.a.block(t.row, k), panels + kPanelsA, t.rows, t.cols, depth, product, ld,
                     k > 0 || (direct && out.accumulate), panels);
  }
  if (!direct) store_tile(product, ld, t.rows, t.cols, out);
}

}  // namespace

void multiply_all(Runtime& rt, std::span<const Product> products) {
  const std::vector<Task> tasks = cut_all(products);
  int64_t work = 0;  // multiply-adds
  for (const Task& t : tasks) work += t.rows * t.cols * t.product->k;
  ArenaScope scope(rt.scratch);
  constexpr int64_t kWorkerBytes = kPanelsA + kPanelsB + kBlockRows * kBlockCols * 4;
  char* panels =
      static_cast<char*>(rt.scratch.alloc_bytes(static_cast<size_t>(kWorkerBytes * rt.pool.threads())));
  const auto run = [&](int64_t i, int worker) {
    multiply_tile(tasks[size_t(i)], panels + worker * kWorkerBytes);
  };
  constexpr int64_t kWorthSharing = int64_t(256) << 10;
  const auto count = static_cast<int64_t>(tasks.size());
  if (work >= kWorthSharing) return rt.pool.parallel_for(count, run);
  for (int64_t i = 0; i < count; ++i) run(i, 0);
}

}  // namespace hysparse::gemm
