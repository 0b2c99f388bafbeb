// RMSNorm, SwiGLU and the gated sum against the reference.
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

class Norms : public KernelTest {};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

const std::vector<std::vector<int64_t>> kNormShapes = {
    {1, 1}, {3, 8}, {5, 17}, {9, 64}, {70, 96}, {2, 1000}, {4, 3, 32}, {2, 5, 72}, {3, 1, 128}};

TEST_P(Norms, RmsNorm) {
  for (const auto& dims : kNormShapes)
    for (const bool gaps : {false, true})
      for (const bool accumulate : {false, true}) {
        const int64_t h = dims.back();
        const std::vector<int64_t> outer(dims.begin(), dims.end() - 1);
        SCOPED_TRACE(::testing::Message() << "h " << h << " gaps " << gaps << " accumulate " << accumulate);
        Bench b(GetParam(), 31, gaps);
        const Pair& x = b.in(dims);
        const Pair& w = b.in({h});
        const Pair& y = b.out(dims);
        const Pair& rstd = b.out_acc(outer);
        const Pair& in_place = b.in_place(b.t(), dims);
        const Pair& dy = b.in(dims);
        const Pair& dx = accumulate ? b.in_place(b.t(), dims) : b.out(dims);
        const Pair& dy_dx = b.in_place(b.t(), dims);  // dx may be dy itself
        const Pair& dw = b.accumulator({h});
        const Values dw0 = dw.ref();
        const Values dx0 = accumulate ? dx.ref() : Values(x.ref().size(), 0.0);
        b.run([&](int i, Runtime& rt) {
          Weight weight{.name = "norm", .value = w[i], .grad = dw[i]}, frozen{.name = "norm", .value = w[i]};
          rt.ops.rmsnorm(rt, {x[i], weight, 1e-6, y[i], rstd[i]});
          rt.ops.rmsnorm(rt, {in_place[i], weight, 1e-6, in_place[i], {}});
          rt.ops.rmsnorm_backward(rt, {x[i], weight, rstd[i], dy[i], dx[i], accumulate});
          rt.ops.rmsnorm_backward(rt, {x[i], frozen, rstd[i], dy_dx[i], dy_dx[i], false});
        });
        const double eps = epsilon(b.acc());
        EXPECT_TRUE(b.close("y", y, y.ref(), 8, eps));
        EXPECT_TRUE(b.close("rstd", rstd, rstd.ref()));
        EXPECT_TRUE(b.close("y in place", in_place, in_place.ref(), 8, eps));
        const Values xs = x.ref(), g = dy.ref(), weights = w.ref(), r = rstd.ref();
        Values dx_bound = absolutes(dx0), dw_bound = absolutes(dw0);
        for (size_t row = 0; row < r.size(); ++row) {
          double mean = 0;
          for (int64_t i = 0; i < h; ++i) {
            const size_t at = row * size_t(h) + size_t(i);
            mean += std::fabs(g[at] * weights[size_t(i)] * xs[at]) / static_cast<double>(h);
            dw_bound[size_t(i)] += std::fabs(g[at] * xs[at] * r[row]);
          }
          for (int64_t i = 0; i < h; ++i) {
            const size_t at = row * size_t(h) + size_t(i);
            dx_bound[at] +=
                r[row] * (std::fabs(g[at] * weights[size_t(i)]) + std::fabs(xs[at]) * r[row] * r[row] * mean);
          }
        }
        EXPECT_TRUE(b.close("dx", dx, dx_bound, 16, eps));
        EXPECT_TRUE(b.close("dw", dw, dw_bound, 16));
        if (!accumulate) {
          Values in_place_bound = dx_bound;  // another dy of the same size: bounded by its own largest
          double largest = 0;
          for (double e : dx_bound) largest = std::max(largest, e);
          for (double& e : in_place_bound) e = 8 * largest;
          EXPECT_TRUE(b.close("dx over dy", dy_dx, in_place_bound, 16, eps));
        }
      }
}

TEST_P(Norms, AddRmsNorm) {
  for (const int64_t h : {1, 17, 64, 300})
    for (const bool gaps : {false, true}) {
      Bench b(GetParam(), 32, gaps);
      const Pair& x = b.in_place(b.t(), {11, h});
      const Pair& delta = b.in({11, h});
      const Pair& w = b.in({h});
      const Pair& y = b.out({11, h});
      const Pair& rstd = b.out_acc({11});
      const Values x0 = x.ref();
      b.run([&](int i, Runtime& rt) {
        const Weight weight{.name = "norm", .value = w[i]};
        rt.ops.add_rmsnorm(rt, {x[i], delta[i], weight, 1e-6, y[i], rstd[i]});
      });
      EXPECT_TRUE(b.close("x", x, plus_abs(absolutes(x0), delta.ref()), 1, epsilon(b.acc())));
      // The norm is of x as stored: bounds of one more rounding to T.
      double largest = 0;
      for (double e : y.ref()) largest = std::max(largest, std::fabs(e));
      EXPECT_TRUE(b.close("y", y, Values(y.ref().size(), largest), b.t() == DType::bf16 ? 1 : 8));
      EXPECT_TRUE(b.close("rstd", rstd, rstd.ref(), b.t() == DType::bf16 ? 1 : 8, epsilon(b.t())));
      // In bf16: exactly the norm of the stored sum.
      Bench chain(GetParam(), 33);
      const Pair& stored = chain.in_values(b.t(), {11, h}, x.got());
      const Pair& weights = chain.in_values(b.t(), {h}, w.ref());
      const Pair& again = chain.out({11, h});
      chain.run([&](int i, Runtime& rt) {
        const Weight weight{.name = "norm", .value = weights[i]};
        rt.ops.rmsnorm(rt, {stored[i], weight, 1e-6, again[i], {}});
      });
      EXPECT_TRUE(within("chain", y[1], again[0], scaled(absolutes(again.ref()), 8 * epsilon(b.acc()))));
    }
}

TEST_P(Norms, Swiglu) {
  for (const int64_t f : {1, 7, 16, 33, 96, 257})
    for (const bool gaps : {false, true})
      for (const double sigma : {1.0, 30.0}) {
        SCOPED_TRACE(::testing::Message() << "f " << f << " sigma " << sigma);
        Bench b(GetParam(), 34, gaps);
        const std::vector<int64_t> dims = {9, f};
        const Pair& gate = b.in(dims, sigma);
        const Pair& up = b.in(dims);
        const Pair& h = b.out(dims);
        const Pair& gate_h = b.in_place(b.t(), dims, sigma);  // h over gate, then over up
        const Pair& up_h = b.in_place(b.t(), dims);
        const Pair& dh = b.in(dims);
        const Pair& dgate = b.out(dims);
        const Pair& dup = b.out(dims);
        const Values gate_h0 = gate_h.ref(), up_h0 = up_h.ref();
        b.run([&](int i, Runtime& rt) {
          rt.ops.swiglu(rt, {gate[i], up[i], h[i]});
          rt.ops.swiglu(rt, {gate_h[i], up[i], gate_h[i]});
          rt.ops.swiglu(rt, {gate[i], up_h[i], up_h[i]});
          rt.ops.swiglu_backward(rt, {gate[i], up[i], dh[i], dgate[i], dup[i]});
        });
        const auto h_bound = [](const Values& g, const Values& u) {  // exp loses |g| ulps
          Values y(g.size());
          for (size_t i = 0; i < g.size(); ++i) y[i] = g[i] * sigmoid(g[i]) * u[i] * (1 + std::fabs(g[i]));
          return y;
        };
        const double eps = epsilon(b.acc());
        EXPECT_TRUE(b.close("h", h, h_bound(gate.ref(), up.ref()), 8, eps));
        EXPECT_TRUE(b.close("h over gate", gate_h, h_bound(gate_h0, up.ref()), 8, eps));
        EXPECT_TRUE(b.close("h over up", up_h, h_bound(gate.ref(), up_h0), 8, eps));
        Values dgate_bound, dup_bound;
        const Values gs = gate.ref(), us = up.ref(), ds = dh.ref();
        for (size_t i = 0; i < ds.size(); ++i) {
          const double g = gs[i], s = sigmoid(g), e = 1 + std::fabs(g);
          dgate_bound.push_back(std::fabs(ds[i] * us[i] * s * (1 + std::fabs(g) * (1 - s)) * e) +
                                std::fabs(ds[i] * us[i] * g * s));
          dup_bound.push_back(ds[i] * g * s * e);
        }
        EXPECT_TRUE(b.close("dgate", dgate, dgate_bound, 8, eps));
        EXPECT_TRUE(b.close("dup", dup, dup_bound, 8, eps));
      }
}

TEST_P(Norms, SwigluBackwardInPlace) {
  Bench b(GetParam(), 35);
  const std::vector<int64_t> dims = {6, 70};
  const Pair& gate = b.in_place(b.t(), dims);
  const Pair& up = b.in_place(b.t(), dims);
  const Pair& dh = b.in(dims);
  const Pair& dgate = b.out(dims);
  const Pair& dup = b.out(dims);
  b.run([&](int i, Runtime& rt) {
    rt.ops.swiglu_backward(rt, {gate[i], up[i], dh[i], dgate[i], dup[i]});
    rt.ops.swiglu_backward(rt, {gate[i], up[i], dh[i], gate[i], up[i]});
  });
  EXPECT_EQ(gate.got(), dgate.got());
  EXPECT_EQ(up.got(), dup.got());
}

TEST_P(Norms, SwigluExtremes) {
  Bench b(GetParam(), 36);
  const Values extremes = {1e4, -1e4, 100, -100, 88, -88, 0, -0.0};
  const Pair& gate = b.in_values(b.t(), {1, 8}, extremes);
  const Pair& up = b.in_values(b.t(), {1, 8}, Values(8, 1.0));
  const Pair& h = b.out({1, 8});
  const Pair& dgate = b.out({1, 8});
  const Pair& dup = b.out({1, 8});
  b.run([&](int i, Runtime& rt) {
    rt.ops.swiglu(rt, {gate[i], up[i], h[i]});
    rt.ops.swiglu_backward(rt, {gate[i], up[i], up[i], dgate[i], dup[i]});
  });
  const Values tiny(8, 1e-25);
  for (const Pair* p : {&h, &dgate, &dup})
    EXPECT_TRUE(within("extremes", (*p)[1], (*p)[0], plus_abs(tiny, scaled(p->ref(), 8 * epsilon(b.acc())))));
}

TEST_P(Norms, GatedSum) {
  struct Shape {
    int64_t n, heads, dv;
  };
  for (const Shape s :
       {Shape{1, 1, 8}, {5, 4, 32}, {3, 7, 72}, {2, 3, 128}, {17, 2, 16}, {2, 2, 1}, {3, 2, 13}})
    for (const bool channel : {false, true})
      for (const bool two : {false, true})
        for (const bool gaps : {false, true}) {
          SCOPED_TRACE(::testing::Message() << s.n << " x " << s.heads << " x " << s.dv << " channel "
                                            << channel << " two " << two);
          Bench b(GetParam(), 37, gaps);
          const std::vector<int64_t> dims = {s.n, s.heads, s.dv};
          const std::vector<int64_t> gate_dims = {s.n, channel ? s.heads * s.dv : s.heads};
          const Pair& a = b.in(dims);
          const Pair& z = b.in(dims);
          const Pair& ga = b.in_acc(gate_dims, 3);
          const Pair& gz = b.in_acc(gate_dims, 3);
          const Pair& out = b.out(dims);
          const Pair& over_a = b.in_place(b.t(), dims);
          const Pair& d_out = b.in(dims);
          const Pair& da = b.out(dims);
          const Pair& dz = b.out(dims);
          const Pair& dga = b.out_acc(gate_dims);
          const Pair& dgz = b.out_acc(gate_dims);
          const Pair& in_place = b.in_place(b.t(), dims);  // da over d_out, where there is no b
          const Values over_a0 = over_a.ref(), in_place0 = in_place.ref();
          b.run([&](int i, Runtime& rt) {
            const TensorView zb = two ? z[i] : TensorView{}, gb = two ? gz[i] : TensorView{};
            rt.ops.gated_sum(rt, {a[i], ga[i], zb, gb, out[i]});
            rt.ops.gated_sum(rt, {over_a[i], ga[i], zb, gb, over_a[i]});
            if (!two)
              rt.ops.gated_sum_backward(rt, {a[i], ga[i], {}, {}, in_place[i], in_place[i], {}, dga[i], {}});
            rt.ops.gated_sum_backward(rt, {a[i], ga[i], zb, gb, d_out[i], da[i], two ? dz[i] : TensorView{},
                                           dga[i], two ? dgz[i] : TensorView{}});
          });
          const Values ga_ = ga.ref(), gz_ = gz.ref(), z_ = z.ref(), d_ = d_out.ref();
          const auto gate = [&](const Values& g, size_t at) { return g[channel ? at : at / size_t(s.dv)]; };
          const auto forward_bound = [&](const Values& x) {
            Values y(x.size());
            for (size_t i = 0; i < x.size(); ++i)
              y[i] = std::fabs(sigmoid(gate(ga_, i)) * x[i]) * (1 + std::fabs(gate(ga_, i))) +
                     (two ? std::fabs(sigmoid(gate(gz_, i)) * z_[i]) * (1 + std::fabs(gate(gz_, i))) : 0.0);
            return y;
          };
          const double eps = epsilon(b.acc());
          EXPECT_TRUE(b.close("out", out, forward_bound(a.ref()), 8, eps));
          EXPECT_TRUE(b.close("out over a", over_a, forward_bound(over_a0), 8, eps));
          const auto check_branch = [&](const char* name, const Pair& x, const Pair& g, const Pair& dx,
                                        const Pair& dg) {
            const Values x_ = x.ref(), g_ = g.ref();
            Values dx_bound(x_.size()), dg_bound(dg.ref().size(), 0.0);
            for (size_t i = 0; i < dx_bound.size(); ++i) {
              const double e = 1 + std::fabs(gate(g_, i)), sg = sigmoid(gate(g_, i));
              dx_bound[i] = sg * d_[i] * e;
              dg_bound[channel ? i : i / size_t(s.dv)] += std::fabs(sg * d_[i] * x_[i]) * e;
            }
            EXPECT_TRUE(b.close(std::string("d") + name, dx, dx_bound, 8, eps));
            EXPECT_TRUE(b.close(std::string("dgate_") + name, dg, dg_bound));
          };
          check_branch("a", a, ga, da, dga);
          if (two)
            check_branch("b", z, gz, dz, dgz);
          else
            EXPECT_TRUE(within("da over d_out", in_place[1], in_place[0],
                               scaled(absolutes(in_place0), 64 * epsilon(b.acc()))));
        }
}

HYSPARSE_KERNEL_SUITE(Norms);

}  // namespace
}  // namespace hysparse::test
