// Faults that public reports tell of, as tests of any backend; the reference runs them too (unit/ref). Each
// names the row of the project's collection of such reports that it comes from.
#pragma once

#include "parity/kernels/attention_checks.h"

namespace hysparse::test {

// BC-01. A query sees itself and the window - 1 keys before it, no more, on every path.
inline void window_bound(const Backend& backend) {
  constexpr int64_t kWindow = 128, kLength = 400, kHalf = 200;  // V = one-hot of the position, in two halves
  const std::vector<int64_t> queries = {0, 1, 126, 127, 128, 399};
  const auto check_weight = [&](double weight, int64_t query, int64_t key, const char* path) {
    const int64_t distance = query - key;
    if (distance < 0 || distance >= kWindow) {
      ASSERT_EQ(weight, 0) << path << ": query " << query << " sees key " << key;
    } else {
      const double expected = 1.0 / double(std::min(query + 1, kWindow));
      ASSERT_NEAR(weight, expected, 8 * epsilon(backend.dtype) * expected)
          << path << ": query " << query << ", key " << key;
    }
  };
  struct Path {
    const char* name;
    std::vector<Sequence> sequences;
  };
  std::vector<Path> paths = {{"prefill", {{kLength, 0}}}};
  for (const int64_t chunk : {1, 7, 64, 100}) {
    Path path{"chunks", {}};  // each chunk is a sequence of its own over its own copy of the past
    for (int64_t past = 0; past < kLength; past += chunk)
      if (chunk > 7 || past % 63 == 0 || past > kLength - 8)
        path.sequences.push_back({std::min(chunk, kLength - past), past});
    paths.push_back(path);
  }
  Path decode{"decode", {}};
  for (const int64_t query : queries) decode.sequences.push_back({1, query});
  paths.push_back(decode);
  for (const KvView::Kind kind : every_kind())
    for (const Path& path : paths)
      for (const int64_t half : {0, 1}) {
        SCOPED_TRACE(path.name);
        AttentionShape shape{.sequences = path.sequences,
                             .hq = 1,
                             .hkv = 1,
                             .d = 8,
                             .dv = kHalf,
                             .kind = kind,
                             .ring_len = kWindow};
        AttentionInputs in(backend, shape, [&](char what, int64_t, int64_t p, int64_t, int64_t c, double x) {
          if (what == 'q') return x;
          return what == 'v' && p == c + half * kHalf ? 1.0 : 0.0;  // k = 0: all scores equal
        });
        const Values o = check_forward(in, {.kind = Branch::Kind::window, .window = kWindow}).o;
        if (::testing::Test::HasFailure()) return;
        for (int64_t row = 0; row < in.n(); ++row) {
          const int64_t t = in.position(row);
          const bool listed = std::find(queries.begin(), queries.end(), t) != queries.end();
          for (int64_t c = 0; listed && c < kHalf; ++c)
            check_weight(o[size_t(row * kHalf + c)], t, c + half * kHalf, path.name);
        }
      }
  // dV[p, c] = sum_t P[t, p] d_o[t, c]: with d_o picking query c, dV holds that query's weights.
  AttentionInputs in(
      backend, {.sequences = {{kLength, 0}}, .hq = 1, .hkv = 1, .d = 8, .dv = 8},
      [](char what, int64_t, int64_t, int64_t, int64_t, double x) { return what == 'k' ? 0.0 : x; });
  Bench& b = in.bench;
  Values lse_values, d_o_values(size_t(kLength * 8), 0.0);
  for (int64_t t = 0; t < kLength; ++t)
    lse_values.push_back(round_to(b.acc(), std::log(double(std::min(t + 1, kWindow)))));
  for (size_t c = 0; c < queries.size(); ++c) d_o_values[size_t(queries[c] * 8) + c] = 1;
  const Pair& o = b.in({kLength, 1, 8});
  const Pair& lse = b.in_values(b.acc(), {kLength, 1}, lse_values);
  const Pair& d_o = b.in_values(b.t(), {kLength, 1, 8}, d_o_values);
  const Pair& dq = b.out({kLength, 1, 8});
  const Pair& dk = b.in_place(b.acc(), {in.kv_rows(), 1, 8}, 0);
  const Pair& dv = b.in_place(b.acc(), {in.kv_rows(), 1, 8}, 0);
  b.run([&](int i, Runtime& rt) {
    rt.ops.window_attention_backward(rt, {in.batch,
                                          in.q()[i],
                                          in.kv(i),
                                          kWindow,
                                          in.scale,
                                          {},
                                          o[i],
                                          lse[i],
                                          d_o[i],
                                          dq[i],
                                          dk[i],
                                          dv[i],
                                          {}});
  });
  const Values weights = dv.got();
  for (int64_t p = 0; p < kLength; ++p)
    for (size_t c = 0; c < queries.size(); ++c)
      check_weight(weights[size_t((in.cu_kv(0) + p) * 8) + c], queries[c], p, "dV");
}

// BC-02 a. An index list whose first tiles are all padding, with a valid block behind.
inline void padding_before_a_block(const Backend& backend) {
  for (const int64_t padding : {1, 15, 16, 63, 64, 128})
    for (const bool sinks : {false, true}) {
      const AttentionShape shape{.sequences = {{70, 0}, {6, 90}}, .hq = 4, .hkv = 2, .d = 32, .dv = 32};
      AttentionInputs forward(backend, shape), backward(backend, shape);
      const int64_t entries = padding + 1;
      Values idx(size_t(forward.n() * 2 * entries), -1);
      for (int64_t i = 0; i < forward.n() * 2; ++i) idx[size_t((i + 1) * entries - 1)] = 0;
      const Branch branch{.kind = Branch::Kind::sparse, .block = 64, .entries = entries, .sinks = sinks};
      check_forward(forward, branch, idx);
      check_backward(backward, branch, idx);
    }
}

// BC-02 b. Nothing but padding: o = 0, zero gradients, lse = sink (-inf without one), and no harm to other
// rows.
inline void nothing_but_padding(const Backend& backend) {
  for (const bool sinks : {false, true})
    for (const bool some : {false, true}) {  // some rows do have a block
      const AttentionShape shape{.sequences = {{70, 0}, {6, 90}}, .hq = 4, .hkv = 2, .d = 32, .dv = 32};
      AttentionInputs forward(backend, shape), backward(backend, shape);
      const int64_t n = forward.n();
      Values idx(size_t(n * 2 * 3), -1);
      for (int64_t i = 0; some && i < n * 2; i += 5) idx[size_t(i * 3 + 1)] = 0;
      const Branch branch{.kind = Branch::Kind::sparse, .block = 16, .entries = 3, .sinks = sinks};
      const ForwardResult f = check_forward(forward, branch, idx);
      const BackwardResult g = check_backward(backward, branch, idx);
      for (const Values* x : {&f.o, &g.dq, &g.dk, &g.dv, &g.dsinks})
        for (double e : *x) ASSERT_TRUE(std::isfinite(e));
      for (int64_t row = 0; row < n; ++row)
        for (int64_t h = 0; h < 4; ++h) {
          if (some && (row * 2 + h / 2) % 5 == 0) continue;
          for (int64_t c = 0; c < 32; ++c) {
            ASSERT_EQ(f.o[size_t((row * 4 + h) * 32 + c)], 0);
            ASSERT_EQ(g.dq[size_t((row * 4 + h) * 32 + c)], 0);
          }
        }
      if (!some) {
        EXPECT_EQ(g.dk, g.dk_start);
        EXPECT_EQ(g.dv, g.dv_start);
      }
    }
}

// BC-02 c. Dot products of 115,200 before scaling, in every branch, forward and backward.
inline void huge_raw_dots(const Backend& backend) {
  const AttentionShape shape{.sequences = {{70, 0}, {3, 64}}, .hq = 4, .hkv = 2, .d = 128, .dv = 128};
  const AttentionInputs::Change thirty = [](char what, int64_t, int64_t, int64_t, int64_t, double x) {
    return what == 'v' ? x : 30.0;
  };
  for (const Branch& branch : {Branch{.kind = Branch::Kind::full, .block = 16},
                               {.kind = Branch::Kind::sparse, .block = 16, .entries = 3, .sinks = true},
                               {.kind = Branch::Kind::window, .window = 32, .sinks = true}}) {
    AttentionInputs forward(backend, shape, thirty), backward(backend, shape, thirty);
    const bool sparse = branch.kind == Branch::Kind::sparse;
    const ForwardResult f =
        check_forward(forward, branch, sparse ? random_selection(forward, 16, 3) : Values{});
    const BackwardResult g =
        check_backward(backward, branch, sparse ? random_selection(backward, 16, 3) : Values{});
    for (const Values* x : {&f.o, &g.dq, &g.dk, &g.dv, &g.dsinks})
      for (double e : *x) ASSERT_TRUE(std::isfinite(e));
  }
}

// BC-03. Lengths around a block, top-k below and above the block count, true scores near -20, and memory past
// the end that would dominate if it were read.
inline void lengths_and_strays(const Backend& backend) {
  const std::vector<int64_t> lengths = {1, 2, 63, 64, 65, 127, 128, 129, 191, 193};
  std::vector<std::vector<Sequence>> batches;
  std::vector<Sequence> mixed;
  for (const int64_t length : lengths) {
    batches.push_back({{length, 0}});
    batches.push_back({{1, length - 1}});
    mixed.push_back(length % 2 ? Sequence{1, length - 1} : Sequence{length, 0});
  }
  batches.push_back(mixed);
  const auto near_minus_20 = [](char what, int64_t, int64_t, int64_t, int64_t c, double x) {
    if (what == 'q') return c == 0 ? 20 + 0.1 * x : 0.25 * x;
    if (what == 'k') return c == 0 ? -4 + 0.01 * x : 0.25 * x;  // scale q.k ~ 20 * -4 / sqrt(16)
    return x;
  };
  for (const double stray : {kNaN, 1e4})
    for (const KvView::Kind kind : every_kind())
      for (const std::vector<Sequence>& sequences : batches) {
        AttentionShape shape{
            .sequences = sequences, .hq = 2, .hkv = 1, .d = 16, .dv = 16, .kind = kind, .stray = stray};
        AttentionInputs full(backend, shape, near_minus_20);
        const ForwardResult dense = check_forward(full, {.block = 64});
        const int64_t n = full.n(), nblocks = int64_t(dense.scores.size()) / n;
        for (const int64_t topk : {1, 2, 100}) {
          SCOPED_TRACE(::testing::Message() << "stray " << stray << ", top-k " << topk);
          Bench select(backend);
          const Pair& scores = select.in_values(backend.acc(), {n, 1, nblocks}, dense.scores);
          const Pair& idx = select.out_type(DType::i32, {n, 1, topk});
          select.run([&](int i, Runtime& rt) {
            rt.ops.select_blocks(rt, {full.batch, scores[i], 64, false, false, idx[i]});
          });
          ASSERT_EQ(idx.got(), idx.ref());
          AttentionInputs in(backend, shape, near_minus_20);
          const ForwardResult sparse =
              check_forward(in, {.kind = Branch::Kind::sparse, .block = 64, .entries = topk}, idx.got(),
                            topk == 100 ? causal_mask() : Mask{});  // more entries than blocks: dense
          if (::testing::Test::HasFailure()) return;
        }
        shape.ring_len = 64;
        AttentionInputs window(backend, shape, near_minus_20);
        check_forward(window, {.kind = Branch::Kind::window, .window = 64});
        if (::testing::Test::HasFailure()) return;
      }
  // Backward reads the same memory.
  for (const double stray : {kNaN, 1e4})
    for (const int64_t length : lengths) {
      const AttentionShape shape{
          .sequences = {{length, 0}, {1, 0}}, .hq = 2, .hkv = 1, .d = 16, .dv = 16, .stray = stray};
      AttentionInputs full(backend, shape, near_minus_20), sparse(backend, shape, near_minus_20),
          window(backend, shape, near_minus_20);
      check_backward(full, {});
      check_backward(sparse, {.kind = Branch::Kind::sparse, .block = 64, .entries = 4}, all_blocks(sparse, 4),
                     causal_mask());
      check_backward(window, {.kind = Branch::Kind::window, .window = 64});
      if (::testing::Test::HasFailure()) return;
    }
}

// BC-04. Every head size and head ratio: all blocks listed = dense causal; then a random 2-block list, where
// the gradients of keys that nobody chose keep their dirty start to the bit (check_backward sees to that).
inline void head_shapes_and_gradients(const Backend& backend) {
  constexpr int64_t kBlock = 16;
  for (const auto& [hq, hkv] : {std::pair<int64_t, int64_t>{4, 4}, {4, 2}, {7, 1}, {28, 4}})
    for (const int64_t d : {32, 64, 72, 80, 96, 128}) {
      const AttentionShape shape{.sequences = {{45, 0}, {20, 0}}, .hq = hq, .hkv = hkv, .d = d, .dv = d};
      {
        AttentionInputs forward(backend, shape), backward(backend, shape);
        const Branch all{.kind = Branch::Kind::sparse, .block = kBlock, .entries = 3};
        check_forward(forward, all, all_blocks(forward, 3), causal_mask());
        check_backward(backward, all, all_blocks(backward, 3), causal_mask());
      }
      AttentionInputs forward(backend, shape), backward(backend, shape);
      const Branch two{.kind = Branch::Kind::sparse, .block = kBlock, .entries = 2, .sinks = true};
      const Values idx = random_selection(forward, kBlock, 2);
      check_forward(forward, two, idx);
      check_backward(backward, two, idx);
      // dgate of the branch's output
      Bench b(backend);
      const Pair& o = b.in({65, hq, d});
      const Pair& gate = b.in_acc({65, hq});
      const Pair& d_out = b.in({65, hq, d});
      const Pair& da = b.out({65, hq, d});
      const Pair& dgate = b.out_acc({65, hq});
      b.run([&](int i, Runtime& rt) {
        rt.ops.gated_sum_backward(rt, {o[i], gate[i], {}, {}, d_out[i], da[i], {}, dgate[i], {}});
      });
      Values sizes(size_t(65 * hq), 0.0);
      const Values x = o.ref(), dx = d_out.ref();
      for (size_t i = 0; i < x.size(); ++i) sizes[i / size_t(d)] += std::fabs(x[i] * dx[i]);
      EXPECT_TRUE(b.close("dgate", dgate, sizes));
      EXPECT_TRUE(b.close("da", da, dx, 8, epsilon(b.acc())));
      if (::testing::Test::HasFailure()) return;
    }
}

// BC-38. Packed documents: whatever the first one holds, the others are what they are alone. The oracle of
// check_forward knows documents only, so it is "being run alone"; here the first document changes and the
// others' results must not move by a bit, nor when a document is really run alone (within the kernel's own
// rounding).
inline void packed_documents(const Backend& backend) {
  const std::vector<Sequence> documents = {{100, 0}, {1, 0}, {1, 0}, {63, 0}, {64, 0}, {200, 0}};
  const AttentionShape shape{.sequences = documents, .hq = 4, .hkv = 2, .d = 32, .dv = 32};
  const AttentionInputs::Change other_first = [](char, int64_t s, int64_t, int64_t, int64_t, double x) {
    return s == 0 ? -2 * x + 1 : x;
  };
  const auto tail = [](const Values& x, int64_t from) { return Values(x.begin() + from, x.end()); };
  for (const Branch& branch : {Branch{.kind = Branch::Kind::full, .block = 64},
                               {.kind = Branch::Kind::sparse, .block = 64, .entries = 2, .sinks = true},
                               {.kind = Branch::Kind::window, .window = 128, .sinks = true}}) {
    AttentionInputs a(backend, shape), b(backend, shape, other_first), ga(backend, shape),
        gb(backend, shape, other_first);
    Values idx;
    if (branch.kind == Branch::Kind::sparse) idx = random_selection(a, 64, 2);
    if (branch.kind == Branch::Kind::sparse)
      (void)random_selection(b, 64, 2);  // the same draws on both sides
    const ForwardResult fa = check_forward(a, branch, idx), fb = check_forward(b, branch, idx);
    const BackwardResult ba = check_backward(ga, branch, idx), bb = check_backward(gb, branch, idx);
    if (::testing::Test::HasFailure()) return;
    EXPECT_NE(fa.o, fb.o);
    EXPECT_EQ(tail(fa.o, 100 * 4 * 32), tail(fb.o, 100 * 4 * 32));
    EXPECT_EQ(tail(fa.lse, 100 * 4), tail(fb.lse, 100 * 4));
    if (!fa.scores.empty()) {
      const int64_t from = 100 * int64_t(fa.scores.size()) / a.n();
      EXPECT_EQ(tail(fa.scores, from), tail(fb.scores, from));
      for (size_t i = 0; i < fa.scores.size(); ++i) {  // blocks are counted within the document
        const int64_t nblocks = int64_t(fa.scores.size()) / a.n() / 2, row = int64_t(i) / (2 * nblocks);
        if (int64_t(i) % nblocks > a.position(row) / 64) {
          ASSERT_EQ(fa.scores[i], -kInf);
        }
      }
    }
    EXPECT_EQ(tail(ba.dq, 100 * 4 * 32), tail(bb.dq, 100 * 4 * 32));
    EXPECT_EQ(tail(ba.dk, ga.cu_kv(1) * 2 * 32), tail(bb.dk, gb.cu_kv(1) * 2 * 32));
    EXPECT_EQ(tail(ba.dv, ga.cu_kv(1) * 2 * 32), tail(bb.dv, gb.cu_kv(1) * 2 * 32));
    for (size_t s = 1; s < documents.size(); ++s) {
      const int64_t first = a.batch.cu_q[s], length = a.batch.q_len(int64_t(s));
      const Values q = a.q().ref();
      AttentionInputs alone(backend, {.sequences = {documents[s]}, .hq = 4, .hkv = 2, .d = 32, .dv = 32},
                            [&](char what, int64_t, int64_t p, int64_t g, int64_t c, double) {
                              if (what == 'q') return q[size_t(((first + p) * 4 + g) * 32 + c)];
                              return (what == 'k' ? a.k_of : a.v_of)[s][size_t((p * 2 + g) * 32 + c)];
                            });
      Branch without_sinks = branch;  // sinks are drawn, so they would differ
      without_sinks.sinks = false;
      Values part;
      if (!idx.empty()) part = Values(idx.begin() + first * 2 * 2, idx.begin() + (first + length) * 2 * 2);
      AttentionInputs packed(backend, shape);
      const ForwardResult together = check_forward(packed, without_sinks, idx);
      const ForwardResult one = check_forward(alone, without_sinks, part);
      for (int64_t i = 0; i < length * 4 * 32; ++i)
        ASSERT_NEAR(one.o[size_t(i)], together.o[size_t(first * 4 * 32 + i)], 4 * epsilon(backend.dtype) * 4);
      for (int64_t i = 0; i < length * 4; ++i) {
        const double x = one.lse[size_t(i)], y = together.lse[size_t(first * 4 + i)];
        ASSERT_TRUE(x == y || std::fabs(x - y) <= 16 * epsilon(backend.acc())) << x << " alone, " << y;
      }
    }
  }
}

}  // namespace hysparse::test
