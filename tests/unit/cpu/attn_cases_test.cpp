// Faults that other programs had, as tests: window bounds, padded index lists, ragged last blocks, head
// shapes, offsets beyond 32 bits, refused arguments.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "unit/cpu/attn_case.h"

namespace hysparse::test {
namespace {

// All scores equal and V the one-hot of the position, so that o[t, p] is the weight of key p.
struct OneHot {
  static constexpr int64_t kLength = 400, kWindow = 128;
  Tensor q{DType::f32, {kLength, 1, 8}}, k{DType::f32, {kLength, 1, 8}}, v{DType::f32, {kLength, 1, kLength}};
  Tensor o{DType::f32, {kLength, 1, kLength}}, lse{DType::f32, {kLength, 1}}, sinks{DType::f32, {1}};
  int64_t cu_kv[2] = {0, kLength};
  ThreadPool pool{2};
  Arena scratch;
  Runtime rt{pool, scratch, ref_ops(), host_memory()};

  OneHot() {
    for (int64_t i = 0; i < kLength; ++i) v.view().as<float>()[i * kLength + i] = 1;
    sinks.view().as<float>()[0] = -std::numeric_limits<float>::infinity();
  }
  KvView contiguous() const {
    KvView kv;
    kv.k = k;
    kv.v = v;
    kv.cu_kv = cu_kv;
    return kv;
  }
  // Queries [begin, end) after begin cached tokens.
  void run(int64_t begin, int64_t end, const KvView& kv) {
    RaggedBatch batch;
    batch.add_sequence(end - begin, begin);
    cpu_window_attention(rt, {batch, q.view().rows(begin, end), kv, kWindow, 1, sinks,
                              o.view().rows(begin, end), lse.view().rows(begin, end)});
  }
  void expect_window(const std::string& path, double relative = 1e-7) {
    for (const int64_t t : {0, 1, 126, 127, 128, 399}) {
      const float* weight = o.view().as<float>() + t * kLength;
      const double due = 1.0 / static_cast<double>(std::min(t + 1, kWindow));
      for (int64_t p = 0; p < kLength; ++p)
        if (p > t || p < t - kWindow + 1)
          EXPECT_EQ(weight[p], 0) << path << ": query " << t << ", key " << p;
        else
          EXPECT_NEAR(weight[p], due, relative * due) << path << ": query " << t << ", key " << p;
    }
    Buffer::poison(o);
  }
};

TEST(CpuCases, WindowSeesExactlyItsKeys) {
  OneHot x;
  x.run(0, 400, x.contiguous());
  x.expect_window("prefill");
  for (int64_t t = 0; t < 400; ++t) x.run(t, t + 1, x.contiguous());
  x.expect_window("decode");
  for (int64_t t = 0; t < 400; t += 50) x.run(t, t + 50, x.contiguous());
  x.expect_window("chunks");
  // A ring that holds just the window, token by token.
  Tensor ring_k{DType::f32, {1, 128, 1, 8}}, ring_v{DType::f32, {1, 128, 1, 400}};
  Buffer::poison(ring_k);
  Buffer::poison(ring_v);
  const int32_t slot = 0;
  for (int64_t t = 0; t < 400; ++t) {
    KvView kv;
    kv.kind = KvView::Kind::ring;
    kv.k = ring_k;
    kv.v = ring_v;
    kv.fresh_k = x.k.view().rows(t, t + 1);
    kv.fresh_v = x.v.view().rows(t, t + 1);
    kv.slot = &slot;
    kv.ring_len = 128;
    x.run(t, t + 1, kv);
    std::copy_n(kv.fresh_k.as<float>(), 8, ring_k.view().as<float>() + t % 128 * 8);
    std::copy_n(kv.fresh_v.as<float>(), 400, ring_v.view().as<float>() + t % 128 * 400);
  }
  x.expect_window("ring");

  // Backward: d_o of query t is one-hot of t, so dv[p, t] is the weight of key p in query t.
  x.run(0, 400, x.contiguous());
  RaggedBatch batch;
  batch.add_sequence(400);
  Tensor d_o{DType::f32, {400, 1, 400}}, dq{DType::f32, {400, 1, 8}}, dk{DType::f32, {400, 1, 8}};
  Tensor dv{DType::f32, {400, 1, 400}};
  for (int64_t t = 0; t < 400; ++t) d_o.view().as<float>()[t * 400 + t] = 1;
  cpu_window_attention_backward(
      x.rt, {batch, x.q, x.contiguous(), 128, 1, x.sinks, x.o, x.lse, d_o, dq, dk, dv, {}});
  for (int64_t t = 0; t < 400; ++t)
    for (int64_t p = 0; p < 400; ++p)
      x.o.view().as<float>()[t * 400 + p] = dv.view().as<float>()[p * 400 + t];
  x.expect_window("backward", 2e-6);  // the lse is rounded
}

// Index lists that begin with a whole tile of padding, or are nothing else.
TEST(CpuCases, PaddedIndexLists) {
  for (const DType t : {DType::f32, DType::bf16})
    for (const int64_t block : {1, 4, 16, 64})
      for (const bool sinks : {true, false}) {
        AttnCase c({.sequences = {{70}, {1, 80}}, .d = 128, .dv = 128}, t, 41);
        const int64_t entries = 200;
        std::vector<double> list(size_t(c.n() * 2 * entries), -1.0);
        for (int64_t i = 0; i < c.n() * 2; ++i)
          if (i % 3 != 0) list[size_t(i * entries + 150)] = 0;
        const Pair idx = c.of(DType::i32, {c.n(), 2, entries}, list);
        const Pair sink = c.input_acc({4});
        const TensorView no;
        const Pair o = c.output(t, {c.n(), 4, 128}), lse = c.output(DType::f32, {c.n(), 4});
        const Pair d_o = c.input({c.n(), 4, 128}), dq = c.output(t, {c.n(), 4, 128});
        const Pair dk =
            c.of(DType::f32, {c.kv_rows(), 2, 128}, std::vector<double>(size_t(c.kv_rows() * 256), 0.0));
        const Pair dv =
            c.of(DType::f32, {c.kv_rows(), 2, 128}, std::vector<double>(size_t(c.kv_rows() * 256), 0.0));
        const Pair ds = c.of(DType::f32, {4}, {0, 0, 0, 0});
        c.run([&](int i, Runtime& rt) {
          const TensorView s = sinks ? sink[i] : no, dsinks = sinks ? ds[i] : no;
          const SparseAttentionForward f{c.batch,   c.q[i], c.kv(i), {idx[i], block},
                                         c.scale(), s,      o[i],    lse[i]};
          const SparseAttentionBackward b{c.batch, c.q[i], c.kv(i), {idx[i], block}, c.scale(), s,     o[i],
                                          lse[i],  d_o[i], dq[i],   dk[i],           dv[i],     dsinks};
          if (i == 0) {
            rt.ops.sparse_attention(rt, f);
            rt.ops.sparse_attention_backward(rt, b);
          } else {
            cpu_sparse_attention(rt, f);
            cpu_sparse_attention_backward(rt, b);
          }
        });
        SCOPED_TRACE(fmt::format("{} block {} sinks {}", name_of(t), block, sinks));
        EXPECT_TRUE(c.close("o", o));
        EXPECT_TRUE(c.close("lse", lse));
        // In bf16 the backward starts from a rounded o.
        const double ulps = t == DType::bf16 ? 0x1p17 : 64;
        for (const auto& [name, p] : {std::pair{"dq", &dq}, {"dk", &dk}, {"dv", &dv}, {"dsinks", &ds}})
          EXPECT_TRUE(c.close(name, *p, ulps, 1));
      }
}

// Every entry of q and k is 30: raw dots of 115,200.
TEST(CpuCases, LargeEqualEntries) {
  for (const DType t : {DType::f32, DType::bf16}) {
    AttnCase c({.sequences = {{130}}, .d = 128, .dv = 128}, t, 42);
    fill(c.q[0], 30);
    fill(c.q[1], 30);
    for (int i = 0; i < 2; ++i)
      for (int64_t p = 0; p < 130; ++p)
        for (int64_t j = 0; j < 256; ++j) store(c.kv(i).k, c.kv(i).row(c.batch, 0, p).k_offset + j, 30);
    const Pair idx = c.selection(16, 4);
    const Pair o = c.output(t, {130, 4, 128}), lse = c.output(DType::f32, {130, 4});
    c.run([&](int i, Runtime& rt) {
      const SparseAttentionForward f{c.batch, c.q[i], c.kv(i), {idx[i], 16}, c.scale(), {}, o[i], lse[i]};
      i == 0 ? rt.ops.sparse_attention(rt, f) : cpu_sparse_attention(rt, f);
    });
    EXPECT_TRUE(c.close("o", o));
    EXPECT_TRUE(c.close("lse", lse));
  }
}

// All true scores near -20, so that a stray zero score would dominate; what lies past a length is NaN, then
// 1e4.
TEST(CpuCases, RaggedLastBlocks) {
  for (const double beyond : {kNaN, 1e4})
    for (const int64_t entries : {1, 2, 100}) {
      AttnShape shape{.d = 64, .dv = 64};
      for (const int64_t length : {1, 2, 63, 64, 65, 127, 128, 129, 191, 193}) {
        shape.sequences.push_back({length});         // prefill
        shape.sequences.push_back({1, length - 1});  // decode
      }
      AttnCase c(shape, DType::f32, 43);
      for (int i = 0; i < 2; ++i) {
        if (!std::isnan(beyond))
          for (const TensorView& x : {c.kv(i).k, c.kv(i).v})
            for (int64_t at : offsets(x))
              if (std::isnan(load(x, at))) store(x, at, beyond);
        // q . k * scale = -20 + noise
        for (int64_t row = 0; row < c.n() * 4; ++row) store(c.q[i], row * 64, 16);
        for (int64_t s = 0; s < c.batch.sequences(); ++s)
          for (int64_t p = 0; p < c.batch.kv_len(s); ++p)
            for (int64_t g = 0; g < 2; ++g)
              store(c.kv(i).k, c.kv(i).row(c.batch, s, p).k_offset + g * 64, -10);
      }
      const Pair o = c.output(DType::f32, {c.n(), 4, 64}), lse = c.output(DType::f32, {c.n(), 4});
      const Pair os = c.output(DType::f32, {c.n(), 4, 64}), lses = c.output(DType::f32, {c.n(), 4});
      const Pair ow = c.output(DType::f32, {c.n(), 4, 64}), lsew = c.output(DType::f32, {c.n(), 4});
      const Pair idx = c.output(DType::i32, {c.n(), 2, entries});
      c.run([&](int i, Runtime& rt) {
        const AttentionSelect a{
            {c.batch, c.q[i], c.kv(i), c.scale(), o[i], lse[i]}, 64, false, false, false, 0, 0, idx[i]};
        i == 0 ? rt.ops.attention_select(rt, a) : cpu_attention_select(rt, a);
        if (i == 0) assign(idx[1], idx.ref());
        const SparseAttentionForward s{c.batch, c.q[i], c.kv(i), {idx[0], 64}, c.scale(), {}, os[i], lses[i]};
        i == 0 ? rt.ops.sparse_attention(rt, s) : cpu_sparse_attention(rt, s);
        const WindowAttentionForward w{c.batch, c.q[i], c.kv(i), 100, c.scale(), {}, ow[i], lsew[i]};
        i == 0 ? rt.ops.window_attention(rt, w) : cpu_window_attention(rt, w);
      });
      EXPECT_TRUE(c.close("o", o));
      EXPECT_TRUE(c.close("lse", lse));
      EXPECT_TRUE(c.close("sparse o", os));
      EXPECT_TRUE(c.close("sparse lse", lses));
      EXPECT_TRUE(c.close("window o", ow));
      EXPECT_TRUE(c.close("window lse", lsew));
      if (entries == 100) {  // more entries than blocks: dense attention
        const std::vector<double> dense = o.got(), sparse = os.got();
        for (size_t j = 0; j < dense.size(); ++j) ASSERT_NEAR(sparse[j], dense[j], 1e-5);
      }
    }
}

// Token rows far apart: offsets beyond 2^31 elements. Pages that are not touched cost nothing.
TEST(CpuCases, OffsetsBeyond32Bits) {
  const int64_t tokens = 5, stride = int64_t(1) << 30;
  struct Sparse {
    explicit Sparse(int64_t count) : bytes(static_cast<size_t>(count) * 4) {
      data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    ~Sparse() {
      if (data != MAP_FAILED) munmap(data, bytes);
    }
    size_t bytes;
    void* data;
  } memory(tokens * stride);
  ASSERT_NE(memory.data, MAP_FAILED);
  AttnCase c({.sequences = {{tokens}}, .hq = 2, .hkv = 1}, DType::f32, 44);
  const auto spread = [&](int64_t offset, int64_t heads) {
    TensorView v(static_cast<float*>(memory.data) + offset, DType::f32, {tokens, heads, 16});
    v.stride[0] = stride;
    return v;
  };
  const TensorView q = spread(0, 2), k = spread(100, 1), v = spread(200, 1), o = spread(300, 2);
  assign(q, values(c.q[1]));
  assign(k, values(c.kv(1).k.rows(0, tokens)));
  assign(v, values(c.kv(1).v.rows(0, tokens)));
  const Pair expected = c.output(DType::f32, {tokens, 2, 16}), lse = c.output(DType::f32, {tokens, 2});
  KvView kv = c.kv(1);
  kv.k = k;
  kv.v = v;
  c.run([&](int i, Runtime& rt) {
    if (i == 0) return rt.ops.attention(rt, {c.batch, c.q[0], c.kv(0), c.scale(), expected[0], lse[0]});
    cpu_attention(rt, {c.batch, q, kv, c.scale(), o, lse[1]});
  });
  assign(expected[1], values(o));
  EXPECT_TRUE(c.close("o", expected));
}

TEST(CpuCases, RefusesWhatItCannotDo) {
  AttnCase c({.sequences = {{20}}}, DType::f32, 45);
  const Pair o = c.output(DType::f32, {20, 4, 16}), lse = c.output(DType::f32, {20, 4});
  AttnCase::run_side(1, 2, [&](int, Runtime& rt) {
    // A block named twice, in either path.
    for (const int64_t block : {4, 16}) {
      const Pair twice = c.of(DType::i32, {20, 2, 2}, std::vector<double>(80, 0.0));
      EXPECT_THROW(
          cpu_sparse_attention(rt, {c.batch, c.q[1], c.kv(1), {twice[1], block}, 1, {}, o[1], lse[1]}),
          Error);
    }
    // Heads that do not divide.
    const Pair q3 = c.input({20, 3, 16}), o3 = c.output(DType::f32, {20, 3, 16}),
               lse3 = c.output(DType::f32, {20, 3});
    EXPECT_THROW(cpu_attention(rt, {c.batch, q3[1], c.kv(1), 1, o3[1], lse3[1]}), Error);
    // float64 is the reference's.
    EXPECT_THROW(cpu_attention(rt, {c.batch, c.q[0], c.kv(0), 1, o[0], lse[0]}), Error);
  });
  EXPECT_THROW(force_cpu_dispatch_level("AVX9"), Error);
}

}  // namespace
}  // namespace hysparse::test
