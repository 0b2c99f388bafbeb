// Products against plain loops: every layout, every path (panels, split k, shared panels, oneDNN), every
// dispatch level.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm_multiply.h"
#include "kernels/cpu/gemm_onednn.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {
namespace {

using gemm::Engine;
using gemm::Matrix;
using gemm::Output;

struct Shape {
  int64_t m, n, k;
};

// An operand [rows, cols], stored row by row or column by column, with NaN between its lines.
struct Operand {
  int64_t rows, cols;
  bool by_columns;
  std::vector<double> value;  // row-major
  Tensor storage;
  Matrix matrix;

  Operand(Rng& rng, DType t, int64_t rows, int64_t cols, bool by_columns)
      : rows(rows), cols(cols), by_columns(by_columns), value(normals(rng, rows * cols, 1, t)) {
    const int64_t lines = by_columns ? cols : rows, length = by_columns ? rows : cols, stride = length + 3;
    storage = Tensor(t, {std::max<int64_t>(1, lines * stride)});
    fill(storage.view(), kNaN);
    matrix = {storage.view().data, t, by_columns ? 1 : stride, by_columns ? stride : 1};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        store(storage.view(), r * matrix.row + c * matrix.col, value[size_t(r * cols + c)]);
  }
};

struct Result {
  Tensor storage;
  Output out;
  int64_t m, n;
  Result(DType t, int64_t m, int64_t n, const std::vector<double>& before) : m(m), n(n) {
    const int64_t stride = n + 5;
    storage = Tensor(t, {std::max<int64_t>(1, m * stride)});
    fill(storage.view(), -123.0);
    for (int64_t i = 0; i < m * n; ++i) store(storage.view(), i / n * stride + i % n, before[size_t(i)]);
    out = {.data = storage.view().data, .dtype = t, .row = stride};
  }
  double at(int64_t r, int64_t c) const { return load(storage.view(), r * out.row + c); }
  bool gaps_untouched() const {
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = n; c < n + 5; ++c)
        if (at(r, c) != -123.0) return false;
    return true;
  }
};

void run(int threads, const Matrix& a, const Matrix& b, const Shape& s, const Output& y) {
  ThreadPool pool(threads);
  Arena scratch;
  Runtime rt{pool, scratch, cpu_ops(), host_memory()};
  gemm::multiply(rt, a, b, s.m, s.n, s.k, y);
}

// Shapes that reach: single rows and columns, ragged register tiles, ragged and odd k, several blocks of k,
// several tiles, tall products with shared panels, deep ones with split k.
const std::vector<Shape> kShapes = {{1, 1, 1},      {1, 40, 64},    {2, 9, 33},     {3, 8, 31},
                                    {5, 33, 0},     {17, 100, 1},   {70, 70, 3},    {13, 65, 129},
                                    {100, 90, 256}, {65, 257, 257}, {200, 31, 511}, {400, 128, 70},
                                    {37, 300, 515}, {900, 96, 40},  {66, 72, 2600}, {30, 26, 4099}};

struct Options {
  DType a, b, y;
  bool a_columns, b_columns, accumulate, bias;
};
constexpr DType F = DType::f32, B = DType::bf16;
const std::vector<Options> kOptions = {
    {F, F, F, false, true, false, false}, {F, F, F, false, false, true, false},
    {F, F, F, true, false, true, false},  {F, F, F, false, true, true, true},
    {B, B, B, false, true, false, true},  {B, B, B, false, false, true, false},
    {B, B, F, true, false, true, false},  {B, B, F, false, true, false, false},
    {F, B, F, true, false, true, false},  {B, F, B, false, true, true, true}};

void check(const Shape& s, const Options& o, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "m " << s.m << " n " << s.n << " k " << s.k << " a " << name_of(o.a)
                                    << o.a_columns << " b " << name_of(o.b) << o.b_columns << " y "
                                    << name_of(o.y) << " accumulate " << o.accumulate << " bias " << o.bias);
  Rng rng(seed);
  const Operand a(rng, o.a, s.m, s.k, o.a_columns), b(rng, o.b, s.k, s.n, o.b_columns);
  const std::vector<double> before = normals(rng, s.m * s.n, 1, o.y), bias = normals(rng, s.n, 1, o.a);
  Tensor bias_storage(o.a, {s.n});
  assign(bias_storage.view(), bias);
  std::vector<std::vector<std::byte>> runs;
  for (const int threads : {1, 3}) {
    Result y(o.y, s.m, s.n, before);
    y.out.accumulate = o.accumulate;
    if (o.bias) {
      y.out.bias = bias_storage.view().data;
      y.out.bias_dtype = o.a;
    }
    run(threads, a.matrix, b.matrix, s, y.out);
    const std::byte* bytes = static_cast<const std::byte*>(y.storage.view().data);
    runs.emplace_back(bytes, bytes + y.storage.view().bytes());
    if (threads > 1) continue;
    ASSERT_TRUE(y.gaps_untouched());
    for (int64_t r = 0; r < s.m; ++r)
      for (int64_t c = 0; c < s.n; ++c) {
        double sum = o.bias ? bias[size_t(c)] : 0, size = std::fabs(sum);
        if (o.accumulate) sum += before[size_t(r * s.n + c)], size += std::fabs(before[size_t(r * s.n + c)]);
        for (int64_t i = 0; i < s.k; ++i) {
          const double term = a.value[size_t(r * s.k + i)] * b.value[size_t(i * s.n + c)];
          sum += term, size += std::fabs(term);
        }
        const double allowed = 4 * epsilon(F) * size + (o.y == F ? 0 : epsilon(o.y) * std::fabs(sum));
        ASSERT_LE(std::fabs(y.at(r, c) - sum), allowed) << "at " << r << ", " << c << ": " << y.at(r, c);
      }
  }
  EXPECT_TRUE(runs[0] == runs[1]) << "not bit-equal on 3 threads";
}

class GemmMultiply : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { force_cpu_dispatch_level(GetParam()); }
  void TearDown() override { force_cpu_dispatch_level(""); }
};

TEST_P(GemmMultiply, EqualsPlainLoops) {
  // Slow levels take the smaller products.
  const bool slow = GetParam() == "SCALAR" || GetParam() == "EMU128";
  uint64_t seed = 1;
  for (const Shape& s : kShapes)
    for (const Options& o : kOptions)
      if (!slow || s.m * s.n * s.k < 1000000) check(s, o, ++seed);
}

// A row's value is its own: the same with other rows before and behind it.
TEST_P(GemmMultiply, RowsAreIndependent) {
  for (const DType t : {F, B})
    for (const Shape& s : {Shape{16, 300, 200}, Shape{9, 20, 1100}, Shape{150, 100, 520},
                           Shape{128, 100, 520}, Shape{80, 70, 4100}}) {
      Rng rng(5);
      const Operand a(rng, t, 3 * s.m, s.k, false), b(rng, t, s.k, s.n, true);
      const std::vector<double> zero(size_t(3 * s.m * s.n), 0.0);
      Result all(F, s.m, s.n, zero);
      run(1, a.matrix, b.matrix, s, all.out);
      for (const int64_t rows : {s.m / 2 + 1, s.m - 1, s.m, 2 * s.m, 3 * s.m}) {
        const Shape part{rows, s.n, s.k};
        Result y(F, rows, s.n, zero);
        run(2, a.matrix, b.matrix, part, y.out);
        for (int64_t r = 0; r < std::min(rows, s.m); ++r)
          for (int64_t c = 0; c < s.n; ++c)
            ASSERT_EQ(y.at(r, c), all.at(r, c))
                << name_of(t) << ' ' << rows << " rows, at " << r << ", " << c;
      }
    }
}

std::vector<std::string> levels() {
  std::vector<std::string> list = cpu_dispatch_levels();
  list.insert(list.begin(), "");  // nothing forced: AVX512-BF16 where the CPU has it
  return list;
}
INSTANTIATE_TEST_SUITE_P(Levels, GemmMultiply, ::testing::ValuesIn(levels()),
                         [](const ::testing::TestParamInfo<std::string>& info) {
                           return info.param.empty() ? std::string("best") : info.param;
                         });

// Through oneDNN where the build has it, else through our own kernels: the same contract.
TEST(GemmOnednn, EqualsPlainLoops) {
  gemm::set_engine(Engine::onednn);
  uint64_t seed = 100;
  for (const Shape& s : {Shape{128, 64, 64}, Shape{300, 300, 100}, Shape{129, 40, 700}, Shape{513, 65, 33}})
    for (const Options& o : kOptions) check(s, o, ++seed);
  gemm::set_engine(Engine::automatic);
}

// The peer of `bench gemm` computes what it is compared for.
TEST(GemmOnednn, WholeProduct) {
  const int64_t m = 9, n = 40, k = 70;
  if (!gemm::onednn_available(F)) {
    EXPECT_THROW(gemm::OnednnProduct(F, m, n, k, nullptr, 2), Error);
    return;
  }
  Rng rng(4);
  for (const DType t : {F, B}) {
    if (!gemm::onednn_available(t)) {
      EXPECT_THROW(gemm::OnednnProduct(t, m, n, k, nullptr, 2), Error);
      continue;
    }
    const std::vector<double> xs = normals(rng, m * k, 1, t), ws = normals(rng, n * k, 1, t);
    Tensor x(t, {m, k}), w(t, {n, k}), y(t, {m, n});
    assign(x.view(), xs);
    assign(w.view(), ws);
    const gemm::OnednnProduct product(t, m, n, k, w.view().data, 2);
    for (int repeat = 0; repeat < 2; ++repeat) {
      fill(y.view(), kNaN);
      product.run(x.view().data, y.view().data);
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < n; ++c) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double term = xs[size_t(r * k + i)] * ws[size_t(c * k + i)];
            sum += term, size += std::fabs(term);
          }
          ASSERT_NEAR(load(y.view(), r * n + c), sum,
                      4 * epsilon(F) * size + (t == F ? 0 : epsilon(t) * std::fabs(sum)));
        }
    }
  }
}

// More than nothing, and less than any machine's caches could give.
TEST(ReadSpeed, IsARateOfMemory) {
  ThreadPool pool(2);
  const ReadSpeed speed(pool);
  for (int i = 0; i < 2; ++i) {
    const double bytes = speed.measure();
    EXPECT_GT(bytes, 1e7);
    EXPECT_LT(bytes, 1e13);
  }
}

TEST(GemmOnednn, BlockAlone) {
  if (!gemm::onednn_available(F)) {
    EXPECT_THROW(gemm::onednn_multiply({}, {}, 1, 1, 1, nullptr, 1, false), Error);
    return;
  }
  Rng rng(3);
  for (const DType t : {F, B}) {
    if (!gemm::onednn_available(t)) continue;  // WholeProduct sees that it says so
    const Operand a(rng, t, 32, 48, true), b(rng, t, 48, 16, false);
    std::vector<float> y(32 * 20, 1.0f);
    gemm::onednn_multiply(a.matrix, b.matrix, 32, 16, 48, y.data(), 20, false);
    gemm::onednn_multiply(a.matrix, b.matrix, 32, 16, 48, y.data(), 20, true);
    for (int64_t r = 0; r < 32; ++r) {
      for (int64_t c = 0; c < 16; ++c) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < 48; ++i) {
          const double term = a.value[size_t(r * 48 + i)] * b.value[size_t(i * 16 + c)];
          sum += 2 * term, size += 2 * std::fabs(term);
        }
        ASSERT_NEAR(y[size_t(r * 20 + c)], sum, 4 * epsilon(F) * size);
      }
      for (int64_t c = 16; c < 20; ++c) ASSERT_EQ(y[size_t(r * 20 + c)], 1.0f);
    }
  }
}

}  // namespace
}  // namespace hysparse::test
