// RMSNorm, linear, SwiGLU and the gated sum, forward and backward.
#include "kernels/checks.h"
#include "kernels/quantise.h"
#include "kernels/ref/loops.h"
#include "kernels/ref/ref_ops.h"

namespace hysparse::ref {
namespace {

// A [n, h] or [n, heads, d] tensor as rows of its last dimension.
struct Rows {
  explicit Rows(const TensorView& view) : v(view) {}
  TensorView v;
  int64_t count() const { return v.rank == 3 ? v.dim(0) * v.dim(1) : v.dim(0); }
  int64_t width() const { return v.dim(v.rank - 1); }
  double* operator()(int64_t r) const { return v.rank == 3 ? at(v, r / v.dim(1), r % v.dim(1)) : at(v, r); }
};
// rstd [n] or [n, heads], addressed as the rows that it belongs to.
double* rstd_of(const TensorView& rstd, int64_t r) {
  return rstd.rank == 2 ? at(rstd, r / rstd.dim(1)) + r % rstd.dim(1) : at(rstd, r);
}

}  // namespace

// y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps)
void RefOps::rmsnorm(Runtime&, const RmsNormForward& a) const {
  require_f64(check_args(a), "rmsnorm");
  const Rows x(a.x), y(a.y);
  const double* w = a.weight.value.as<double>();
  const int64_t h = x.width();
  for (int64_t r = 0; r < x.count(); ++r) {
    const double rstd = 1 / std::sqrt(dot(x(r), x(r), h) / static_cast<double>(h) + a.eps);
    for (int64_t i = 0; i < h; ++i) y(r)[i] = x(r)[i] * rstd * w[i];
    if (a.rstd) *rstd_of(a.rstd, r) = rstd;
  }
}

// dw += dy x rstd;  dx = rstd (dy w - x rstd^2 mean(dy w x))
void RefOps::rmsnorm_backward(Runtime&, const RmsNormBackward& a) const {
  require_f64(check_args(a), "rmsnorm_backward");
  const Rows x(a.x), dy(a.dy), dx(a.dx);
  const double* w = a.weight.value.as<double>();
  double* dw = a.weight.grad ? a.weight.grad.as<double>() : nullptr;
  const int64_t h = x.width();
  for (int64_t r = 0; r < x.count(); ++r) {
    const double rstd = *rstd_of(a.rstd, r);
    double mean = 0;
    for (int64_t i = 0; i < h; ++i) mean += dy(r)[i] * w[i] * x(r)[i];
    mean /= static_cast<double>(h);
    for (int64_t i = 0; i < h; ++i) {
      const double g = dy(r)[i];
      if (dw) dw[i] += g * x(r)[i] * rstd;
      const double d = rstd * (g * w[i] - x(r)[i] * rstd * rstd * mean);
      dx(r)[i] = a.accumulate ? dx(r)[i] + d : d;
    }
  }
}

// y[t, o] = sum_i x[t, i] w[o, i] (+ bias[o]) (+ y[t, o])
void RefOps::linear(Runtime& rt, const LinearForward& a) const {
  require_f64(check_args(a), "linear");
  const int64_t n = a.x.dim(0), in = a.x.dim(1);
  rt.pool.parallel_for(a.weight.value.dim(0), [&](int64_t o, int) {
    std::vector<double> w(static_cast<size_t>(in));
    widen_row(a.weight, o, w.data());
    for (int64_t t = 0; t < n; ++t) {
      double sum = dot(at(a.x, t), w.data(), in);
      if (a.bias) sum += a.bias->value.as<double>()[o];
      double& y = at(a.y, t)[o];
      y = a.accumulate ? y + sum : sum;
    }
  });
}

// dw[o, i] += sum_t dy[t, o] x[t, i];  db[o] += sum_t dy[t, o];  dx[t, i] = sum_o dy[t, o] w[o, i]
void RefOps::linear_backward(Runtime& rt, const LinearBackward& a) const {
  require_f64(check_args(a), "linear_backward");
  const TensorView& w = a.weight.value;
  const int64_t n = a.x.dim(0), in = w.dim(1), out = w.dim(0);
  if (a.dx)
    rt.pool.parallel_for(n, [&](int64_t t, int) {
      std::vector<double> dx(static_cast<size_t>(in), 0.0);
      for (int64_t o = 0; o < out; ++o) axpy(at(a.dy, t)[o], at(w, o), dx.data(), in);
      for (int64_t i = 0; i < in; ++i)
        at(a.dx, t)[i] = a.accumulate ? at(a.dx, t)[i] + dx[size_t(i)] : dx[size_t(i)];
    });
  const bool want_bias = a.bias && a.bias->grad;
  if (!a.weight.grad && !want_bias) return;
  rt.pool.parallel_for(out, [&](int64_t o, int) {
    for (int64_t t = 0; t < n; ++t) {
      const double g = at(a.dy, t)[o];
      if (a.weight.grad) axpy(g, at(a.x, t), at(a.weight.grad, o), in);
      if (want_bias) a.bias->grad.as<double>()[o] += g;
    }
  });
}

// h = silu(gate) up, silu(g) = g sigmoid(g)
void RefOps::swiglu(Runtime&, const SwigluForward& a) const {
  require_f64(check_args(a), "swiglu");
  for (int64_t t = 0; t < a.h.dim(0); ++t)
    for (int64_t i = 0; i < a.h.dim(1); ++i) {
      const double g = at(a.gate, t)[i];
      at(a.h, t)[i] = g * sigmoid(g) * at(a.up, t)[i];
    }
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g)
void RefOps::swiglu_backward(Runtime&, const SwigluBackward& a) const {
  require_f64(check_args(a), "swiglu_backward");
  for (int64_t t = 0; t < a.dh.dim(0); ++t)
    for (int64_t i = 0; i < a.dh.dim(1); ++i) {
      const double g = at(a.gate, t)[i], up = at(a.up, t)[i], dh = at(a.dh, t)[i], s = sigmoid(g);
      at(a.dgate, t)[i] = dh * up * s * (1 + g * (1 - s));
      at(a.dup, t)[i] = dh * g * s;
    }
}

// out = sigmoid(gate_a) a (+ sigmoid(gate_b) b), a gate a head or a channel (spec section 4)
void RefOps::gated_sum(Runtime&, const GatedSumForward& a) const {
  require_f64(check_args(a), "gated_sum");
  const int64_t heads = a.a.dim(1), dv = a.a.dim(2);
  const auto gate = [&](const TensorView& g, int64_t t, int64_t h, int64_t c) {
    return sigmoid(at(g, t)[g.dim(1) == heads ? h : h * dv + c]);
  };
  for (int64_t t = 0; t < a.a.dim(0); ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t c = 0; c < dv; ++c) {
        double sum = gate(a.gate_a, t, h, c) * at(a.a, t, h)[c];
        if (a.b) sum += gate(a.gate_b, t, h, c) * at(a.b, t, h)[c];
        at(a.out, t, h)[c] = sum;
      }
}

// da = s d_out, dgate = sum over what the gate covers of d_out a s (1 - s), s = sigmoid(gate)
void RefOps::gated_sum_backward(Runtime&, const GatedSumBackward& a) const {
  require_f64(check_args(a), "gated_sum_backward");
  const int64_t heads = a.a.dim(1), dv = a.a.dim(2);
  const auto branch = [&](int64_t t, int64_t h, const TensorView& x, const TensorView& gate,
                          const TensorView& dx, const TensorView& dgate) {
    const bool per_head = gate.dim(1) == heads;
    double sum = 0;
    for (int64_t c = 0; c < dv; ++c) {
      const double s = sigmoid(at(gate, t)[per_head ? h : h * dv + c]);
      const double g = at(a.d_out, t, h)[c], dg = g * at(x, t, h)[c] * s * (1 - s);
      at(dx, t, h)[c] = s * g;
      sum += dg;
      if (!per_head) at(dgate, t)[h * dv + c] = dg;
    }
    if (per_head) at(dgate, t)[h] = sum;
  };
  for (int64_t t = 0; t < a.a.dim(0); ++t)
    for (int64_t h = 0; h < heads; ++h) {
      if (a.b) branch(t, h, a.b, a.gate_b, a.db, a.dgate_b);  // before da, which may be d_out
      branch(t, h, a.a, a.gate_a, a.da, a.dgate_a);
    }
}

}  // namespace hysparse::ref
