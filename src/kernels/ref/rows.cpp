// Operations that move or rotate rows: embedding, RoPE, add, cast, gather.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/quantise.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse {

const Ops& ref_ops() {
  static const ref::RefOps ops;
  return ops;
}

namespace ref {
namespace {

double load(const TensorView& v, int64_t i) {  // element offset i
  if (v.dtype == DType::f64) return v.as<double>()[i];
  if (v.dtype == DType::f32) return v.as<float>()[i];
  return static_cast<float>(v.as<bf16>()[i]);
}
void store(const TensorView& v, int64_t i, double x) {
  if (v.dtype == DType::f64) v.as<double>()[i] = x;
  if (v.dtype == DType::f32) v.as<float>()[i] = static_cast<float>(x);
  if (v.dtype == DType::bf16) v.as<bf16>()[i] = bf16(static_cast<float>(x));
}

// Calls fn with the row index of every row (all dimensions but the last), in row-major order.
template <class F>
void for_rows(const TensorView& v, const F& fn) {
  std::array<int64_t, TensorView::kMaxRank> i{};
  int64_t count = 1;
  for (int d = 0; d + 1 < v.rank; ++d) count *= v.dim(d);
  for (int64_t r = 0; r < count; ++r) {
    int64_t rest = r;
    for (int d = v.rank - 2; d >= 0; --d) {
      i[size_t(d)] = rest % v.dim(d);
      rest /= v.dim(d);
    }
    fn(i);
  }
}
int64_t offset(const TensorView& v, const std::array<int64_t, TensorView::kMaxRank>& i) {
  int64_t o = 0;
  for (int d = 0; d + 1 < v.rank; ++d) o += i[size_t(d)] * v.stride[size_t(d)];
  return o;
}

void check_token(int32_t token, int64_t vocab, int64_t row) {
  HYSPARSE_CHECK(token >= 0 && token < vocab, "embedding: token {} of row {} is outside the vocabulary of {}",
                 token, row, vocab);
}

}  // namespace

void RefOps::embedding(Runtime&, const EmbeddingForward& a) const {
  require_f64(check_args(a), "embedding");
  const int32_t* tokens = a.tokens.as<int32_t>();
  for (int64_t i = 0; i < a.y.dim(0); ++i) {
    check_token(tokens[i], a.weight.value.dim(0), i);
    widen_row(a.weight, tokens[i], at(a.y, i));
  }
}

void RefOps::embedding_backward(Runtime&, const EmbeddingBackward& a) const {
  require_f64(check_args(a), "embedding_backward");
  const int32_t* tokens = a.tokens.as<int32_t>();
  for (int64_t i = 0; i < a.dy.dim(0); ++i) {
    check_token(tokens[i], a.weight.grad.dim(0), i);
    axpy(1, at(a.dy, i), at(a.weight.grad, tokens[i]), a.dy.dim(1));
  }
}

// (x_i, x_{i+half}) <- (x_i cos - x_{i+half} sin, x_{i+half} cos + x_i sin); the angle's sign flips for
// inverse.
void RefOps::rope(Runtime&, const Rope& a) const {
  require_f64(check_args(a), "rope");
  const int64_t half = a.cos.dim(1);
  for (int64_t row = 0; row < a.x.dim(0); ++row) {
    const double* cos = at(a.cos, a.position[row]);
    const double* sin = at(a.sin, a.position[row]);
    for (int64_t head = 0; head < a.x.dim(1); ++head) {
      double* x = at(a.x, row, head);
      for (int64_t i = 0; i < half; ++i) {
        const double c = cos[i], s = a.inverse ? -sin[i] : sin[i];
        const double first = x[i], second = x[i + half];
        x[i] = first * c - second * s;
        x[i + half] = second * c + first * s;
      }
    }
  }
}

void RefOps::add(Runtime&, const Add& a) const {
  require_f64(check_args(a), "add");
  for_rows(a.y, [&](const auto& i) {
    const double* x = a.a.as<double>() + offset(a.a, i);
    const double* z = a.b.as<double>() + offset(a.b, i);
    double* y = a.y.as<double>() + offset(a.y, i);
    for (int64_t c = 0; c < a.y.dim(a.y.rank - 1); ++c) y[c] = x[c] + z[c];
  });
}

void RefOps::cast(Runtime&, const Cast& a) const {
  check_args(a);
  for_rows(a.dst, [&](const auto& i) {
    const int64_t src = offset(a.src, i), dst = offset(a.dst, i);
    for (int64_t c = 0; c < a.dst.dim(a.dst.rank - 1); ++c) store(a.dst, dst + c, load(a.src, src + c));
  });
}

void RefOps::gather_rows(Runtime&, const GatherRows& a) const {
  require_f64(check_args(a), "gather_rows");
  for (int64_t i = 0; i < a.dst.dim(0); ++i) std::copy_n(at(a.src, a.rows[i]), a.dst.dim(1), at(a.dst, i));
}

namespace {

// The f8 nearest to x; of two as near, the even one.
f8 nearest_f8(double x) {
  f8 best, code;
  for (int bits = 0; bits < 0x7f; ++bits) {
    code.bits = static_cast<uint8_t>(bits);
    const double now = std::fabs(static_cast<float>(code) - std::fabs(x)),
                 before = std::fabs(static_cast<float>(best) - std::fabs(x));
    if (now < before || (now == before && bits % 2 == 0)) best = code;
  }
  if (std::signbit(x)) best.bits |= 0x80;
  return best;
}

void quantise_row(const double* x, int64_t n, const TensorView& codes, int64_t at, bf16& scale) {
  double largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite = finite && std::isfinite(static_cast<float>(x[i]));
  }
  double power = 0x1p-126;
  while (finite && power * (codes.dtype == DType::i8 ? 127 : 448) < largest) power *= 2;
  const bool zero = !finite || 0x1p-127 * (codes.dtype == DType::i8 ? 127 : 448) >= largest;
  scale = !finite ? bf16(NAN) : zero ? bf16() : bf16(static_cast<float>(power));
  for (int64_t i = 0; i < n; ++i) {
    const double code = zero ? 0 : x[i] / static_cast<float>(scale);
    if (codes.dtype == DType::i8)
      codes.as<int8_t>()[at + i] = static_cast<int8_t>(std::nearbyint(code));
    else
      codes.as<f8>()[at + i] = nearest_f8(code);
  }
}

}  // namespace

void RefOps::quantise_kv(Runtime&, const QuantiseKv& a) const {
  require_f64(check_args(a), "quantise_kv");
  const int64_t heads = a.k.dim(1), d = a.k.dim(2), dv = a.v.dim(2);
  for (int64_t i = 0; i < a.k.dim(0); ++i)
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t row = a.rows[i] * heads + head;
      quantise_row(at(a.k, i, head), d, a.k_codes, row * d, a.scales.as<bf16>()[row * 2]);
      quantise_row(at(a.v, i, head), dv, a.v_codes, row * dv, a.scales.as<bf16>()[row * 2 + 1]);
    }
}

}  // namespace ref
}  // namespace hysparse
