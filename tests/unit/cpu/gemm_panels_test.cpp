// Products with a weight: against plain loops, and the same to the bit however many rows are in the call, on
// any number of threads, from rows and from panels made beforehand, at every dispatch level.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_panels.h"
#include "kernels/quantise.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {
namespace {

constexpr DType F = DType::f32, B = DType::bf16, I = DType::i8;

struct Shape {
  int64_t n, k;
};
// Single rows and columns; ragged panels, blocks, groups and pairs; several of each.
const std::vector<Shape> kShapes = {{1, 1},    {33, 64},   {64, 127},  {9, 128},  {32, 129},  {40, 0},
                                    {95, 300}, {130, 256}, {300, 192}, {577, 70}, {70, 1030}, {256, 513}};

// A weight of random values, kept in `dtype`.
struct Subject {
  DType dtype;
  int64_t n, k;
  Tensor value, scales;
  Weight w;
  std::vector<double> wide;  // what is kept

  Subject(Rng& rng, DType dtype, int64_t n, int64_t k) : dtype(dtype), n(n), k(k) {
    const std::vector<double> values = normals(rng, n * k, 1, dtype == I ? F : dtype);
    value = Tensor(dtype, {n, k});
    w.name = "w";
    if (dtype == I) {
      scales = Tensor(F, {n, quant_groups(k)});
      const std::vector<float> rows(values.begin(), values.end());
      quantise_rows(rows.data(), n, k, value.view().as<int8_t>(), scales.view().as<float>());
      w.scales = scales;
    } else {
      assign(value.view(), values);
    }
    w.value = value;
    wide.resize(size_t(n * k));
    for (int64_t r = 0; r < n; ++r) widen_row(w, r, wide.data() + r * k);
  }
};

struct Machine {
  explicit Machine(int threads = 2) : pool(threads), rt{pool, scratch, cpu_ops(), host_memory()} {}
  ThreadPool pool;
  Arena scratch;
  Runtime rt;
};

std::vector<char> bytes_of(const TensorView& v) {
  const char* p = static_cast<const char*>(v.data);
  return {p, p + v.bytes()};
}

class GemmPanels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_cpu_dispatch_level(GetParam()); }
  void TearDown() override { force_cpu_dispatch_level(""); }
  bool slow() const { return GetParam() == "SCALAR" || GetParam() == "EMU128"; }
};

struct Types {
  DType w, x, y;
  bool accumulate, bias;
};
const std::vector<Types> kTypes = {{F, F, F, false, false}, {F, F, F, true, true},  {B, B, B, false, true},
                                   {B, B, F, true, false},  {I, F, F, false, true}, {I, B, B, true, false}};

// Rows in one call, of which the first are taken alone, then some, from rows and from panels.
TEST_P(GemmPanels, EqualsPlainLoopsAndItself) {
  uint64_t seed = 1;
  for (const Shape& s : kShapes)
    for (const Types& t : kTypes) {
      if (t.w == I && s.k == 0) continue;
      if (slow() && s.n * s.k > 40000) continue;
      SCOPED_TRACE(::testing::Message() << "n " << s.n << " k " << s.k << " w " << name_of(t.w) << " x "
                                        << name_of(t.x) << " y " << name_of(t.y));
      Rng rng(++seed);
      const int64_t m = slow() ? 40 : 215;
      Subject w(rng, t.w, s.n, s.k);
      const std::vector<double> xs = normals(rng, m * s.k, 1, t.x), before = normals(rng, m * s.n, 1, t.y),
                                bs = normals(rng, s.n, 1, t.x);
      Tensor x(t.x, {m, s.k}), bias_value(t.x, {s.n});
      assign(x.view(), xs);
      assign(bias_value.view(), bs);
      Weight bias;
      bias.value = bias_value;
      const auto product = [&](int64_t first, int64_t rows, int threads) {
        Machine machine(threads);
        Tensor y(t.y, {rows, s.n});
        assign(y.view(), {before.begin() + first * s.n, before.begin() + (first + rows) * s.n});
        machine.rt.ops.linear(machine.rt, {.x = x.view().rows(first, first + rows),
                                           .weight = w.w,
                                           .bias = t.bias ? &bias : nullptr,
                                           .y = y,
                                           .accumulate = t.accumulate});
        return y;
      };
      const Tensor all = product(0, m, 1);
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < s.n; ++c) {
          double sum = t.bias ? bs[size_t(c)] : 0, size = std::fabs(sum);
          if (t.accumulate)
            sum += before[size_t(r * s.n + c)], size += std::fabs(before[size_t(r * s.n + c)]);
          for (int64_t i = 0; i < s.k; ++i) {
            const double term = xs[size_t(r * s.k + i)] * w.wide[size_t(c * s.k + i)];
            sum += term, size += std::fabs(term);
          }
          const double allowed = 4 * epsilon(F) * size + (t.y == F ? 0 : epsilon(t.y) * std::fabs(sum));
          ASSERT_LE(std::fabs(load(all.view(), r * s.n + c) - sum), allowed) << "at " << r << ", " << c;
        }
      const auto same = [&](const std::string& how) {
        for (const int64_t rows : {int64_t(1), int64_t(2), int64_t(3), int64_t(5), int64_t(8), int64_t(13),
                                   int64_t(32), int64_t(33), m - 1, m}) {
          const int64_t first = (m - rows) / 2;
          ASSERT_TRUE(bytes_of(product(first, rows, 3)) == bytes_of(all.view().rows(first, first + rows)))
              << rows << " rows " << how;
        }
      };
      same("from rows");
      Machine machine;
      machine.rt.ops.pack(machine.rt, w.w);
      same("from panels");
    }
}

// Rows of a packed weight are what they were.
TEST_P(GemmPanels, EmbeddingReadsPanels) {
  for (const DType kept : {F, B, I})
    for (const DType compute : {F, B}) {
      if (kept != I && kept != compute) continue;
      for (const Shape& s : {Shape{75, 130}, Shape{64, 70}, Shape{20, 64}}) {
        Rng rng(3);
        Subject w(rng, kept, s.n, s.k);
        Machine machine;
        Tensor tokens(DType::i32, {s.n}), before(compute, {s.n, s.k}), after(compute, {s.n, s.k});
        for (int64_t i = 0; i < s.n; ++i)
          tokens.view().as<int32_t>()[i] = static_cast<int32_t>((i * 7) % s.n);
        machine.rt.ops.embedding(machine.rt, {tokens, w.w, before});
        machine.rt.ops.pack(machine.rt, w.w);
        EXPECT_TRUE(w.w.panels);
        machine.rt.ops.embedding(machine.rt, {tokens, w.w, after});
        EXPECT_TRUE(bytes_of(before) == bytes_of(after)) << name_of(kept) << ' ' << s.n << " x " << s.k;
      }
    }
}

// Several products of one x, of different formats and sizes, are each what they are alone.
TEST_P(GemmPanels, GroupsAreTheirParts) {
  Rng rng(5);
  const int64_t k = 192;
  for (const int64_t m : {1, 4, 50}) {
    Subject a(rng, B, 100, k), b(rng, I, 33, k), c(rng, B, 5, k);
    const std::vector<double> xs = normals(rng, m * k, 1, B);
    Tensor x(B, {m, k});
    assign(x.view(), xs);
    Machine machine(3);
    machine.rt.ops.pack(machine.rt, b.w);
    std::vector<Tensor> together, alone;
    std::vector<LinearForward> group;
    for (const Subject* s : {&a, &b, &c}) {
      together.emplace_back(B, std::initializer_list<int64_t>{m, s->n});
      alone.emplace_back(B, std::initializer_list<int64_t>{m, s->n});
      machine.rt.ops.linear(machine.rt, {x, s->w, nullptr, alone.back(), false});
    }
    size_t i = 0;
    for (const Subject* s : {&a, &b, &c}) group.push_back({x, s->w, nullptr, together[i++], false});
    const Weight* next[] = {&a.w, &b.w};
    machine.rt.ops.linear_group(machine.rt, group, next);
    for (i = 0; i < 3; ++i) EXPECT_TRUE(bytes_of(together[i]) == bytes_of(alone[i])) << m << ' ' << i;
  }
}

TEST(GemmPack, RefusesWhatIsTrained) {
  Rng rng(6);
  Machine machine;
  Subject trained(rng, F, 40, 64);
  Tensor grad(F, {40, 64}), x(F, {3, 64}), dy(F, {3, 40}), dx(F, {3, 64});
  trained.w.grad = grad;
  EXPECT_THROW(machine.rt.ops.pack(machine.rt, trained.w), Error);
  Subject packed(rng, F, 40, 64);
  machine.rt.ops.pack(machine.rt, packed.w);
  EXPECT_THROW(machine.rt.ops.linear_backward(machine.rt, {x, packed.w, nullptr, dy, dx, false}), Error);
  // Half a pair would not fit in place: such rows stay rows.
  Subject odd(rng, B, 40, 63);
  machine.rt.ops.pack(machine.rt, odd.w);
  EXPECT_FALSE(odd.w.panels);
}

std::vector<std::string> levels() {
  std::vector<std::string> list = cpu_dispatch_levels();
  list.insert(list.begin(), "");  // nothing forced: AVX512-BF16 where the CPU has it
  return list;
}
INSTANTIATE_TEST_SUITE_P(Levels, GemmPanels, ::testing::ValuesIn(levels()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("best") : info.param;
                         });

}  // namespace
}  // namespace hysparse::test
