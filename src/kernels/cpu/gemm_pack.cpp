// Weights brought into panels, and rows read back from them.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm_panels.h"
#include "kernels/cpu/impl.h"
#include "kernels/quantise.h"

namespace hysparse {
namespace gemm {
namespace {

// Rows of scales [rows][groups] as [groups][kPanelCols].
void pack_scales(const float* rows, int64_t count, int64_t groups, float* panel) {
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t c = 0; c < kPanelCols; ++c)
      panel[g * kPanelCols + c] = c < count ? rows[c * groups + g] : 0.0f;
}

// `rows` rows of w [n, k], without gaps, as a panel.
void pack_rows(const char* w, DType dtype, int64_t rows, int64_t k, char* panel) {
  const auto size = static_cast<int64_t>(size_of(dtype));
  for (int64_t k0 = 0; k0 < k; k0 += kPanelDepth)
    pack_panel(w + k0 * size, dtype, k * size, rows, std::min(kPanelDepth, k - k0),
               panel + k0 * kPanelCols * size);
}

float element(const void* panel, DType dtype, int64_t c, int64_t i) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(panel)[i * kPanelCols + c];
    case DType::bf16:
      return static_cast<float>(static_cast<const bf16*>(panel)[(i / 2 * kPanelCols + c) * 2 + i % 2]);
    default:
      return static_cast<float>(static_cast<const int8_t*>(panel)[i * kPanelCols + c]);
  }
}

}  // namespace

void panel_row(const Weight& w, int64_t row, DType dtype, void* dst) {
  const int64_t k = w.value.dim(1), panel = row / kPanelCols, c = row % kPanelCols;
  const int64_t groups = quant_groups(k), first = panel * kPanelCols;
  const DType kept = w.value.dtype;
  if (first + kPanelCols > w.value.dim(0)) {  // still a row
    const TensorView r = w.value.rows(row, row + 1);
    if (w.scales)
      dequantise_row(r.as<int8_t>(), w.scales.as<float>() + row * groups, k, dtype, dst);
    else
      std::memcpy(dst, r.data, r.bytes());
    return;
  }
  const void* values = w.value.rows(first, first + kPanelCols).data;
  const float* scales = w.scales ? w.scales.as<float>() + first * groups + c : nullptr;
  for (int64_t i = 0; i < k; ++i) {
    float x = element(values, kept, c, i);
    if (scales) x *= scales[i / kQuantGroup * kPanelCols];
    if (dtype == DType::f32)
      static_cast<float*>(dst)[i] = x;
    else
      static_cast<bf16*>(dst)[i] = bf16(x);
  }
}

}  // namespace gemm

void cpu_pack(Runtime& rt, Weight& w) {
  using gemm::kPanelCols;
  if (w.panels || !w.value || w.value.rank != 2) return;
  HYSPARSE_CHECK(!w.grad, "pack: {} is trained", w.name);
  const DType dtype = w.value.dtype;
  const int64_t n = w.value.dim(0), k = w.value.dim(1), groups = quant_groups(k);
  const bool known = dtype == DType::f32 || (dtype == DType::bf16 && k % 2 == 0) ||
                     (dtype == DType::i8 && w.scales && w.scales.contiguous());
  if (!known || !w.value.contiguous() || k == 0) return;
  const auto size = static_cast<int64_t>(size_of(dtype));
  const int64_t whole = n / kPanelCols, rest = n % kPanelCols;
  auto* value = static_cast<char*>(w.value.data);
  float* scales = w.scales ? w.scales.as<float>() : nullptr;
  rt.pool.parallel_for(whole, [&](int64_t panel, int) {
    char* at = value + panel * kPanelCols * k * size;
    const std::vector<char> rows(at, at + kPanelCols * k * size);
    gemm::pack_rows(rows.data(), dtype, kPanelCols, k, at);
    if (!scales) return;
    float* scale = scales + panel * kPanelCols * groups;
    const std::vector<float> before(scale, scale + kPanelCols * groups);
    gemm::pack_scales(before.data(), kPanelCols, groups, scale);
  });
  if (rest > 0) {
    auto beside = std::make_shared<gemm::PanelRest>();
    beside->value = Tensor(DType::u8, {kPanelCols * k * size});
    gemm::pack_rows(value + whole * kPanelCols * k * size, dtype, rest, k,
                    static_cast<char*>(beside->value.view().data));
    if (scales) {
      beside->scales = Tensor(DType::f32, {groups, kPanelCols});
      gemm::pack_scales(scales + whole * kPanelCols * groups, rest, groups,
                        beside->scales.view().as<float>());
    }
    w.packed = std::move(beside);
  }
  w.panels = true;
  w.master = {};
}

}  // namespace hysparse
