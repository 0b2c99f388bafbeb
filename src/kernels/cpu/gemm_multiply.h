// Matrix products of any layout on the thread pool: what a backward pass needs. Products with a weight in the
// forward direction are those of gemm_panels.h. oneDNN serves where it has an instruction set that the
// kernels here lack (AMX).
#pragma once

#include <span>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/ops.h"

namespace hysparse::gemm {

// y [m, n] (+)= a [m, k] b [k, n] (+ bias), accumulated in f32, bit-equal on any number of threads: the cut
// into tasks, and with it the order of every sum, depends on the shape alone. Where the rows of a are
// k-contiguous (tokens), a row of y depends on its row of a and on b, not on the other rows.
void multiply(Runtime& rt, const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k,
              const Output& y);

// Products that have nothing to do with one another, in one parallel region: y (+)= a b each, as multiply()
// computes it, but for oneDNN and splits of k.
struct Product {
  Matrix a, b;
  int64_t m = 0, n = 0, k = 0;
  Output y;
};
void multiply_all(Runtime& rt, std::span<const Product> products);

// ---- what the cuts are made of

// The kernels that serve two operands.
struct Kernels {
  void (*pack)(const Matrix& b, int64_t n, int64_t k, void* panels);
  void (*multiply)(const Matrix& a, const void* b_panels, int64_t m, int64_t n, int64_t k, float* c,
                   int64_t ldc, bool accumulate, void* a_panels);
  int64_t depth;
};
Kernels kernels_for(const Matrix& a, const Matrix& b);

// Who multiplies large blocks. `automatic`: oneDNN for bf16 on CPUs with AMX, else our own. While a dispatch
// level is forced it is always our own. Choosing oneDNN in a build without it has no effect. For tests and
// benchmarks.
enum class Engine { automatic, own, onednn };
void set_engine(Engine engine);
bool use_onednn(const Matrix& a, const Matrix& b);
inline constexpr int64_t kOnednnRows = 128;  // of a block that it multiplies: few primitive shapes

}  // namespace hysparse::gemm
