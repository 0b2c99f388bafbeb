// Matrix products on the thread pool. What every choice here rests on was measured on two cores with
// AVX512-BF16 against oneDNN 2.6 (docs/performance.md): the kernels here run at 0.72-0.93 of its speed on
// weights that it has packed, without a second copy of them; so oneDNN serves only where it has an
// instruction set that they lack (AMX).
#pragma once

#include <span>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/ops.h"

namespace hysparse::gemm {

// y [m, n] (+)= a [m, k] b [k, n] (+ bias), accumulated in f32, bit-equal on any number of threads: the cut
// into tasks, and with it the order of every sum, depends on the shape alone. Where the rows of a are
// k-contiguous (tokens), a row of y depends on its row of a, on b and on which of two kernels the shape picks
// (uses_dot), not on the other rows.
void multiply(Runtime& rt, const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k,
              const Output& y);

// True where multiply() takes the dot kernel (operands k-contiguous, few rows or few columns).
bool uses_dot(const Matrix& a, const Matrix& b, int64_t m, int64_t n);

// One of several products of the same x [m, k]: y [m, n] (+)= x w^T (+ bias), w [n, k].
struct DotPart {
  Matrix w;
  int64_t n = 0;
  Output y;
  const float* scales = nullptr;  // w is i8, rows without gaps: [n, quant_groups(k)]
};
inline constexpr size_t kMostParts = 8;
// All of them by the dot kernel in one parallel region, in the order given: the weights pass by as one
// stream. What is computed does not depend on what else is in the group. next: the weights of the group that
// follows, if known, [n, k]; each worker fetches where it will begin.
void multiply_dots(Runtime& rt, const Matrix& x, int64_t m, int64_t k, std::span<const DotPart> parts,
                   std::span<const TensorView> next = {});

// Products that have nothing to do with one another, in one parallel region: y (+)= a b each, as multiply()
// computes it, but for oneDNN and splits of k.
struct Product {
  Matrix a, b;
  int64_t m = 0, n = 0, k = 0;
  Output y;
  const float* scales = nullptr;  // b^T is rows of 8-bit integers, a f32, and the dot kernel is taken
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
// A task of dot products: so many rows of w, about 32 KiB, and at most kDotRows rows of x in passing.
int64_t dot_columns(int64_t k, DType dtype);
void multiply_dot_any(const Matrix& x, const Matrix& w, const float* scales, int64_t m, int64_t n, int64_t k,
                      const Output& y);
inline constexpr int64_t kDotRows = 64, kDotWorthSharing = int64_t(64) << 10;

// Who multiplies large blocks. `automatic`: oneDNN for bf16 on CPUs with AMX, else our own. While a dispatch
// level is forced it is always our own. Choosing oneDNN in a build without it has no effect. For tests and
// benchmarks.
enum class Engine { automatic, own, onednn };
void set_engine(Engine engine);

}  // namespace hysparse::gemm
