// The KV cache in 8 bits: rows quantised by every backend as the reference does, and attention over pages of
// codes and scales.
#include "kernels/quantise.h"
#include "parity/kernels/attention_checks.h"

namespace hysparse::test {
namespace {

class KvIn8Bits : public KernelTest {};

constexpr DType kCodes[] = {DType::i8, DType::f8};

struct Stored {
  std::vector<uint8_t> k, v;
  std::vector<bf16> scales;
};

// Rows 5, 0, 3, 2 of a cache of 7.
Stored stored(const Ops& ops, DType t, DType code, const Values& k, const Values& v, int64_t heads, int64_t d,
              int64_t dv, bool gaps) {
  ThreadPool pool(2);
  Memory& memory = ops.memory();
  Arena scratch(memory);
  Runtime rt{pool, scratch, ops, memory};
  const std::vector<int64_t> rows = {5, 0, 3, 2};
  const int64_t n = std::ssize(rows), m = 7;
  const Buffer kb(t, {n, heads, d}, gaps, memory), vb(t, {n, heads, dv}, gaps, memory);
  assign(kb, k);
  assign(vb, v);
  const Tensor kc(code, {m, heads, d}, memory), vc(code, {m, heads, dv}, memory);
  const Tensor scales(DType::bf16, {m, heads, 2}, memory);
  Stored out{std::vector<uint8_t>(size_t(m * heads * d), 0x11),
             std::vector<uint8_t>(size_t(m * heads * dv), 0x22),
             std::vector<bf16>(size_t(m * heads * 2), bf16(3.0f))};
  memory.from_host(kc.view().data, out.k.data(), out.k.size());
  memory.from_host(vc.view().data, out.v.data(), out.v.size());
  memory.from_host(scales.view().data, out.scales.data(), out.scales.size() * 2);
  rt.ops.quantise_kv(rt, {kb, vb, rows.data(), kc, vc, scales});
  memory.synchronize();
  memory.to_host(out.k.data(), kc.view().data, out.k.size());
  memory.to_host(out.v.data(), vc.view().data, out.v.size());
  memory.to_host(out.scales.data(), scales.view().data, out.scales.size() * 2);
  return out;
}

double decoded(DType code, uint8_t bits) {
  if (code == DType::i8) return static_cast<int8_t>(bits);
  f8 x;
  x.bits = bits;
  return static_cast<float>(x);
}

// To the bit, rows that nobody wrote included.
void expect_same(const Stored& got, const Stored& want) {
  const auto bits = [](const std::vector<bf16>& x) {
    std::vector<uint16_t> out;
    for (const bf16 y : x) out.push_back(std::isnan(static_cast<float>(y)) ? uint16_t(0x7fc0) : y.bits);
    return out;
  };
  EXPECT_EQ(bits(got.scales), bits(want.scales));
  EXPECT_EQ(got.k, want.k);
  EXPECT_EQ(got.v, want.v);
}

TEST_P(KvIn8Bits, RowsAreQuantisedAsTheReferenceDoes) {
  const DType t = GetParam().dtype;
  size_t i = 0;
  for (const DType code : kCodes)
    for (const auto& [d, dv] :
         {std::pair<int64_t, int64_t>{128, 128}, {64, 32}, {24, 8}, {80, 40}, {256, 256}})
      for (const double sigma : {1.0, 1e-3, 300.0}) {
        SCOPED_TRACE(fmt::format("{} {}/{} sigma {}", name_of(code), d, dv, sigma));
        Rng rng(++i);
        const Values k = normals(rng, 4 * 3 * d, sigma, t), v = normals(rng, 4 * 3 * dv, sigma, t);
        const Stored want = stored(ref_ops(), DType::f64, code, k, v, 3, d, dv, false);
        expect_same(stored(*GetParam().ops, t, code, k, v, 3, d, dv, i % 2 == 0), want);
      }
}

// A head of zeros, of numbers too small for a scale, of the largest there are, of one NaN, of one infinity;
// its neighbours do not notice.
TEST_P(KvIn8Bits, RowsThatAreZeroHugeOrNotNumbers) {
  const DType t = GetParam().dtype;
  for (const DType code : kCodes) {
    SCOPED_TRACE(name_of(code));
    Rng rng(7);
    const int64_t d = 16;
    Values k = normals(rng, 4 * 3 * d, 1, t), v = normals(rng, 4 * 3 * d, 1, t);
    const auto row = [&](Values& x, int64_t i, double value) { std::fill_n(x.begin() + i * d, d, value); };
    row(k, 0, 0.0);
    row(k, 2, round_to(t, 1e-37));
    row(k, 4, round_to(t, -3e38));
    k[5 * d + 3] = kNaN;
    v[6 * d + 15] = -kInf;
    row(v, 8, -0.0);
    row(v, 9, round_to(t, 2e-36));
    for (int64_t c = 0; c < d; ++c) {  // ties, and the edge between two scales
      v[size_t(10 * d + c)] = double(c) + 0.5 - 8;
      v[size_t(11 * d + c)] = code == DType::i8 ? 127 - double(c) / 2 : 448 - double(c) * 16;
    }
    v[10 * d] = code == DType::i8 ? 127 : 448;
    v[11 * d] = code == DType::i8 ? 127.5 : 450;
    const Stored got = stored(*GetParam().ops, t, code, k, v, 3, d, d, false);
    expect_same(got, stored(ref_ops(), DType::f64, code, k, v, 3, d, d, false));
    const std::vector<int64_t> rows = {5, 0, 3, 2};
    const auto scale = [&](int64_t i, int which) {
      return static_cast<float>(got.scales[size_t((rows[size_t(i / 3)] * 3 + i % 3) * 2 + which)]);
    };
    EXPECT_EQ(scale(0, 0), 0);
    EXPECT_EQ(scale(2, 0), 0);
    EXPECT_GT(scale(4, 0), 3e38f / 500);
    EXPECT_EQ(scale(10, 1), 1);
    EXPECT_EQ(scale(11, 1), 2);
    EXPECT_TRUE(std::isnan(scale(5, 0)));
    EXPECT_FALSE(std::isnan(scale(5, 1)));
    EXPECT_TRUE(std::isnan(scale(6, 1)));
    EXPECT_EQ(scale(8, 1), 0);
  }
}

// An element is off by at most half a step of its row; of f8 by a sixteenth of itself, or half a step of the
// smallest numbers.
TEST_P(KvIn8Bits, ElementsStayWithinHalfAStep) {
  const DType t = GetParam().dtype;
  for (const DType code : kCodes) {
    Rng rng(3);
    const int64_t d = 128;
    const Values k = normals(rng, 4 * d, 2, t), v = normals(rng, 4 * d, 0.01, t);
    const Stored got = stored(*GetParam().ops, t, code, k, v, 1, d, d, false);
    const std::vector<int64_t> rows = {5, 0, 3, 2};
    for (const auto& [x, codes, which] : {std::tuple{&k, &got.k, 0}, {&v, &got.v, 1}})
      for (int64_t i = 0; i < 4; ++i)
        for (int64_t c = 0; c < d; ++c) {
          const double scale = static_cast<float>(got.scales[size_t(rows[size_t(i)] * 2 + which)]);
          const double want = (*x)[size_t(i * d + c)];
          const double off =
              std::fabs(scale * decoded(code, (*codes)[size_t(rows[size_t(i)] * d + c)]) - want);
          const double half = code == DType::i8 ? scale / 2 : std::max(std::fabs(want) / 16, scale * 0x1p-10);
          ASSERT_LE(off, half * (1 + 1e-5)) << name_of(code) << ' ' << i << ' ' << c;
        }
  }
}

// Every shape of the paged sweep, with a past: the oracle reads what codes and scales say.
std::vector<AttentionShape> shapes_of(const Backend& backend, DType code) {
  std::vector<AttentionShape> all = attention_shapes({KvView::Kind::paged}, true, thinning(backend));
  for (AttentionShape& s : all) s.code = code;
  // One token a sequence, as in decoding.
  for (const HeadShape& h : {HeadShape{8, 1, 128, 128}, {4, 2, 64, 64}, {16, 1, 192, 128}, {14, 2, 24, 8}})
    all.push_back({.sequences = {{1, 0}, {1, 700}, {1, 63}, {1, 64}, {1, 255}},
                   .hq = h.hq,
                   .hkv = h.hkv,
                   .d = h.d,
                   .dv = h.dv,
                   .kind = KvView::Kind::paged,
                   .code = code,
                   .seed = 99});
  return all;
}

TEST_P(KvIn8Bits, FullAttentionWithBlockScores) {
  size_t i = 0;
  for (const DType code : kCodes)
    for (const AttentionShape& s : shapes_of(GetParam(), code)) {
      AttentionInputs in(GetParam(), s);
      check_forward(in, {.block = i++ % 3 == 2 ? 0 : 64 >> i % 3});
      if (HasFailure()) return;
    }
}

TEST_P(KvIn8Bits, SparseAttention) {
  size_t i = 0;
  constexpr int64_t kBlocks[] = {64, 16, 4, 1};
  for (const DType code : kCodes)
    for (const AttentionShape& s : shapes_of(GetParam(), code)) {
      AttentionInputs in(GetParam(), s);
      const int64_t block = kBlocks[i % 4], entries = block == 1 ? 33 : block == 4 ? 9 : 3;
      check_forward(in,
                    {.kind = Branch::Kind::sparse, .block = block, .entries = entries, .sinks = i % 3 != 1},
                    random_selection(in, block, entries));
      if (HasFailure()) return;
      ++i;
    }
}

TEST_P(KvIn8Bits, WindowAttentionOverSharedKeys) {
  size_t i = 0;
  constexpr int64_t kWindows[] = {4, 128, 1, 64, 37};
  for (const DType code : kCodes)
    for (const AttentionShape& s : shapes_of(GetParam(), code)) {
      AttentionInputs in(GetParam(), s);
      check_forward(in, {.kind = Branch::Kind::window, .window = kWindows[i % 5], .sinks = i % 3 != 1});
      if (HasFailure()) return;
      ++i;
    }
}

// What is stored must be NaN again when it is read: a request that goes wrong says so.
TEST_P(KvIn8Bits, ARowThatIsNoNumberReadsAsNaN) {
  for (const DType code : kCodes) {
    const AttentionShape s{.sequences = {{1, 80}, {1, 80}}, .kind = KvView::Kind::paged, .code = code};
    AttentionInputs in(GetParam(), s, [](char kind, int64_t s, int64_t p, int64_t g, int64_t c, double x) {
      return kind == 'v' && s == 1 && p == 70 && g == 0 && c == 5 ? kInf : x;
    });
    Bench& b = in.bench;
    const Pair &o = b.out({2, 4, 32}), &lse = b.out_acc({2, 4});
    b.run([&](int i, Runtime& rt) {
      rt.ops.attention(rt, {in.batch, in.q()[i], in.kv(i), in.scale, o[i], lse[i]});
    });
    for (const Values& got : {o.got(), o.ref()})
      for (size_t i = 0; i < got.size(); ++i) {
        const size_t row = i / 128, head = i / 32 % 4;
        ASSERT_EQ(std::isnan(got[i]), row == 1 && head < 2) << name_of(code) << ' ' << i;
      }
  }
}

// What no view may be.
TEST_P(KvIn8Bits, ViewsThatContradictThemselvesAreRefused) {
  const AttentionShape s{.sequences = {{1, 8}}, .kind = KvView::Kind::paged, .code = DType::i8};
  AttentionInputs in(GetParam(), s);
  Bench& b = in.bench;
  const Pair &o = b.out({1, 4, 32}), &lse = b.out_acc({1, 4});
  ThreadPool pool(1);
  Arena scratch(GetParam().ops->memory());
  Runtime rt{pool, scratch, *GetParam().ops, GetParam().ops->memory()};
  KvView without = in.kv(1), other = in.kv(1), mixed = in.kv(1);
  without.scales = {};
  other.scales.dtype = DType::f32;
  mixed.v.dtype = DType::f8;
  for (const KvView& kv : {without, other, mixed})
    EXPECT_THROW(rt.ops.attention(rt, {in.batch, in.q()[1], kv, in.scale, o[1], lse[1]}), Error);
}

HYSPARSE_KERNEL_SUITE(KvIn8Bits);

}  // namespace
}  // namespace hysparse::test
