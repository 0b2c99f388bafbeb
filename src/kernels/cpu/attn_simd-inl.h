// Per-target vector helpers of the attention kernels: conversion from and to T, exp2. Included once a target.
#if defined(HYSPARSE_ATTN_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HYSPARSE_ATTN_SIMD_INL_H_
#undef HYSPARSE_ATTN_SIMD_INL_H_
#else
#define HYSPARSE_ATTN_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "kernels/cpu/attn_kernels.h"
#include "kernels/cpu/unroll.h"
#include "tensor/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::attn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kPad>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

HWY_INLINE float ToFloat(float x) {
  return x;
}
HWY_INLINE float ToFloat(bf16 x) {
  return static_cast<float>(x);
}
HWY_INLINE float ToFloat(int8_t x) {
  return static_cast<float>(x);
}
HWY_INLINE float ToFloat(f8 x) {
  return static_cast<float>(x);
}
template <class T>
HWY_INLINE T FromFloat(float x) {
  return T(x);
}

template <class DF>
HWY_INLINE hn::Vec<DF> LoadF(DF d, const float* p) {
  return hn::LoadU(d, p);
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadF(DF d, const bf16* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, &p->bits))));
}

// Codes in the upper 8 bits of a lane. Of f8 the exponent is moved to where f32 has it and lifted by 120,
// which serves subnormal ones, too; there is no NaN among the codes of a cache.
template <class DF>
HWY_INLINE hn::Vec<DF> UpperCode(DF d, hn::Vec<hn::RebindToUnsigned<DF>> u, int8_t) {
  const hn::RebindToSigned<DF> di;
  return hn::ConvertTo(d, hn::ShiftRight<24>(hn::BitCast(di, u)));
}
template <class DF>
HWY_INLINE hn::Vec<DF> UpperCode(DF d, hn::Vec<hn::RebindToUnsigned<DF>> u, f8) {
  const hn::RebindToUnsigned<DF> du;
  const auto magnitude = hn::ShiftRight<4>(hn::And(u, hn::Set(du, 0x7f000000u)));
  const auto bits = hn::Or(hn::And(u, hn::Set(du, 0x80000000u)), magnitude);
  return hn::Mul(hn::BitCast(d, bits), hn::Set(d, 0x1p120f));
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadF(DF d, const int8_t* p) {
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, p)));
}
template <class DF>
HWY_INLINE hn::Vec<DF> LoadF(DF d, const f8* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint8_t, DF> d8;
  return UpperCode(d, hn::ShiftLeft<24>(hn::PromoteTo(du, hn::LoadU(d8, &p->bits))), f8());
}

template <class DF>
HWY_INLINE void StoreF(hn::Vec<DF> v, DF d, float* p) {
  hn::StoreU(v, d, p);
}
// Round to nearest even; NaN stays NaN (as bf16(float)).
template <class DF>
HWY_INLINE void StoreF(hn::Vec<DF> v, DF, bf16* p) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> d16;
  const auto u = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(du, 0x7fff)), odd);
  const auto quiet = hn::Or(u, hn::Set(du, 0x400000));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded))), d16, &p->bits);
}

// Walks the lines of the rows that are to be fetched ahead; when there are none, stays on one harmless line.
class Fetcher {
 public:
  Fetcher(Ahead* ahead, const void* harmless) : ahead_(ahead), line_(static_cast<const char*>(harmless)) {
    if (!ahead_) return;
    if (ahead_->left > 0) {
      line_ = ahead_->line;
      left_ = ahead_->left;
      step_ = kLine;
    } else {
      NextRow();
    }
  }
  HWY_INLINE void Step() {
    __builtin_prefetch(line_, 0, 2);
    line_ += step_;
    if (HWY_UNLIKELY(--left_ == 0)) NextRow();
  }
  void Stop() const {
    if (!ahead_) return;
    ahead_->line = line_;
    ahead_->left = step_ > 0 ? left_ : 0;
  }

 private:
  static constexpr ptrdiff_t kLine = 64;

  HWY_NOINLINE void NextRow() {
    left_ = std::numeric_limits<int>::max();
    step_ = 0;
    if (!ahead_ || ahead_->row == ahead_->end) return;
    line_ = static_cast<const char*>(*ahead_->row++);
    left_ = ahead_->lines;
    step_ = kLine;
  }

  Ahead* ahead_;
  const char* line_;
  ptrdiff_t step_ = 0;
  int left_ = std::numeric_limits<int>::max();
};

// 2^x for x <= 128 (infinite from 127.5 on), relative error below 2e-7; 0 below 2^-126; NaN stays NaN. A
// polynomial in the fraction of x (minimax on [-1/2, 1/2], relative error 2e-9), then the exponent by integer
// arithmetic.
template <class DF>
HWY_INLINE hn::Vec<DF> Exp2(DF d, hn::Vec<DF> x) {
  const hn::RebindToSigned<DF> di;
  const auto smallest = hn::Set(d, -126.0f);
  const auto flush = hn::Lt(x, smallest);
  x = hn::IfThenElse(flush, smallest, x);  // not Max, which drops a NaN at the scalar level
  const auto whole = hn::NearestInt(x);
  const auto f = hn::Sub(x, hn::ConvertTo(d, whole));
  auto y = hn::MulAdd(f, hn::Set(d, 0x1.41d3336e31c5bp-13f), hn::Set(d, 0x1.5f456a8ac2c04p-10f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.3b2dbbc0f839fp-7f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.c6aed4b95100bp-5f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.ebfbdadcb0c82p-3f));
  y = hn::MulAdd(y, f, hn::Set(d, 0x1.62e430c7e9236p-1f));
  y = hn::MulAdd(y, f, hn::Set(d, 1.0f));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(whole, hn::Set(di, 127))));
  return hn::IfThenElse(flush, hn::Zero(d), hn::Mul(y, power));
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::attn
HWY_AFTER_NAMESPACE();

#endif
