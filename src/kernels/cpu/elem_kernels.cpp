#include "kernels/cpu/elem_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elem_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target: once a level.
#include "kernels/cpu/attn_simd-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace hysparse::elem {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using attn::HWY_NAMESPACE::D;
using attn::HWY_NAMESPACE::Exp2;
using attn::HWY_NAMESPACE::LoadF;
using attn::HWY_NAMESPACE::StoreF;
using attn::HWY_NAMESPACE::ToFloat;
using attn::HWY_NAMESPACE::V;

constexpr int64_t kLanes = attn::HWY_NAMESPACE::kLanes;
constexpr float kLog2e = 1.44269504088896340736f;

// `count` <= kLanes elements; the other lanes are 0.
template <class T>
HWY_INLINE V LoadPart(const T* p, int64_t count) {
  const D d;
  if constexpr (kLanes > 1) {
    if (count < kLanes) {
      T part[kLanes] = {};
      std::copy(p, p + count, part);
      return LoadF(d, part);
    }
  }
  return LoadF(d, p);
}
template <class T>
HWY_INLINE void StorePart(V v, T* p, int64_t count) {
  const D d;
  if constexpr (kLanes > 1) {
    if (count < kLanes) {
      T part[kLanes];
      StoreF(v, d, part);
      std::copy(part, part + count, p);
      return;
    }
  }
  StoreF(v, d, p);
}

template <class T>
void AddToF32(const T* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kLanes)
    StorePart(hn::Add(LoadPart(y + i, n - i), LoadPart(x + i, n - i)), y + i, n - i);
}
void AddToF32Any(const void* x, DType type, int64_t n, float* y) {
  if (type == DType::f32)
    AddToF32(static_cast<const float*>(x), n, y);
  else
    AddToF32(static_cast<const bf16*>(x), n, y);
}

template <class T>
void Add(const T* a, const T* b, T* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    StorePart(hn::Add(LoadPart(a + i, n - i), LoadPart(b + i, n - i)), y + i, n - i);
}
void AddAny(const void* a, const void* b, void* y, DType type, int64_t n) {
  if (type == DType::f32)
    Add(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(y), n);
  else
    Add(static_cast<const bf16*>(a), static_cast<const bf16*>(b), static_cast<bf16*>(y), n);
}

void Widen(const bf16* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) StorePart(LoadPart(src + i, n - i), dst + i, n - i);
}
void Narrow(const float* src, bf16* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) StorePart(LoadPart(src + i, n - i), dst + i, n - i);
}

// ---- norms

template <class T>
void RmsNorm(const RmsNormRows& p) {
  const D d;
  const T* w = static_cast<const T*>(p.weight);
  for (int64_t r = 0; r < p.rows; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.x_stride;
    if (p.delta) {
      T* sum = const_cast<T*>(x);  // only add_rmsnorm asks for it, with an x that it owns
      Add(x, static_cast<const T*>(p.delta) + r * p.delta_stride, sum, p.d);
    }
    V s0 = hn::Zero(d), s1 = hn::Zero(d);
    int64_t i = 0;
    for (; i + 2 * kLanes <= p.d; i += 2 * kLanes) {
      const V a = LoadF(d, x + i), b = LoadF(d, x + i + kLanes);
      s0 = hn::MulAdd(a, a, s0);
      s1 = hn::MulAdd(b, b, s1);
    }
    for (; i < p.d; i += kLanes) {
      const V a = LoadPart(x + i, p.d - i);
      s0 = hn::MulAdd(a, a, s0);
    }
    const float squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(p.d) + p.eps);
    if (p.rstd) p.rstd[r * p.rstd_stride] = rstd;
    const V scale = hn::Set(d, rstd);
    T* y = static_cast<T*>(p.y) + r * p.y_stride;
    for (i = 0; i < p.d; i += kLanes)
      StorePart(hn::Mul(hn::Mul(LoadPart(x + i, p.d - i), scale), LoadPart(w + i, p.d - i)), y + i, p.d - i);
  }
}
void RmsNormAny(const RmsNormRows& p) {
  p.type == DType::f32 ? RmsNorm<float>(p) : RmsNorm<bf16>(p);
}

// With g = dy * weight: dx = rstd * g - x * rstd^3 * mean(g * x); dweight += dy * x * rstd.
template <class T>
void RmsNormBackward(const RmsNormBackwardRows& p) {
  const D d;
  const T* w = static_cast<const T*>(p.weight);
  for (int64_t r = 0; r < p.rows; ++r) {
    const T* x = static_cast<const T*>(p.x) + r * p.x_stride;
    const T* dy = static_cast<const T*>(p.dy) + r * p.dy_stride;
    T* dx = static_cast<T*>(p.dx) + r * p.dx_stride;
    const float rstd = p.rstd[r * p.rstd_stride];
    const V scale = hn::Set(d, rstd);
    V dot = hn::Zero(d);
    for (int64_t i = 0; i < p.d; i += kLanes) {
      const int64_t left = p.d - i;
      const V gx = hn::Mul(LoadPart(dy + i, left), LoadPart(x + i, left));
      dot = hn::MulAdd(gx, LoadPart(w + i, left), dot);
      if (p.dweight) StorePart(hn::MulAdd(gx, scale, LoadPart(p.dweight + i, left)), p.dweight + i, left);
    }
    const float mean = hn::GetLane(hn::SumOfLanes(d, dot)) / static_cast<float>(p.d);
    const V pull = hn::Set(d, -mean * rstd * rstd * rstd);
    for (int64_t i = 0; i < p.d; i += kLanes) {
      const int64_t left = p.d - i;
      const V g = hn::Mul(hn::Mul(LoadPart(dy + i, left), LoadPart(w + i, left)), scale);
      V v = hn::MulAdd(LoadPart(x + i, left), pull, g);
      if (p.accumulate) v = hn::Add(LoadPart(dx + i, left), v);
      StorePart(v, dx + i, left);
    }
  }
}
void RmsNormBackwardAny(const RmsNormBackwardRows& p) {
  p.type == DType::f32 ? RmsNormBackward<float>(p) : RmsNormBackward<bf16>(p);
}

// ---- RoPE

template <class T>
void Rotate(T* x, int64_t heads, int64_t head_stride, int64_t half, const float* cos, const float* sin,
            bool inverse) {
  const D d;
  const V sign = hn::Set(d, inverse ? -1.0f : 1.0f);
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const V c = LoadPart(cos + i, left), s = hn::Mul(sign, LoadPart(sin + i, left));
    for (int64_t h = 0; h < heads; ++h) {
      T* a = x + h * head_stride + i;
      T* b = a + half;
      const V va = LoadPart(a, left), vb = LoadPart(b, left);
      StorePart(hn::NegMulAdd(vb, s, hn::Mul(va, c)), a, left);
      StorePart(hn::MulAdd(va, s, hn::Mul(vb, c)), b, left);
    }
  }
}
void RotateAny(void* x, DType type, int64_t heads, int64_t head_stride, int64_t half, const float* cos,
               const float* sin, bool inverse) {
  if (type == DType::f32)
    Rotate(static_cast<float*>(x), heads, head_stride, half, cos, sin, inverse);
  else
    Rotate(static_cast<bf16*>(x), heads, head_stride, half, cos, sin, inverse);
}

// ---- SwiGLU

// 1 / (1 + e^-x), from e^-|x| so that nothing overflows. NaN stays NaN. Where e^-|x| leaves Exp2's range it
// is taken 2^64 too large and scaled back, so that gate * sigmoid(gate) fades out through the subnormals.
HWY_INLINE V Sigmoid(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V t = hn::Mul(hn::Abs(x), hn::Set(d, -kLog2e));
  const auto deep = hn::Lt(t, hn::Set(d, -62.0f));
  const V raised = Exp2(d, hn::Add(t, hn::IfThenElseZero(deep, hn::Set(d, 64.0f))));
  const V e = hn::Mul(raised, hn::IfThenElse(deep, hn::Set(d, 0x1p-64f), one));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

void SigmoidRow(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) StorePart(Sigmoid(LoadPart(x + i, n - i)), y + i, n - i);
}

template <class T>
void Swiglu(const T* gate, const T* up, T* h, int64_t n, float factor) {
  const V by = hn::Set(D(), factor);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadPart(gate + i, n - i), u = LoadPart(up + i, n - i);
    StorePart(hn::Mul(hn::Mul(hn::Mul(g, Sigmoid(g)), u), by), h + i, n - i);
  }
}
void SwigluAny(const void* gate, const void* up, void* h, DType type, int64_t n, float factor) {
  if (type == DType::f32)
    Swiglu(static_cast<const float*>(gate), static_cast<const float*>(up), static_cast<float*>(h), n, factor);
  else
    Swiglu(static_cast<const bf16*>(gate), static_cast<const bf16*>(up), static_cast<bf16*>(h), n, factor);
}

// d silu(g) / dg = s + g s (1 - s)
template <class T>
void SwigluBackward(const T* gate, const T* up, const T* dh, T* dgate, T* dup, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const V g = LoadPart(gate + i, left), u = LoadPart(up + i, left), o = LoadPart(dh + i, left);
    const V s = Sigmoid(g);
    const V silu = hn::Mul(g, s);
    StorePart(hn::Mul(hn::Mul(o, u), hn::Add(s, hn::NegMulAdd(silu, s, silu))), dgate + i, left);
    StorePart(hn::Mul(o, silu), dup + i, left);
  }
}
// With h = factor * silu(gate) * up; returns the factor's gradient.
template <class T>
float ScaledSwigluBackward(const T* gate, const T* up, const T* dh, float factor, T* dgate, T* dup,
                           int64_t n) {
  const D d;
  const V by = hn::Set(d, factor);
  V dfactor = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const V g = LoadPart(gate + i, left), u = LoadPart(up + i, left), o = LoadPart(dh + i, left);
    const V s = Sigmoid(g);
    const V silu = hn::Mul(g, s), scaled = hn::Mul(o, by);
    dfactor = hn::MulAdd(hn::Mul(o, silu), u, dfactor);
    StorePart(hn::Mul(hn::Mul(scaled, u), hn::Add(s, hn::NegMulAdd(silu, s, silu))), dgate + i, left);
    StorePart(hn::Mul(scaled, silu), dup + i, left);
  }
  return hn::GetLane(hn::SumOfLanes(d, dfactor));
}
float ScaledSwigluBackwardAny(const void* gate, const void* up, const void* dh, float factor, void* dgate,
                              void* dup, DType type, int64_t n) {
  if (type == DType::f32)
    return ScaledSwigluBackward(static_cast<const float*>(gate), static_cast<const float*>(up),
                                static_cast<const float*>(dh), factor, static_cast<float*>(dgate),
                                static_cast<float*>(dup), n);
  return ScaledSwigluBackward(static_cast<const bf16*>(gate), static_cast<const bf16*>(up),
                              static_cast<const bf16*>(dh), factor, static_cast<bf16*>(dgate),
                              static_cast<bf16*>(dup), n);
}
void SwigluBackwardAny(const void* gate, const void* up, const void* dh, void* dgate, void* dup, DType type,
                       int64_t n) {
  if (type == DType::f32)
    SwigluBackward(static_cast<const float*>(gate), static_cast<const float*>(up),
                   static_cast<const float*>(dh), static_cast<float*>(dgate), static_cast<float*>(dup), n);
  else
    SwigluBackward(static_cast<const bf16*>(gate), static_cast<const bf16*>(up), static_cast<const bf16*>(dh),
                   static_cast<bf16*>(dgate), static_cast<bf16*>(dup), n);
}

// ---- cross-entropy

HWY_INLINE V ExpShifted(V x, V max) {
  const D d;
  return Exp2(d, hn::Mul(hn::Sub(x, max), hn::Set(d, kLog2e)));
}

// dlogits = exp(x - max) * factor
template <class T>
void SoftmaxRow(const float* x, int64_t n, float max, float factor, T* dlogits) {
  const D d;
  const V top = hn::Set(d, max), f = hn::Set(d, factor);
  for (int64_t i = 0; i < n; i += kLanes)
    StorePart(hn::Mul(ExpShifted(LoadPart(x + i, n - i), top), f), dlogits + i, n - i);
}

float CrossEntropyRow(const float* x, int64_t vocab, int64_t label, float scale, void* dlogits, DType type) {
  const D d;
  V top = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= vocab; i += kLanes) top = hn::Max(top, hn::LoadU(d, x + i));
  float max = hn::GetLane(hn::MaxOfLanes(d, top));
  for (; i < vocab; ++i) max = std::max(max, x[i]);
  top = hn::Set(d, max);
  // Runs of 4096 in f32, their sums in f64.
  constexpr int64_t kRun = 4096;
  double sum = 0;
  for (int64_t run = 0; run < vocab; run += kRun) {
    const int64_t end = std::min(vocab, run + kRun);
    V s0 = hn::Zero(d), s1 = hn::Zero(d);
    i = run;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      s0 = hn::Add(s0, ExpShifted(hn::LoadU(d, x + i), top));
      s1 = hn::Add(s1, ExpShifted(hn::LoadU(d, x + i + kLanes), top));
    }
    for (; i < end; i += kLanes) {
      float part[kLanes];
      for (int64_t k = 0; k < kLanes; ++k) part[k] = i + k < end ? x[i + k] : -HUGE_VALF;
      s0 = hn::Add(s0, ExpShifted(hn::LoadU(d, part), top));
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))));
  }
  const float picked = x[label];
  const float loss =
      static_cast<float>(std::log(sum) + static_cast<double>(max) - static_cast<double>(picked));
  if (!dlogits) return loss;
  const float p = static_cast<float>(std::exp(static_cast<double>(picked) - static_cast<double>(max)) / sum);
  const float at_label = scale * (p - 1.0f);
  const float factor = static_cast<float>(static_cast<double>(scale) / sum);
  if (type == DType::f32) {
    SoftmaxRow(x, vocab, max, factor, static_cast<float*>(dlogits));
    static_cast<float*>(dlogits)[label] = at_label;
  } else {
    SoftmaxRow(x, vocab, max, factor, static_cast<bf16*>(dlogits));
    static_cast<bf16*>(dlogits)[label] = bf16(at_label);
  }
  return loss;
}

// ---- optimiser

template <class T>
void AdamW(const AdamWStep& s, float* master, float* m, float* v, const float* grad, T* value, int64_t n) {
  const D d;
  const V scale = hn::Set(d, s.grad_scale), b1 = hn::Set(d, s.beta1), b2 = hn::Set(d, s.beta2);
  const V c1 = hn::Set(d, 1.0f - s.beta1), c2 = hn::Set(d, 1.0f - s.beta2);
  const V i1 = hn::Set(d, s.inv_bias1), i2 = hn::Set(d, s.inv_bias2), eps = hn::Set(d, s.eps);
  const V lr = hn::Set(d, s.lr), decay = hn::Set(d, s.weight_decay);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    const V g = hn::Mul(LoadPart(grad + i, left), scale);
    const V mi = hn::MulAdd(b1, LoadPart(m + i, left), hn::Mul(c1, g));
    const V vi = hn::MulAdd(b2, LoadPart(v + i, left), hn::Mul(hn::Mul(c2, g), g));
    StorePart(mi, m + i, left);
    StorePart(vi, v + i, left);
    const V w = LoadPart(master + i, left);
    const V update = hn::Div(hn::Mul(mi, i1), hn::Add(hn::Sqrt(hn::Mul(vi, i2)), eps));
    const V next = hn::NegMulAdd(lr, hn::MulAdd(decay, w, update), w);
    StorePart(next, master + i, left);
    if (value) StorePart(next, value + i, left);
  }
}
void AdamWAny(const AdamWStep& s, float* master, float* m, float* v, const float* grad, void* value,
              DType value_type, int64_t n) {
  if (value_type == DType::f32)
    AdamW(s, master, m, v, grad, static_cast<float*>(value), n);
  else
    AdamW(s, master, m, v, grad, static_cast<bf16*>(value), n);
}

template <class T>
double SumSquares(const T* x, int64_t n) {
#if HWY_TARGET == HWY_SCALAR
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(ToFloat(x[i])) * static_cast<double>(ToFloat(x[i]));
  return sum;
#else
  const hn::Half<D> dh;
  const hn::Rebind<double, hn::Half<D> > dd;
  auto s0 = hn::Zero(dd), s1 = hn::Zero(dd);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = LoadPart(x + i, n - i);
    const auto a = hn::PromoteTo(dd, hn::LowerHalf(dh, v)), b = hn::PromoteTo(dd, hn::UpperHalf(dh, v));
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  return hn::GetLane(hn::SumOfLanes(dd, hn::Add(s0, s1)));
#endif
}
double SumSquaresAny(const void* x, DType type, int64_t n) {
  return type == DType::f32 ? SumSquares(static_cast<const float*>(x), n)
                            : SumSquares(static_cast<const bf16*>(x), n);
}

}  // namespace HWY_NAMESPACE
}  // namespace hysparse::elem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hysparse::elem {

HWY_EXPORT(AddToF32Any);
HWY_EXPORT(AddAny);
HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);
HWY_EXPORT(RmsNormAny);
HWY_EXPORT(RmsNormBackwardAny);
HWY_EXPORT(RotateAny);
HWY_EXPORT(SwigluAny);
HWY_EXPORT(SwigluBackwardAny);
HWY_EXPORT(SigmoidRow);
HWY_EXPORT(ScaledSwigluBackwardAny);
HWY_EXPORT(CrossEntropyRow);
HWY_EXPORT(AdamWAny);
HWY_EXPORT(SumSquaresAny);

void add_to_f32(const void* x, DType type, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(AddToF32Any)(x, type, n, y);
}
void add(const void* a, const void* b, void* y, DType type, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddAny)(a, b, y, type, n);
}

namespace {
template <class From, class To>
void cast_each(const void* src, void* dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    static_cast<To*>(dst)[i] = static_cast<To>(static_cast<const From*>(src)[i]);
}
}  // namespace

void cast(const void* src, DType from, void* dst, DType to, int64_t n) {
  if (from == to) {
    std::memcpy(dst, src, static_cast<size_t>(n) * size_of(from));
  } else if (from == DType::bf16 && to == DType::f32) {
    HWY_DYNAMIC_DISPATCH(Widen)(static_cast<const bf16*>(src), static_cast<float*>(dst), n);
  } else if (from == DType::f32 && to == DType::bf16) {
    HWY_DYNAMIC_DISPATCH(Narrow)(static_cast<const float*>(src), static_cast<bf16*>(dst), n);
  } else if (from == DType::f32) {
    cast_each<float, double>(src, dst, n);
  } else if (to == DType::f32) {
    cast_each<double, float>(src, dst, n);
  } else if (from == DType::bf16) {
    for (int64_t i = 0; i < n; ++i)
      static_cast<double*>(dst)[i] =
          static_cast<double>(static_cast<float>(static_cast<const bf16*>(src)[i]));
  } else {
    for (int64_t i = 0; i < n; ++i)
      static_cast<bf16*>(dst)[i] = bf16(static_cast<float>(static_cast<const double*>(src)[i]));
  }
}

void rmsnorm(const RmsNormRows& p) {
  HWY_DYNAMIC_DISPATCH(RmsNormAny)(p);
}
void rmsnorm_backward(const RmsNormBackwardRows& p) {
  HWY_DYNAMIC_DISPATCH(RmsNormBackwardAny)(p);
}
void rope(void* x, DType type, int64_t heads, int64_t head_stride, int64_t half, const float* cos,
          const float* sin, bool inverse) {
  HWY_DYNAMIC_DISPATCH(RotateAny)(x, type, heads, head_stride, half, cos, sin, inverse);
}
void swiglu(const void* gate, const void* up, void* h, DType type, int64_t n, float factor) {
  HWY_DYNAMIC_DISPATCH(SwigluAny)(gate, up, h, type, n, factor);
}
void sigmoid(const float* x, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(SigmoidRow)(x, y, n);
}
float scaled_swiglu_backward(const void* gate, const void* up, const void* dh, float factor, void* dgate,
                             void* dup, DType type, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(ScaledSwigluBackwardAny)(gate, up, dh, factor, dgate, dup, type, n);
}
void swiglu_backward(const void* gate, const void* up, const void* dh, void* dgate, void* dup, DType type,
                     int64_t n) {
  HWY_DYNAMIC_DISPATCH(SwigluBackwardAny)(gate, up, dh, dgate, dup, type, n);
}
float cross_entropy(const float* logits, int64_t vocab, int64_t label, float scale, void* dlogits,
                    DType dlogits_type) {
  return HWY_DYNAMIC_DISPATCH(CrossEntropyRow)(logits, vocab, label, scale, dlogits, dlogits_type);
}
void adamw(const AdamWStep& s, float* master, float* m, float* v, const float* grad, void* value,
           DType value_type, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AdamWAny)(s, master, m, v, grad, value, value_type, n);
}
double sum_squares(const void* x, DType type, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumSquaresAny)(x, type, n);
}

}  // namespace hysparse::elem
#endif
