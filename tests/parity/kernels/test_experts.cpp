// Mixture of experts against the reference: the same choices, tables and products.
#include <deque>
#include <numeric>

#include "kernels/quantise.h"
#include "parity/kernels/bounds.h"
#include "parity/kernels/harness.h"

namespace hysparse::test {
namespace {

// A backend has all of these operations, or says that it has none.
class Experts : public KernelTest {
 protected:
  bool here() const { return GetParam().ops->experts(); }
  void expect_refusal() const {
    const Ops& ops = *GetParam().ops;
    ThreadPool pool(1);
    Arena scratch(ops.memory());
    Runtime rt{pool, scratch, ops, ops.memory()};
    EXPECT_THROW(ops.route(rt, RouteForward{}), Error);
  }
};

struct Shape {
  int64_t n, experts, k, in, out;
  bool to_one = false;  // all tokens choose the same experts
};
const std::vector<Shape> kShapes = {{1, 4, 2, 16, 24},     {3, 5, 1, 33, 17},          {7, 64, 8, 64, 32},
                                    {40, 3, 3, 48, 40},    {200, 4, 2, 96, 64},        {129, 2, 1, 256, 96},
                                    {300, 16, 2, 72, 257}, {64, 6, 2, 600, 9},         {500, 2, 2, 40, 300},
                                    {9, 520, 3, 24, 16},   {330, 3, 1, 72, 272, true}, {170, 3, 2, 40, 520},
                                    {33, 2100, 16, 8, 8},  {20, 9, 2, 520, 24}};

// Choices with unused experts and unequal groups.
Values choices(Rng& rng, const Shape& s) {
  Values out;
  for (int64_t t = 0; t < s.n; ++t) {
    if (s.to_one) {
      for (int64_t j = 0; j < s.k; ++j) out.push_back(double(s.experts / 2 + j));
      continue;
    }
    std::vector<int64_t> order(static_cast<size_t>(s.experts));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = 0; i < size_t(s.k); ++i) {
      const auto left = static_cast<uint64_t>(s.experts) - i;
      std::swap(order[i],
                order[i + size_t(std::min(rng.below(left), rng.below(left)))]);  // the lower ones more often
    }
    std::sort(order.begin(), order.begin() + s.k);
    for (size_t i = 0; i < size_t(s.k); ++i) out.push_back(double(order[i]));
  }
  return out;
}

// Tables of both sides, from one choice; made by the reference.
struct Tables {
  Tables(Bench& b, const Shape& s) : chosen(choices(b.rng(), s)) {
    const Tensor experts(DType::i32, {s.n, s.k}), o(DType::i32, {s.experts + 1}), r(DType::i32, {s.n * s.k}),
        l(DType::i32, {s.n, s.k});
    assign(experts, chosen);
    ThreadPool pool(1);
    Arena scratch;
    Runtime rt{pool, scratch, ref_ops(), host_memory()};
    ref_ops().expert_tables(rt, {experts, {}, {o, r, l}, {}});
    offsets = test::values(o);
    offset = &b.in_values(DType::i32, {s.experts + 1}, offsets);
    source = &b.in_values(DType::i32, {s.n * s.k}, test::values(r));
    slot = &b.in_values(DType::i32, {s.n, s.k}, test::values(l));
  }
  ExpertTables view(int side) const { return {(*offset)[side], (*source)[side], (*slot)[side]}; }
  Values chosen, offsets;
  const Pair *offset, *source, *slot;
};

TEST_P(Experts, Route) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    for (const bool normalise : {true, false}) {
      Bench b(GetParam(), 31);
      const Pair& logits = b.in_acc({s.n, s.experts}, 2);
      const Pair& bias = b.in_acc({s.experts}, 0.1);
      const Pair& experts = b.out_type(DType::i32, {s.n, s.k});
      const Pair& weights = b.out_acc({s.n, s.k});
      b.run([&](int i, Runtime& rt) {
        rt.ops.route(rt, {logits[i], bias[i], normalise, 1.5, false, experts[i], weights[i]});
      });
      EXPECT_EQ(values(experts[1]), experts.ref()) << s.n;
      EXPECT_TRUE(b.close("weights", weights, Values(size_t(s.n * s.k), 3.0)));
    }
  }
}

// Equal scores, and equal only after the bias: the lower expert, in every backend.
TEST_P(Experts, TiesGoToTheLowerExpert) {
  if (!here()) return expect_refusal();
  Bench b(GetParam(), 32);
  Values x;
  for (int64_t t = 0; t < 3; ++t)
    for (int64_t e = 0; e < 64; ++e) x.push_back(t == 0 ? 0.25 : t == 1 ? double(e % 4) : -double(e / 8));
  const Pair& logits = b.in_values(b.acc(), {3, 64}, x);
  const Pair& bias = b.in_values(b.acc(), {64}, Values(64, 0.5));
  const Pair& experts = b.out_type(DType::i32, {3, 8});
  const Pair& weights = b.out_acc({3, 8});
  b.run([&](int i, Runtime& rt) {
    rt.ops.route(rt, {logits[i], bias[i], true, 1, false, experts[i], weights[i]});
  });
  EXPECT_EQ(values(experts[1]),
            (Values{0, 1, 2, 3, 4, 5, 6, 7, 3, 7, 11, 15, 19, 23, 27, 31, 0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_P(Experts, RouteBackward) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    for (const double factor : {0.0, 0.5}) {
      Bench b(GetParam(), 33);
      RaggedBatch batch;
      for (int64_t left = s.n; left > 0; left -= batch.q_len(batch.sequences() - 1))
        batch.add_sequence(std::min<int64_t>(left, 1 + int64_t(b.rng().below(40))));
      Values label;
      for (int64_t t = 0; t < s.n; ++t) label.push_back(b.rng().below(4) ? 3 : kIgnoreLabel);
      const Pair& logits = b.in_acc({s.n, s.experts}, 2);
      const Pair& experts = b.in_values(DType::i32, {s.n, s.k}, choices(b.rng(), s));
      const Pair& labels = b.in_values(DType::i32, {s.n}, label);
      const Pair& dweights = b.in_acc({s.n, s.k});
      const Pair& dlogits = b.out_acc({s.n, s.experts});
      b.run([&](int i, Runtime& rt) {
        rt.ops.route_backward(rt, {batch, logits[i], experts[i], true, 1.5, dweights[i], labels[i], factor,
                                   factor, dlogits[i]});
      });
      // Sums of at most E terms, each at most 1.5 max |dw|, factor E / k or 2 |lse|.
      const double most = 16 + factor * (double(s.experts) / double(s.k) + 20);
      EXPECT_TRUE(b.close("dlogits", dlogits, Values(size_t(s.n * s.experts), most)));
    }
  }
}

TEST_P(Experts, TablesAndLoad) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    Bench b(GetParam(), 34);
    const Pair& experts = b.in_values(DType::i32, {s.n, s.k}, choices(b.rng(), s));
    Values label;
    for (int64_t t = 0; t < s.n; ++t) label.push_back(b.rng().below(3) ? 3 : kIgnoreLabel);
    const Pair& labels = b.in_values(DType::i32, {s.n}, label);
    const Pair& offset = b.out_type(DType::i32, {s.experts + 1});
    const Pair& source = b.out_type(DType::i32, {s.n * s.k});
    const Pair& slot = b.out_type(DType::i32, {s.n, s.k});
    std::vector<std::vector<int64_t>> load;
    b.run([&](int i, Runtime& rt) {
      const Tensor counted(DType::i64, {s.experts}, rt.memory);
      rt.ops.expert_tables(rt, {experts[i], labels[i], {offset[i], source[i], slot[i]}, counted});
      load.emplace_back(size_t(s.experts));
      rt.memory.to_host(load.back().data(), counted.view().data, counted.view().bytes());
    });
    EXPECT_EQ(values(offset[1]), offset.ref());
    EXPECT_EQ(values(source[1]), source.ref());
    EXPECT_EQ(values(slot[1]), slot.ref());
    for (const auto& l : load) EXPECT_EQ(l, load[0]);
  }
}

TEST_P(Experts, GatherAndSum) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    for (const bool gaps : {false, true}) {
      Bench b(GetParam(), 35, gaps);
      const int64_t rows = s.n * s.k, h = s.in > 500 ? 1500 : s.in;
      const Pair& x = b.in({s.n, h});
      const Pair& y = b.in({rows, h});
      const Pair& gathered = b.out({rows, h});
      const Pair& sum = b.out({s.n, h});
      const Pair& added = b.in_place(b.t(), {s.n, h});
      Bench plain(GetParam(), 36);
      const Tables t(plain, s);
      b.run([&](int i, Runtime& rt) {
        rt.ops.expert_gather(rt, {x[i], t.view(i), gathered[i]});
        rt.ops.expert_sum(rt, {y[i], t.view(i), sum[i], false});
        rt.ops.expert_sum(rt, {y[i], t.view(i), added[i], true});
      });
      EXPECT_EQ(values(gathered[1]), gathered.ref());
      const Values bound(size_t(s.n * h), 5.0 * double(s.k + 1));
      EXPECT_TRUE(b.close("sum", sum, bound, 1));
      EXPECT_TRUE(b.close("added", added, bound, 1));
    }
  }
}

// Expert e's part of a list of [experts, size] values.
Values part(const Values& all, int64_t e, int64_t size) {
  return {all.begin() + e * size, all.begin() + (e + 1) * size};
}
Values rows_of(const Values& x, double begin, double end, int64_t width) {
  return {x.begin() + int64_t(begin) * width, x.begin() + int64_t(end) * width};
}

TEST_P(Experts, GroupedLinear) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::Message() << s.n << " tokens, " << s.k << " of " << s.experts << " experts, "
                                      << s.in << " -> " << s.out);
    Bench b(GetParam(), 37);
    const Tables t(b, s);
    const int64_t rows = s.n * s.k;
    const Pair& x = b.in({rows, s.in});
    const Pair& w = b.in({s.experts, s.out, s.in});
    const Pair& y = b.out({rows, s.out});
    const Pair& dy = b.in({rows, s.out});
    const Pair& dx = b.out({rows, s.in});
    const Pair& twice = b.in_place(b.t(), {rows, s.in});
    const Pair& dw = b.accumulator({s.experts, s.out, s.in});
    const Values dw0 = dw.ref(), dx0 = twice.ref();
    b.run([&](int i, Runtime& rt) {
      std::vector<Weight> weights, frozen;
      for (int64_t e = 0; e < s.experts; ++e) {
        weights.push_back({.name = "e", .value = w[i].at(e), .grad = dw[i].at(e)});
        frozen.push_back({.name = "e", .value = w[i].at(e)});
      }
      rt.ops.grouped_linear(rt, {x[i], t.view(i), weights, y[i]});
      rt.ops.grouped_linear_backward(rt, {x[i], t.view(i), weights, dy[i], dx[i], false});
      rt.ops.grouped_linear_backward(rt, {x[i], t.view(i), frozen, dy[i], twice[i], true});
    });
    Values y_bound, dx_bound, dw_bound;
    const Values all_x = x.ref(), all_dy = dy.ref(), all_w = w.ref(), dw_after = values(dw[1]);
    const auto append = [](Values& to, const Values& more) { to.insert(to.end(), more.begin(), more.end()); };
    for (int64_t e = 0; e < s.experts; ++e) {
      const double begin = t.offsets[size_t(e)], end = t.offsets[size_t(e) + 1];
      const int64_t m = int64_t(end - begin);
      const Values xe = rows_of(all_x, begin, end, s.in), dye = rows_of(all_dy, begin, end, s.out),
                   we = part(all_w, e, s.out * s.in), before = part(dw0, e, s.out * s.in);
      append(y_bound, abs_product(xe, we, m, s.out, s.in));
      append(dx_bound, abs_product(dye, transpose(we, s.out, s.in), m, s.in, s.out));
      append(dw_bound,
             plus_abs(abs_product(transpose(dye, m, s.out), transpose(xe, m, s.in), s.out, s.in, m), before));
      if (m == 0) {
        EXPECT_EQ(part(dw_after, e, s.out * s.in), before) << "an expert without rows";
      }
    }
    EXPECT_TRUE(b.close("y", y, y_bound, 8, epsilon(DType::f32)));
    EXPECT_TRUE(b.close("dx", dx, dx_bound, 8, epsilon(DType::f32)));
    EXPECT_TRUE(b.close("dx +=", twice, plus_abs(dx_bound, dx0)));
    EXPECT_TRUE(b.close("dw", dw, dw_bound));
  }
}

// Two products of the same rows, with weights here and there; and what stays of an expert's rows that are not
// numbers: nothing for the others.
TEST_P(Experts, GroupedLinearPair) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(::testing::Message() << s.n << " tokens, " << s.k << " of " << s.experts << " experts, "
                                      << s.in << " -> " << s.out);
    for (const bool poisoned : {s.n % 2 == 0}) {
      Bench b(GetParam(), 41);
      const Tables t(b, s);
      const int64_t rows = s.n * s.k;
      const Pair& x = b.in({rows, s.in});
      const Pair& w = b.in({s.experts, 2, s.out, s.in});
      const Pair& y1 = b.out({rows, s.out});
      const Pair& y2 = b.out({rows, s.out});
      const Pair& dy1 = b.in({rows, s.out});
      const Pair& dy2 = b.in({rows, s.out});
      const Pair& dx = b.out({rows, s.in});
      const Pair& dw = b.accumulator({s.experts, 2, s.out, s.in});
      if (poisoned) {
        // The rows of the expert with the first row, and of every other one after it.
        for (int64_t e = 0; e < s.experts; e += 2)
          for (auto r = int64_t(t.offsets[size_t(e)]); r < int64_t(t.offsets[size_t(e) + 1]); ++r)
            for (int i : {0, 1})
              for (const Pair* p : {&x, &dy1, &dy2}) fill((*p)[i].at(r), kNaN);
      }
      const Values dw0 = dw.ref();
      b.run([&](int i, Runtime& rt) {
        std::vector<Weight> first, second;
        for (int64_t e = 0; e < s.experts; ++e) {
          first.push_back({.name = "e", .value = w[i].at(e).at(0), .grad = dw[i].at(e).at(0)});
          second.push_back({.name = "e", .value = w[i].at(e).at(1), .grad = dw[i].at(e).at(1)});
        }
        rt.ops.grouped_linear_pair(rt, {x[i], t.view(i), first, second, y1[i], y2[i]});
        rt.ops.grouped_linear_pair_backward(rt, {x[i], t.view(i), first, second, dy1[i], dy2[i], dx[i]});
      });
      // Sums of products of normals, made in f32; one half of dx may be rounded before it is added.
      const auto bound = [&](int64_t count, int64_t terms, double rounded = 0) {
        return Values(static_cast<size_t>(count),
                      (30 + 6 * double(terms)) * epsilon(DType::f32) + rounded * epsilon(b.t()));
      };
      EXPECT_TRUE(b.close("y1", y1, bound(rows * s.out, s.in), 1, 1));
      EXPECT_TRUE(b.close("y2", y2, bound(rows * s.out, s.in), 1, 1));
      EXPECT_TRUE(b.close("dx", dx, bound(rows * s.in, 2 * s.out, 4 * std::sqrt(double(s.out))), 1, 1));
      EXPECT_TRUE(b.close("dw", dw, bound(2 * s.experts * s.out * s.in, rows), 1, 1));
    }
  }
}

// Gradients of weights kept in the activations' type: the GPU's; rounded once a call.
TEST_P(Experts, NarrowGradients) {
  if (!here()) return expect_refusal();
  if (GetParam().on_host()) return;  // as of other weights
  for (const Shape& s : kShapes) {
    Bench b(GetParam(), 42);
    const Tables t(b, s);
    const int64_t rows = s.n * s.k;
    const Pair& x = b.in({rows, s.in});
    const Pair& w = b.in({s.experts, s.out, s.in});
    const Pair& dy = b.in({rows, s.out});
    const Pair& dw = b.in_place(b.t(), {s.experts, s.out, s.in});
    b.run([&](int i, Runtime& rt) {
      std::vector<Weight> weights;
      for (int64_t e = 0; e < s.experts; ++e)
        weights.push_back({.name = "e", .value = w[i].at(e), .grad = dw[i].at(e)});
      rt.ops.grouped_linear_backward(rt, {x[i], t.view(i), weights, dy[i], {}, false});
    });
    EXPECT_TRUE(b.close("dw", dw, Values(size_t(s.experts * s.out * s.in), 30 + 6 * double(rows)), 1,
                        epsilon(DType::f32)));
  }
}

// Random values of a kind in memory of a backend: T, or 8 bits with scales.
struct Matrices {
  Matrices(Rng& rng, DType type, DType kind, const std::vector<int64_t>& d, double sigma)
      : kind(kind), dims(d), wide(normals(rng, d[0] * d[1] * d[2], sigma, type)) {
    if (kind != DType::f8) return;
    const std::vector<float> narrow(wide.begin(), wide.end());
    value.resize(narrow.size());
    scales.resize(static_cast<size_t>(d[0] * d[1]));
    EXPECT_TRUE(quantise_rows_f8(narrow.data(), d[0] * d[1], d[2], value.data(), scales.data()));
  }
  std::vector<Weight> in(Memory& memory, DType type, std::deque<Tensor>& keep) const {
    const Tensor& v = keep.emplace_back(kind == DType::f8 ? kind : type,
                                        std::initializer_list<int64_t>{dims[0], dims[1], dims[2]}, memory);
    const Tensor& c =
        keep.emplace_back(DType::f32, std::initializer_list<int64_t>{dims[0], dims[1], 1}, memory);
    if (kind == DType::f8) {
      memory.from_host(v.view().data, value.data(), v.view().bytes());
      memory.from_host(c.view().data, scales.data(), c.view().bytes());
    } else {
      assign(v, wide);
    }
    std::vector<Weight> out;
    for (int64_t e = 0; e < dims[0]; ++e)
      out.push_back({.name = "w",
                     .value = v.view().at(e),
                     .scales = kind == DType::f8 ? c.view().at(e) : TensorView{}});
    return out;
  }
  DType kind;
  std::vector<int64_t> dims;
  Values wide;
  std::vector<f8> value;
  std::vector<float> scales;
};

// All of it, nothing kept.
TEST_P(Experts, Mlp) {
  if (!here()) return expect_refusal();
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({5, 6, 2, 2080, 32});
  for (const Shape& s : shapes) {
    if (s.in == 33 || s.experts > 1000) continue;
    for (const DType kind : {GetParam().dtype, DType::f8}) {
      SCOPED_TRACE(::testing::Message() << s.n << " tokens, " << s.k << " of " << s.experts << " experts, "
                                        << s.in << " -> " << s.out << ' ' << name_of(kind));
      Bench b(GetParam(), 43);
      const Tables t(b, s);
      const double small = 1 / std::sqrt(double(s.in)), down_small = 1 / std::sqrt(double(s.out));
      const Pair& x = b.in({s.n, s.in});
      const Pair& weights = b.in_acc({s.n, s.k});
      const Pair& y = b.out({s.n, s.in});
      const Matrices gate(b.rng(), b.t(), kind, {s.experts, s.out, s.in}, small),
          up(b.rng(), b.t(), kind, {s.experts, s.out, s.in}, small),
          down(b.rng(), b.t(), kind, {s.experts, s.in, s.out}, down_small);
      b.run([&](int i, Runtime& rt) {
        std::deque<Tensor> keep;
        const DType type = x[i].dtype;
        const auto g = gate.in(rt.memory, type, keep), u = up.in(rt.memory, type, keep),
                   d = down.in(rt.memory, type, keep);
        rt.ops.expert_mlp(rt, {x[i], t.view(i), weights[i], g, u, d, y[i]});
        rt.memory.synchronize();
      });
      EXPECT_TRUE(
          b.close("y", y, Values(size_t(s.n * s.in), double(s.k) * (4 * epsilon(b.t()) + 1e-5)), 1, 1));
    }
  }
}

// Experts in 8 bits: what values and scales say, whichever way the product is made.
TEST_P(Experts, GroupedLinearOf8Bits) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes)
    for (const DType kind : {DType::i8, DType::f8}) {
      Bench b(GetParam(), 38);
      const Tables t(b, s);
      const int64_t rows = s.n * s.k, groups = kind == DType::f8 ? 1 : quant_groups(s.in);
      const Pair& x = b.in({rows, s.in});
      const Pair& y = b.out({rows, s.out});
      const Values w = normals(b.rng(), s.experts * s.out * s.in, 1, DType::f32);
      const std::vector<float> narrow(w.begin(), w.end());
      std::vector<int8_t> value(narrow.size());
      std::vector<f8> value_f8(narrow.size());
      std::vector<float> scales(static_cast<size_t>(s.experts * s.out * groups));
      if (kind == DType::f8)
        ASSERT_TRUE(quantise_rows_f8(narrow.data(), s.experts * s.out, s.in, value_f8.data(), scales.data()));
      else
        ASSERT_TRUE(quantise_rows(narrow.data(), s.experts * s.out, s.in, value.data(), scales.data()));
      b.run([&](int i, Runtime& rt) {
        const Tensor v(kind, {s.experts, s.out, s.in}, rt.memory),
            c(DType::f32, {s.experts, s.out, groups}, rt.memory);
        rt.memory.from_host(v.view().data,
                            kind == DType::f8 ? static_cast<const void*>(value_f8.data()) : value.data(),
                            v.view().bytes());
        rt.memory.from_host(c.view().data, scales.data(), c.view().bytes());
        std::vector<Weight> weights;
        for (int64_t e = 0; e < s.experts; ++e)
          weights.push_back({.name = "e", .value = v.view().at(e), .scales = c.view().at(e)});
        rt.ops.grouped_linear(rt, {x[i], t.view(i), weights, y[i]});
        rt.memory.synchronize();
      });
      const Values all_x = x.ref();
      Values bound;
      for (int64_t e = 0; e < s.experts; ++e) {
        const double begin = t.offsets[size_t(e)], end = t.offsets[size_t(e) + 1];
        const Values more = abs_product(rows_of(all_x, begin, end, s.in), part(w, e, s.out * s.in),
                                        int64_t(end - begin), s.out, s.in);
        bound.insert(bound.end(), more.begin(), more.end());
      }
      EXPECT_TRUE(b.close("y", y, bound));
    }
}

TEST_P(Experts, Swiglu) {
  if (!here()) return expect_refusal();
  for (const Shape& s : kShapes) {
    for (const bool gaps : {false, true}) {
      Bench b(GetParam(), 39, gaps);
      Bench plain(GetParam(), 40);
      const Tables t(plain, s);
      const int64_t rows = s.n * s.k;
      const Pair& gate = b.in({rows, s.out}, 2);
      const Pair& up = b.in({rows, s.out});
      const Pair& dh = b.in({rows, s.out});
      const Pair& h = b.out({rows, s.out});
      const Pair& dgate = b.out({rows, s.out});
      const Pair& dup = b.out({rows, s.out});
      const Pair& weights = plain.in_acc({s.n, s.k});
      const Pair& dweights = plain.out_acc({s.n, s.k});
      b.run([&](int i, Runtime& rt) {
        rt.ops.expert_swiglu(rt, {gate[i], up[i], t.view(i), weights[i], h[i]});
        rt.ops.expert_swiglu_backward(
            rt, {gate[i], up[i], t.view(i), weights[i], dh[i], dgate[i], dup[i], dweights[i]});
      });
      const Values bound(size_t(rows * s.out), 120.0);  // above any product of the three
      EXPECT_TRUE(b.close("h", h, bound, 1));
      EXPECT_TRUE(b.close("dgate", dgate, bound, 1));
      EXPECT_TRUE(b.close("dup", dup, bound, 1));
      EXPECT_TRUE(b.close("dweights", dweights, Values(size_t(rows), 12.0 * double(s.out)), 1));
    }
  }
}

HYSPARSE_KERNEL_SUITE(Experts);

}  // namespace
}  // namespace hysparse::test
