// Per-target vector helpers of the matrix kernels: reading f32 and bf16 as f32, ends of a product. Included
// once a target.
#if defined(HYSPARSE_GEMM_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYSPARSE_GEMM_SIMD_INL_H_
#undef HYSPARSE_GEMM_SIMD_INL_H_
#else
#define HYSPARSE_GEMM_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/unroll.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::gemm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using D4 = hn::CappedTag<float, 4>;
constexpr size_t kLanes = hn::MaxLanes(D());

HWY_INLINE float ToFloat(float v) {
  return v;
}
HWY_INLINE float ToFloat(bf16 v) {
  return static_cast<float>(v);
}

// As many neighbours as `d` has lanes, widened.
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const float* p) {
  return hn::LoadU(d, p);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadWide(DF d, const bf16* p) {
  const hn::Rebind<uint32_t, DF> du32;
  const hn::Rebind<uint16_t, DF> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, &p->bits))));
}
HWY_INLINE void StoreNarrow(V v, float* p) {
  hn::StoreU(v, D(), p);
}
HWY_INLINE void StoreNarrow(V v, bf16* p) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(du16, hn::IfThenElse(is_nan, nan, rounded)), du16, &p->bits);
}
HWY_INLINE void StoreOne(float v, const Output& y, int64_t r, int64_t c) {
  if (y.bias)
    v += y.bias_dtype == DType::f32 ? static_cast<const float*>(y.bias)[c]
                                    : ToFloat(static_cast<const bf16*>(y.bias)[c]);
  if (y.dtype == DType::f32) {
    float* p = static_cast<float*>(y.data) + r * y.row + c;
    *p = y.accumulate ? *p + v : v;
  } else {
    bf16* p = static_cast<bf16*>(y.data) + r * y.row + c;
    *p = bf16(y.accumulate ? ToFloat(*p) + v : v);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::gemm
HWY_AFTER_NAMESPACE();

#endif
