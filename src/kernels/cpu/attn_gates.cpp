// Gated sums, a head at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attn_gates.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/attn_kernels.h"
#include "kernels/cpu/attn_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hysparse::attn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D1 = hn::CappedTag<float, 1>;

template <class DF>
HWY_INLINE hn::Vec<DF> Sigmoid(DF d, hn::Vec<DF> x) {
  // At 128 exp2 is infinite, and the sigmoid 0. A comparison keeps a NaN, which Min does not at every level.
  const auto minus = hn::Mul(x, hn::Set(d, -1.44269504088896341f));
  const auto one = hn::Set(d, 1.0f), top = hn::Set(d, 128.0f);
  return hn::Div(one, hn::Add(one, Exp2(d, hn::IfThenElse(hn::Gt(minus, top), top, minus))));
}
template <class DF>
HWY_INLINE hn::Vec<DF> Gate(DF d, const float* gate, bool channel, int j) {
  return Sigmoid(d, channel ? hn::LoadU(d, gate + j) : hn::Set(d, gate[0]));
}

// A vector of a head; the tail comes as vectors of one lane.
template <class T>
struct Forward {
  const T* a;
  const float* ga;
  const T* b;
  const float* gb;
  bool a_channel, b_channel;
  T* out;

  template <class DF>
  HWY_INLINE void At(DF d, int j) const {
    auto y = hn::Mul(Gate(d, ga, a_channel, j), LoadF(d, a + j));
    if (b) y = hn::MulAdd(Gate(d, gb, b_channel, j), LoadF(d, b + j), y);
    StoreF(y, d, out + j);
  }
};
template <class T>
void GatedRow(const Forward<T>& row, int width) {
  const D d;
  int j = 0;
  for (; j + kLanes <= width; j += kLanes) row.At(d, j);
  for (; j < width; ++j) row.At(D1(), j);
}
template <class T>
void GatedT(const void* a, const float* ga, const void* b, const float* gb, bool a_channel, bool b_channel,
            int width, void* out) {
  GatedRow(Forward<T>{static_cast<const T*>(a), ga, static_cast<const T*>(b), gb, a_channel, b_channel,
                      static_cast<T*>(out)},
           width);
}
void Gated(const void* a, const float* ga, const void* b, const float* gb, bool a_channel, bool b_channel,
           bool is_bf16, int width, void* out) {
  is_bf16 ? GatedT<bf16>(a, ga, b, gb, a_channel, b_channel, width, out)
          : GatedT<float>(a, ga, b, gb, a_channel, b_channel, width, out);
}

template <class DF, class T>
HWY_INLINE hn::Vec<DF> Branch(DF d, const T* x, const float* gate, bool channel, int j, hn::Vec<DF> dy, T* dx,
                              float* dgate) {
  const auto s = Gate(d, gate, channel, j);
  const auto slope = hn::Mul(s, hn::Sub(hn::Set(d, 1.0f), s));
  const auto dg = hn::Mul(hn::Mul(dy, LoadF(d, x + j)), slope);
  StoreF(hn::Mul(dy, s), d, dx + j);
  if (channel) hn::StoreU(dg, d, dgate + j);
  return dg;
}
template <class T>
void BranchRow(const void* xp, const float* gate, bool channel, int width, const void* dyp, void* dxp,
               float* dgate) {
  const T* x = static_cast<const T*>(xp);
  const T* dy = static_cast<const T*>(dyp);
  T* dx = static_cast<T*>(dxp);
  const D d;
  const D1 d1;
  V sum = hn::Zero(d);
  float tail = 0;
  int j = 0;
  for (; j + kLanes <= width; j += kLanes)
    sum = hn::Add(sum, Branch(d, x, gate, channel, j, LoadF(d, dy + j), dx, dgate));
  for (; j < width; ++j)
    tail += hn::GetLane(Branch(d1, x, gate, channel, j, hn::Set(d1, ToFloat(dy[j])), dx, dgate));
  if (!channel) dgate[0] = hn::GetLane(hn::SumOfLanes(d, sum)) + tail;
}
void GatedGrad(const void* x, const float* g, bool channel, bool is_bf16, int width, const void* d, void* dx,
               float* dg) {
  is_bf16 ? BranchRow<bf16>(x, g, channel, width, d, dx, dg)
          : BranchRow<float>(x, g, channel, width, d, dx, dg);
}

void FillGates(Kernels& k) {
  k.gated = &Gated;
  k.gated_grad = &GatedGrad;
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::attn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::attn {

HWY_EXPORT(FillGates);
void fill_gates(Kernels& k) {
  HWY_DYNAMIC_DISPATCH(FillGates)(k);
}

}  // namespace hysparse::attn
#endif
