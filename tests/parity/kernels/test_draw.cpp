// Drawing tokens: the same ones as the reference, whatever the settings.
#include <cmath>
#include <vector>

#include "parity/kernels/cases.h"

namespace hysparse::test {
namespace {

class Draw : public KernelTest {};

std::vector<DrawSettings> many_settings(Rng& rng, int64_t n, int64_t vocab) {
  std::vector<DrawSettings> all;
  for (int64_t i = 0; i < n; ++i) {
    DrawSettings s;
    s.temperature = std::vector<double>{1, 0, 0.6, 1.7, 0.05, 30}[rng.below(6)];
    s.top_k = std::vector<int64_t>{0, 0, 1, 5, 40, vocab - 1, 3 * vocab}[rng.below(7)];
    s.top_p = std::vector<double>{1, 0.9, 0.5, 0.01, 0.999}[rng.below(5)];
    s.min_p = std::vector<double>{0, 0, 0.05, 1}[rng.below(4)];
    s.uniform = rng.below(8) == 0 ? 0.0 : rng.uniform();
    s.vocab = rng.below(3) == 0 ? vocab - int64_t(rng.below(uint64_t(std::min<int64_t>(vocab, 9)))) : vocab;
    all.push_back(s);
  }
  return all;
}

// Normal logits, few values (ties), one value (what is told apart is told by ids), a far peak, absent tokens.
Values many_logits(Rng& rng, int64_t n, int64_t vocab) {
  Values x;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t style = rng.below(6);
    for (int64_t j = 0; j < vocab; ++j) {
      double v = 4 * rng.normal();
      if (style == 1) v = double(rng.below(4));
      if (style == 2) v = -0.5;
      if (style == 3 && j == vocab / 2) v = 200;
      if (style == 4 && rng.below(2)) v = -kInf;
      if (style == 5) v = 1e-4 * rng.normal();
      x.push_back(round_to(DType::f32, v));
    }
    if (style == 4) x.back() = 1;
  }
  return x;
}

TEST_P(Draw, EqualsTheReference) {
  for (const int64_t vocab : {1, 2, 37, 1024, 5000, 40000}) {
    SCOPED_TRACE(::testing::Message() << vocab << " tokens");
    Bench b(GetParam(), uint64_t(vocab), vocab == 5000);
    const int64_t n = vocab > 5000 ? 40 : 120;
    const Pair& logits = b.in_values(b.acc(), {n, vocab}, many_logits(b.rng(), n, vocab));
    const std::vector<DrawSettings> rows = many_settings(b.rng(), n, vocab);
    const Pair& tokens = b.out_type(DType::i32, {n});
    bool drew = false;
    b.run([&](int i, Runtime& rt) { drew = rt.ops.draw_tokens(rt, {logits[i], rows, tokens[i]}); });
    if (!drew) return;  // on the CPU the engine draws
    for (int64_t i = 0; i < n; ++i)
      EXPECT_EQ(tokens.got()[size_t(i)], tokens.ref()[size_t(i)])
          << "row " << i << ": temperature " << rows[size_t(i)].temperature << ", top_k "
          << rows[size_t(i)].top_k << ", top_p " << rows[size_t(i)].top_p << ", min_p "
          << rows[size_t(i)].min_p << ", uniform " << rows[size_t(i)].uniform;
  }
}

TEST_P(Draw, SaysWhereLogitsAreNoNumbers) {
  Bench b(GetParam(), 3);
  Values x(4 * 700, 0.0);
  x[699] = kNaN;
  x[700 + 3] = kInf;
  for (int j = 0; j < 700; ++j) x[size_t(2 * 700 + j)] = -kInf;
  const Pair& logits = b.in_values(b.acc(), {4, 700}, x);
  const Pair& tokens = b.out_type(DType::i32, {4});
  const std::vector<DrawSettings> rows(4, {.temperature = 0, .vocab = 700});
  bool drew = false;
  b.run([&](int i, Runtime& rt) { drew = rt.ops.draw_tokens(rt, {logits[i], rows, tokens[i]}); });
  if (drew) EXPECT_EQ(tokens.got(), (Values{-1, -1, -1, 0}));
}

HYSPARSE_KERNEL_SUITE(Draw);

}  // namespace
}  // namespace hysparse::test
