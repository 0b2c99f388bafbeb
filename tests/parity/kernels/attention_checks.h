// Runs full, sparse or window attention, forward and backward, on both sides and checks every output.
#pragma once

#include "parity/kernels/attention_oracle.h"
#include "parity/kernels/attention_shapes.h"

namespace hysparse::test {

struct Branch {
  enum class Kind { full, sparse, window } kind = Kind::full;
  int64_t window = 0;              // window
  int64_t block = 0, entries = 0;  // sparse; full: block of the scores, 0 = none
  bool sinks = false;
};

// What the kernel under test produced.
struct ForwardResult {
  Values o, lse, scores;
};
struct BackwardResult {
  Values dq, dk, dv, dsinks, dk_start, dv_start;
};

inline Mask mask_of(const AttentionInputs& in, const Branch& branch, const Values& idx) {
  if (branch.kind == Branch::Kind::window) return window_mask(branch.window);
  if (branch.kind == Branch::Kind::sparse)
    return selection_mask(idx, in.shape.hkv, branch.entries, branch.block);
  return causal_mask();
}

// `expected` replaces the mask that follows from the branch.
inline ForwardResult check_forward(AttentionInputs& in, const Branch& branch, const Values& idx = {},
                                   const Mask& expected = {}) {
  SCOPED_TRACE(describe(in.shape));
  Bench& b = in.bench;
  const AttentionShape& s = in.shape;
  const Pair& o = b.out({in.n(), s.hq, s.dv});
  const Pair& lse = b.out_acc({in.n(), s.hq});
  const Pair* sinks = branch.sinks ? &in.sinks() : nullptr;
  const int64_t nblocks =
      branch.kind == Branch::Kind::full && branch.block ? (in.batch.max_kv_len() - 1) / branch.block + 3 : 0;
  const Pair* scores = nblocks ? &b.out_acc({in.n(), s.hkv, nblocks}) : nullptr;
  const Pair* selection = branch.kind == Branch::Kind::sparse
                              ? &b.in_values(DType::i32, {in.n(), s.hkv, branch.entries}, idx)
                              : nullptr;
  b.run([&](int i, Runtime& rt) {
    const TensorView sink = sinks ? (*sinks)[i] : TensorView{};
    switch (branch.kind) {
      case Branch::Kind::full:
        return rt.ops.attention(rt, {in.batch, in.q()[i], in.kv(i), in.scale, o[i], lse[i], branch.block,
                                     scores ? (*scores)[i] : TensorView{}});
      case Branch::Kind::sparse:
        return rt.ops.sparse_attention(
            rt,
            {in.batch, in.q()[i], in.kv(i), {(*selection)[i], branch.block}, in.scale, sink, o[i], lse[i]});
      case Branch::Kind::window:
        return rt.ops.window_attention(
            rt, {in.batch, in.q()[i], in.kv(i), branch.window, in.scale, sink, o[i], lse[i]});
    }
  });
  const Mask mask = expected ? expected : mask_of(in, branch, idx);
  const ForwardOracle truth =
      forward_oracle(in, mask, sinks ? sinks->ref() : Values{}, branch.block, nblocks);
  EXPECT_TRUE(agrees(b, "o", o, truth.o));
  EXPECT_TRUE(agrees(b, "lse", lse, truth.lse));
  if (scores) {
    EXPECT_TRUE(agrees(b, "block_scores", *scores, truth.scores));
  }
  // The reference itself against the oracle.
  const auto same = [](const char* name, const Pair& p, const Checked& c) {
    double size = 1;
    for (double x : c.value) size = std::max(size, std::isinf(x) ? 0 : std::fabs(x));
    Values tolerance(c.value.size(), 1e-11 * size);
    const Values ref = p.ref();
    for (size_t i = 0; i < ref.size(); ++i)
      ASSERT_TRUE(ref[i] == c.value[i] || std::fabs(ref[i] - c.value[i]) <= tolerance[i])
          << "ref " << name << " at " << i << ": " << ref[i] << ", oracle " << c.value[i];
  };
  same("o", o, truth.o);
  same("lse", lse, truth.lse);
  if (scores) same("block_scores", *scores, truth.scores);
  return {o.got(), lse.got(), scores ? scores->got() : Values{}};
}

// dk and dv of keys that nobody sees must keep their dirty start to the bit.
inline BackwardResult check_backward(AttentionInputs& in, const Branch& branch, const Values& idx = {},
                                     const Mask& expected = {}) {
  SCOPED_TRACE(describe(in.shape));
  Bench& b = in.bench;
  const AttentionShape& s = in.shape;
  const Pair* sinks = branch.sinks ? &in.sinks() : nullptr;
  const Values sink_values = sinks ? sinks->ref() : Values{};
  const Mask mask = expected ? expected : mask_of(in, branch, idx);
  const ForwardOracle forward = forward_oracle(in, mask, sink_values);
  const std::vector<int64_t> o_dims = {in.n(), s.hq, s.dv};
  Values o_values = forward.o.value, lse_values = forward.lse.value;
  for (double& x : o_values) x = round_to(b.t(), x);
  for (double& x : lse_values) x = round_to(b.acc(), x);
  const Pair& o = b.in_values(b.t(), o_dims, o_values);
  const Pair& lse = b.in_values(b.acc(), {in.n(), s.hq}, lse_values);
  const Pair& d_o = b.in(o_dims);
  const Pair& dq = b.out({in.n(), s.hq, s.d});
  const Pair& dk = b.accumulator({in.kv_rows(), s.hkv, s.d});
  const Pair& dv = b.accumulator({in.kv_rows(), s.hkv, s.dv});
  const Pair& dsinks = b.accumulator({s.hq});
  const Values dk0 = dk.ref(), dv0 = dv.ref(), dsinks0 = dsinks.ref();
  const Pair* selection = branch.kind == Branch::Kind::sparse
                              ? &b.in_values(DType::i32, {in.n(), s.hkv, branch.entries}, idx)
                              : nullptr;
  b.run([&](int i, Runtime& rt) {
    const TensorView sink = sinks ? (*sinks)[i] : TensorView{}, dsink = sinks ? dsinks[i] : TensorView{};
    switch (branch.kind) {
      case Branch::Kind::full:
        return rt.ops.attention_backward(
            rt, {in.batch, in.q()[i], in.kv(i), in.scale, o[i], lse[i], d_o[i], dq[i], dk[i], dv[i]});
      case Branch::Kind::sparse:
        return rt.ops.sparse_attention_backward(rt, {in.batch,
                                                     in.q()[i],
                                                     in.kv(i),
                                                     {(*selection)[i], branch.block},
                                                     in.scale,
                                                     sink,
                                                     o[i],
                                                     lse[i],
                                                     d_o[i],
                                                     dq[i],
                                                     dk[i],
                                                     dv[i],
                                                     dsink});
      case Branch::Kind::window:
        return rt.ops.window_attention_backward(rt, {in.batch, in.q()[i], in.kv(i), branch.window, in.scale,
                                                     sink, o[i], lse[i], d_o[i], dq[i], dk[i], dv[i], dsink});
    }
  });
  BackwardOracle truth = backward_oracle(in, mask, sink_values, o_values, lse_values, d_o.ref());
  const auto check = [&](const char* name, const Pair& p, Checked& c, const Values& start) {
    double size = 1;
    for (double x : c.value) size = std::max(size, std::fabs(x));
    const Values ref = p.ref(), got = p.got();
    for (size_t i = 0; i < c.value.size(); ++i) {
      if (!start.empty() && c.tolerance[i] == 0) {  // nothing was added here
        ASSERT_EQ(got[i], start[i]) << name << " at " << i << " was touched";
      }
      if (!start.empty()) {
        c.value[i] += start[i];
        c.tolerance[i] += 16 * epsilon(p[1].dtype) * std::fabs(start[i]);
      }
      ASSERT_NEAR(ref[i], c.value[i], 1e-10 * size)
          << "ref " << name << " at " << i << " differs from the oracle";
    }
    EXPECT_TRUE(agrees(b, name, p, c));
  };
  check("dq", dq, truth.dq, {});
  check("dk", dk, truth.dk, dk0);
  check("dv", dv, truth.dv, dv0);
  check("dsinks", dsinks, truth.dsinks, dsinks0);
  return {dq.got(), dk.got(), dv.got(), dsinks.got(), dk0, dv0};
}

}  // namespace hysparse::test
