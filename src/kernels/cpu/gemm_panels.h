// Products with a weight, y = x W^T, from panels: kPanelCols rows of W stand side by side, so that a walk
// along k reads one stream and meets any number of rows of x. Panels are cut in blocks of kPanelDepth of k:
//
//   f32   block [depth][kPanelCols]
//   bf16  block [depth / 2][kPanelCols][2], neighbours in k side by side
//   i8    block [depth][kPanelCols], scales [depth / kQuantGroup][kPanelCols]
//
// An element of y is summed in one order, whatever else is computed with it: along k within a block (i8:
// within a group, which is scaled then), block after block, then bias, then what y held. One row or a
// thousand, panels made beforehand or for this call: the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/ops.h"

namespace hysparse::gemm {

inline constexpr int64_t kPanelCols = 32, kPanelDepth = 128;
inline constexpr int64_t kPanelBlockBytes = kPanelCols * kPanelDepth * 4;  // the most of a block

// ---- the kernels, one copy a SIMD level (gemm_panel_kernels.cpp; AVX512-BF16: gemm_bf16.cpp)

// A block against rows of x, or several blocks one behind the other.
struct PanelBlock {
  const void* x = nullptr;  // a block: [rows][kPanelDepth]: f32, or bf16 for the kernel of AVX512-BF16
  int64_t rows = 0;
  const void* b = nullptr;
  DType dtype = DType::f32;  // of b: f32, bf16 or i8
  int64_t depth = 0;         // of all; bf16: an odd one ends on half a pair, x and b are 0 there
  const float* scales = nullptr;

  // The block at k0, a multiple of kPanelDepth.
  PanelBlock block(int64_t k0, int64_t x_size) const;
  float* total = nullptr;  // [rows][kPanelCols]
  bool add = false;        // to total; else it is overwritten
  int64_t ahead = 0;       // what will be read next lies so many bytes behind b, and is fetched; 0: unknown
};
inline PanelBlock PanelBlock::block(int64_t k0, int64_t x_size) const {
  PanelBlock one = *this;
  one.x = static_cast<const char*>(x) + k0 * rows * x_size;
  one.b = static_cast<const char*>(b) + k0 * kPanelCols * static_cast<int64_t>(size_of(dtype));
  one.depth = depth - k0 < kPanelDepth ? depth - k0 : kPanelDepth;
  if (scales) one.scales = scales + k0 / kQuantGroup * kPanelCols;
  one.add = add || k0 > 0;
  return one;
}
void multiply_panel(const PanelBlock& p);
void multiply_panel_bf16(const PanelBlock& p);

// `rows` <= kPanelCols rows of a matrix, `row_bytes` apart, k-contiguous, `depth` of k: as a block. What is
// missing is 0.
void pack_panel(const void* w, DType dtype, int64_t row_bytes, int64_t rows, int64_t depth, void* block);

// ---- the products

// W [n, k] as products read it.
struct PanelSource {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or i8
  int64_t n = 0, k = 0;
  int64_t row = 0;                // elements between rows where they are rows
  const float* scales = nullptr;  // i8
  bool panels = false;            // n / kPanelCols whole panels; the rest are rows
  const void* rest = nullptr;     // those, as a panel too, if that was made
  const float* rest_scales = nullptr;
};
PanelSource panel_source(const Weight& w);
// What lies beside a weight in panels: the last n % kPanelCols rows as a panel.
struct PanelRest {
  Tensor value;   // bytes of blocks
  Tensor scales;  // [quant_groups(k)][kPanelCols] f32
};
// Row `row` of a weight that lies in panels, as `dtype`.
void panel_row(const Weight& w, int64_t row, DType dtype, void* dst);

// y [m, n] (+)= x W^T (+ bias); x k-contiguous, f32 or bf16.
struct PanelProduct {
  Matrix x;
  int64_t m = 0;
  PanelSource w;
  Output y;
};
// All of them in one parallel region. next: the weights of the products that follow, where known; a hint.
void multiply_panels(Runtime& rt, std::span<const PanelProduct> products,
                     std::span<const Weight* const> next = {});

}  // namespace hysparse::gemm
