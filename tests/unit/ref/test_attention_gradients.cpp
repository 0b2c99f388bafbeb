// Attention of the reference: gradients against central differences, through the whole of a ragged packed
// batch.
#include "parity/kernels/attention_checks.h"
#include "unit/ref/gradient.h"

namespace hysparse::test {
namespace {

// dims small enough for every element to be moved; documents of 1 token, of one block, of several.
struct Problem {
  explicit Problem(bool absent_sink = false) {
    for (int64_t length : {5, 1, 9, 4}) batch.add_sequence(length);
    cu_kv = batch.cu_q;
    // Selections in blocks of 2: nothing, blocks out of reach, padding in between.
    for (int64_t row = 0; row < 19; ++row)
      for (int64_t g = 0; g < 2; ++g) {
        const int64_t last = batch.position[size_t(row)] / 2;
        const std::vector<double> e = row % 6 == 3 ? std::vector<double>{-1, -1, -1}
                                      : row % 2 == 0
                                          ? std::vector<double>{-1, double(last / 2), -1}
                                          : std::vector<double>{0, double(std::max<int64_t>(1, last)), 7};
        idx_values.insert(idx_values.end(), e.begin(), e.end());
      }
    idx = b.ints({19, 2, 3}, idx_values);
    if (absent_sink) store(sinks, 1, -kInf);
  }
  KvView kv() const {
    KvView view;
    view.k = k;
    view.v = v;
    view.cu_kv = cu_kv.data();
    return view;
  }
  RefBench b{11};
  RaggedBatch batch;
  std::vector<int64_t> cu_kv;
  std::vector<double> idx_values;
  TensorView q = b.random({19, 4, 3}), k = b.random({19, 2, 3}), v = b.random({19, 2, 5}),
             sinks = b.random({4}), idx, o = b.random({19, 4, 5}), lse = b.random({19, 4}),
             d_o = b.random({19, 4, 5}), dq = b.random({19, 4, 3}), dk = b.zeros({19, 2, 3}),
             dv = b.zeros({19, 2, 5}), dsinks = b.zeros({4});

  void expect_all(const std::function<void()>& forward, const std::function<void()>& backward,
                  bool with_sinks) {
    const auto loss = [&] {
      forward();
      return inner(o, d_o);
    };
    forward();
    backward();
    expect_gradient("q", q, dq, loss);
    expect_gradient("k", k, dk, loss);
    expect_gradient("v", v, dv, loss);
    if (with_sinks) expect_gradient("sinks", sinks, dsinks, loss);
  }
};

TEST(RefAttentionGradients, Full) {
  Problem p;
  p.expect_all(
      [&] {
        p.b.rt.ops.attention(p.b.rt, {p.batch, p.q, p.kv(), 0.8, p.o, p.lse});
      },
      [&] {
        p.b.rt.ops.attention_backward(p.b.rt,
                                      {p.batch, p.q, p.kv(), 0.8, p.o, p.lse, p.d_o, p.dq, p.dk, p.dv});
      },
      false);
}

TEST(RefAttentionGradients, Sparse) {
  for (const bool sinks : {true, false}) {
    Problem p;
    const TensorView sink = sinks ? p.sinks : TensorView{}, dsink = sinks ? p.dsinks : TensorView{};
    p.expect_all(
        [&] {
          p.b.rt.ops.sparse_attention(p.b.rt, {p.batch, p.q, p.kv(), {p.idx, 2}, 0.8, sink, p.o, p.lse});
        },
        [&] {
          p.b.rt.ops.sparse_attention_backward(
              p.b.rt,
              {p.batch, p.q, p.kv(), {p.idx, 2}, 0.8, sink, p.o, p.lse, p.d_o, p.dq, p.dk, p.dv, dsink});
        },
        sinks);
  }
}

TEST(RefAttentionGradients, Window) {
  for (const int64_t window : {1, 3, 100})
    for (const bool sinks : {true, false}) {
      if (window == 1 && !sinks) continue;  // o = v: dq is zero
      Problem p;
      const TensorView sink = sinks ? p.sinks : TensorView{}, dsink = sinks ? p.dsinks : TensorView{};
      p.expect_all(
          [&] {
            p.b.rt.ops.window_attention(p.b.rt, {p.batch, p.q, p.kv(), window, 0.8, sink, p.o, p.lse});
          },
          [&] {
            p.b.rt.ops.window_attention_backward(p.b.rt, {p.batch, p.q, p.kv(), window, 0.8, sink, p.o, p.lse,
                                                          p.d_o, p.dq, p.dk, p.dv, dsink});
          },
          sinks);
    }
}

// A sink of -inf is no sink: same result as without one for that head, gradient exactly zero.
TEST(RefAttentionGradients, AbsentSink) {
  Problem p(true), none;
  const auto forward = [](Problem& x, const TensorView& sinks) {
    x.b.rt.ops.sparse_attention(x.b.rt, {x.batch, x.q, x.kv(), {x.idx, 2}, 0.8, sinks, x.o, x.lse});
    x.b.rt.ops.sparse_attention_backward(x.b.rt, {x.batch,
                                                  x.q,
                                                  x.kv(),
                                                  {x.idx, 2},
                                                  0.8,
                                                  sinks,
                                                  x.o,
                                                  x.lse,
                                                  x.d_o,
                                                  x.dq,
                                                  x.dk,
                                                  x.dv,
                                                  sinks ? x.dsinks : TensorView{}});
  };
  forward(p, p.sinks);
  forward(none, {});
  EXPECT_EQ(values(p.dsinks)[1], 0);
  EXPECT_NE(values(p.dsinks)[0], 0);
  for (int64_t row = 0; row < 19; ++row) {
    EXPECT_EQ(values(p.lse)[size_t(row * 4 + 1)], values(none.lse)[size_t(row * 4 + 1)]);
    for (int64_t c = 0; c < 5; ++c)
      EXPECT_EQ(values(p.o)[size_t((row * 4 + 1) * 5 + c)], values(none.o)[size_t((row * 4 + 1) * 5 + c)]);
  }
  for (double x : values(p.dk)) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace hysparse::test
