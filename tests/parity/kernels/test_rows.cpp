// Embedding, RoPE, add, cast and gather against the reference.
#include <numeric>

#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

class Rows : public KernelTest {};

const std::vector<int64_t> kWidths = {1, 2, 7, 16, 33, 64, 129, 300};

std::vector<double> token_ids(Rng& rng, int64_t n, int64_t vocab) {
  std::vector<double> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<double>(rng.below(uint64_t(vocab))));
  return ids;
}

TEST_P(Rows, Embedding) {
  for (const int64_t hidden : kWidths)
    for (const bool gaps : {false, true}) {
      const int64_t n = 37, vocab = 11;  // tokens repeat
      Bench b(GetParam(), 21, gaps);
      const Pair& tokens = b.in_values(DType::i32, {n}, token_ids(b.rng(), n, vocab));
      const Pair& table = b.in({vocab, hidden});
      const Pair& y = b.out({n, hidden});
      const Pair& dy = b.in({n, hidden});
      const Pair& grad = b.accumulator({vocab, hidden});
      b.run([&](int i, Runtime& rt) {
        Weight weight{.name = "embed", .value = table[i], .grad = grad[i]};
        rt.ops.embedding(rt, {tokens[i], weight, y[i]});
        rt.ops.embedding_backward(rt, {tokens[i], dy[i], weight});
      });
      EXPECT_EQ(y.got(), y.ref());
      Values bound(size_t(vocab * hidden), 0.0);
      const Values id = tokens.ref(), g = dy.ref();
      for (int64_t t = 0; t < n; ++t)
        for (int64_t c = 0; c < hidden; ++c)
          bound[size_t(int64_t(id[size_t(t)]) * hidden + c)] += std::fabs(g[size_t(t * hidden + c)]);
      for (double& e : bound) e += 4;  // the dirty start
      EXPECT_TRUE(b.close("grad", grad, bound, 4));
    }
}

TEST_P(Rows, EmbeddingRefusesForeignTokens) {
  for (const double bad : {-1.0, 11.0}) {
    Bench b(GetParam(), 22);
    const Pair& tokens = b.in_values(DType::i32, {3}, {1, bad, 2});
    const Pair& table = b.in({11, 8});
    const Pair& y = b.out({3, 8});
    ThreadPool pool(1);
    Memory& memory = GetParam().ops->memory();
    Arena scratch(memory);
    Runtime rt{pool, scratch, *GetParam().ops, memory};
    const Weight weight{.name = "embed", .value = table[1]};
    if (GetParam().on_host()) {
      EXPECT_THROW(rt.ops.embedding(rt, {tokens[1], weight, y[1]}), Error);
    } else {  // a device does not stop for it: the row is NaN
      rt.ops.embedding(rt, {tokens[1], weight, y[1]});
      memory.synchronize();
      const Values got = y.got();
      for (int64_t c = 0; c < 8; ++c)
        EXPECT_TRUE(std::isnan(got[size_t(8 + c)]) && !std::isnan(got[size_t(c)]));
    }
  }
}

TEST_P(Rows, Rope) {
  struct Shape {
    int64_t n, heads, d, half;
  };
  for (const Shape s : {Shape{1, 1, 8, 4},
                        {5, 3, 32, 16},
                        {9, 4, 64, 32},
                        {4, 2, 72, 36},
                        {6, 2, 80, 20},
                        {7, 5, 128, 64},
                        {3, 2, 192, 96},
                        {3, 1, 256, 32},
                        {4, 2, 16, 1},
                        {4, 2, 96, 33}})
    for (const bool gaps : {false, true})
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(::testing::Message() << s.heads << " heads of " << s.d << ", half " << s.half);
        Bench b(GetParam(), 23, gaps);
        const int64_t positions = 50;
        std::vector<double> cos, sin;
        for (int64_t p = 0; p < positions; ++p)
          for (int64_t i = 0; i < s.half; ++i) {
            const double angle = static_cast<double>(p) * std::pow(10000.0, -double(i) / double(s.half));
            cos.push_back(round_to(b.acc(), std::cos(angle)));
            sin.push_back(round_to(b.acc(), std::sin(angle)));
          }
        const Pair& c = b.in_values(b.acc(), {positions, s.half}, cos);
        const Pair& sn = b.in_values(b.acc(), {positions, s.half}, sin);
        const Pair& x = b.in_place(b.t(), {s.n, s.heads, s.d});
        const Values before = x.ref();
        std::vector<int32_t> position;
        for (int64_t i = 0; i < s.n; ++i) position.push_back(static_cast<int32_t>(b.rng().below(50)));
        b.run([&](int i, Runtime& rt) { rt.ops.rope(rt, {x[i], position.data(), c[i], sn[i], inverse}); });
        Values bound = absolutes(before);
        for (int64_t r = 0; r < s.n * s.heads; ++r)
          for (int64_t i = 0; i < s.half; ++i) {
            double& first = bound[size_t(r * s.d + i)];
            double& second = bound[size_t(r * s.d + i + s.half)];
            first = second = first + second;
          }
        EXPECT_TRUE(b.close("x", x, bound, 2, epsilon(b.acc())));
        const Values after = x.got();  // dims past the rotated ones stay as they were
        for (int64_t r = 0; r < s.n * s.heads; ++r)
          for (int64_t i = 2 * s.half; i < s.d; ++i)
            ASSERT_EQ(after[size_t(r * s.d + i)], before[size_t(r * s.d + i)]);
      }
}

TEST_P(Rows, Add) {
  for (const int64_t h : kWidths)
    for (const bool gaps : {false, true}) {
      Bench b(GetParam(), 24, gaps);
      const Pair& x = b.in({13, h});
      const Pair& z = b.in({13, h});
      const Pair& y = b.out({13, h});
      const Pair& left = b.in_place(b.t(), {13, h});   // y = a
      const Pair& right = b.in_place(b.t(), {13, h});  // y = b
      const Pair& cube = b.in({3, 5, h});
      const Pair& doubled = b.out({3, 5, h});
      const Values left0 = left.ref(), right0 = right.ref();
      b.run([&](int i, Runtime& rt) {
        rt.ops.add(rt, {x[i], z[i], y[i]});
        rt.ops.add(rt, {left[i], z[i], left[i]});
        rt.ops.add(rt, {z[i], right[i], right[i]});
        rt.ops.add(rt, {cube[i], cube[i], doubled[i]});
      });
      EXPECT_TRUE(b.close("y", y, plus_abs(absolutes(x.ref()), z.ref()), 1, epsilon(b.acc())));
      EXPECT_TRUE(b.close("a", left, plus_abs(absolutes(left0), z.ref()), 1, epsilon(b.acc())));
      EXPECT_TRUE(b.close("b", right, plus_abs(absolutes(right0), z.ref()), 1, epsilon(b.acc())));
      EXPECT_EQ(doubled.got(), doubled.ref());
    }
}

TEST_P(Rows, CastRoundsToNearestEven) {
  for (const DType from : {DType::f64, DType::f32, DType::bf16})
    for (const DType to : {DType::f64, DType::f32, DType::bf16})
      for (const int64_t h : {1, 5, 64, 77})
        for (const bool gaps : {false, true}) {
          if (from == DType::f64 && to == DType::bf16) continue;  // two roundings are allowed there
          Bench b(GetParam(), 25, gaps);
          std::vector<double> x = normals(b.rng(), 6 * h, 3, from);
          const std::vector<double> special = {0,          -0.0,           kInf,     -kInf, kNaN,
                                               1 + 0x1p-8, 1 + 3 * 0x1p-8, 0x1p-126, 3e38,  1e-40};
          for (size_t i = 0; i < special.size() && i < x.size(); ++i) x[i] = round_to(from, special[i]);
          const Pair& src = b.in_values(from, {2, 3, h}, x);
          const Pair& dst = b.out_type(to, {2, 3, h});
          ThreadPool pool(2);
          Memory& memory = GetParam().ops->memory();
          Arena scratch(memory);
          Runtime rt{pool, scratch, *GetParam().ops, memory};
          dst.poison();
          rt.ops.cast(rt, {src[1], dst[1]});
          memory.synchronize();
          EXPECT_TRUE(dst.buffer(1).untouched());
          const Values got = dst.got();
          for (size_t i = 0; i < got.size(); ++i) {
            const double expected = round_to(to, x[i]);
            if (std::isnan(expected))
              ASSERT_TRUE(std::isnan(got[i])) << i;
            else
              ASSERT_EQ(got[i], expected) << name_of(from) << " to " << name_of(to) << " of " << x[i];
          }
        }
}

TEST_P(Rows, Gather) {
  for (const int64_t h : kWidths)
    for (const bool gaps : {false, true}) {
      Bench b(GetParam(), 26, gaps);
      const Pair& src = b.in({9, h});
      const std::vector<int64_t> rows = {0, 8, 3, 3, 7};
      const Pair& dst = b.out({5, h});
      b.run([&](int i, Runtime& rt) { rt.ops.gather_rows(rt, {src[i], rows.data(), dst[i]}); });
      EXPECT_EQ(dst.got(), dst.ref());
    }
}

// Rows of two tensors to where a cache keeps them; what no row names stays as it was.
TEST_P(Rows, Scatter) {
  for (const int64_t h : kWidths)
    for (const DType type : {DType::f32, DType::bf16}) {
      ThreadPool pool(2);
      Memory& memory = GetParam().ops->memory();
      Arena scratch(memory);
      Runtime rt{pool, scratch, *GetParam().ops, memory};
      const std::vector<int64_t> rows = {6, 7, -1, 0, 2};
      struct Case {
        Tensor src, dst;
        std::vector<uint8_t> from, expected;
      };
      std::vector<Case> cases;
      for (const int64_t heads : {1, 3}) {
        Case c{Tensor(type, {5, heads, h}, memory), Tensor(type, {9, heads, h}, memory), {}, {}};
        c.from.resize(c.src.view().bytes());
        c.expected.resize(c.dst.view().bytes());
        for (size_t i = 0; i < c.from.size(); ++i) c.from[i] = static_cast<uint8_t>(31 * i + 7);
        for (size_t i = 0; i < c.expected.size(); ++i) c.expected[i] = static_cast<uint8_t>(13 * i + 1);
        memory.from_host(c.src.view().data, c.from.data(), c.from.size());
        memory.from_host(c.dst.view().data, c.expected.data(), c.expected.size());
        const size_t row = c.from.size() / 5;
        for (size_t i = 0; i < rows.size(); ++i)
          if (rows[i] >= 0)
            std::copy_n(c.from.begin() + static_cast<std::ptrdiff_t>(i * row), row,
                        c.expected.begin() + rows[i] * static_cast<std::ptrdiff_t>(row));
        cases.push_back(std::move(c));
      }
      const ScatterRows::Pair pairs[] = {{cases[0].src, cases[0].dst}, {cases[1].src, cases[1].dst}};
      rt.ops.scatter_rows(rt, {rows.data(), pairs});
      for (const Case& c : cases) {
        std::vector<uint8_t> got(c.expected.size());
        memory.to_host(got.data(), c.dst.view().data, got.size());
        EXPECT_EQ(got, c.expected) << "h " << h;
      }
    }
}

// Queries and keys of a layer in one call are what they are alone, to the bit.
TEST_P(Rows, RopeOfAGroupIsThatOfItsMembers) {
  for (const int64_t half : {32, 6}) {
    Bench b(GetParam(), 29, half == 6);
    const Pair &cos = b.in({50, half}), &sin = b.in({50, half});
    const Pair& c = b.in_values(b.acc(), {50, half}, cos.ref());
    const Pair& s = b.in_values(b.acc(), {50, half}, sin.ref());
    const Pair &q = b.in({9, 8, 64}), &k = b.in({9, 2, 64});
    const Pair &q0 = b.out({9, 8, 64}), &k0 = b.out({9, 2, 64});
    const Pair &q1 = b.out({9, 8, 64}), &k1 = b.out({9, 2, 64});
    const std::vector<int32_t> position = {0, 1, 2, 30, 31, 49, 7, 0, 5};
    b.run([&](int i, Runtime& rt) {
      for (const Pair* to : {&q0, &q1}) assign((*to)[i], values(q[i]));
      for (const Pair* to : {&k0, &k1}) assign((*to)[i], values(k[i]));
      const Rope group[] = {{q0[i], position.data(), c[i], s[i], false},
                            {k0[i], position.data(), c[i], s[i], false}};
      rt.ops.rope_group(rt, group);
      rt.ops.rope(rt, {q1[i], position.data(), c[i], s[i], false});
      rt.ops.rope(rt, {k1[i], position.data(), c[i], s[i], false});
    });
    EXPECT_EQ(q0.got(), q1.got());
    EXPECT_EQ(k0.got(), k1.got());
  }
}

HYSPARSE_KERNEL_SUITE(Rows);

}  // namespace
}  // namespace hysparse::test
