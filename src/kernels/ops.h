// The operation contract: one declaration an operation, with shapes, dtypes and determinism. `ref` defines it
// in float64, `cpu` and `cuda` are held to it.
//
// Conventions
//   n        rows (tokens)                 S    sequences of the batch
//   Hq, Hkv  query and KV heads, Hq % Hkv == 0; R = Hq / Hkv; query head h reads KV head h / R
//   d, dv    head dim of q/k and of v
//   T        type of activations ("compute dtype"): f64 (ref), f32 or bf16 (cpu, cuda)
//   A        accumulation dtype: f64 when T is f64, else f32
// Arguments are checked by kernels/checks.h. Views may be strided in every dimension but the last unless
// "contiguous" is said. Outputs are overwritten unless "+=" is said; inputs and outputs do not overlap unless
// "in place" is said. An empty optional view means "not wanted". Every operation is deterministic for a given
// backend and dispatch level, on any number of threads. Softmax scale, sinks and lse are natural-log
// quantities. Source: docs/hysparse.md, arXiv 2602.03560.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "comm/comm.h"
#include "kernels/batch.h"
#include "kernels/kv_view.h"
#include "kernels/weight.h"
#include "tensor/tensor.h"

namespace hysparse {

class Ops;

// A step that comes again and again with other numbers: decoding. Between two steps of one key nothing
// differs but the contents of tensors and of `tables`: the host arrays that operations are handed by these
// very pointers, each of the same length in every step of the key.
struct RepeatedStep {
  struct Table {
    const void* host;
    size_t bytes;
  };
  uint64_t key = 0;  // of all that the operations depend on: shapes, addresses, settings
  std::vector<Table> tables;
};

// What a computation runs on; passed explicitly, no globals.
struct Runtime {
  ThreadPool& pool;
  Arena& scratch;  // step workspace in ops' memory; use ArenaScope
  const Ops& ops;
  Memory& memory;  // where this backend's tensors live
  Log log{};
  Comm& comm = self_comm();  // the processes that train together
  // What is computed for a token (on the CPU) is the same to the bit whatever else is in the call: the other
  // sequences, how a prompt is cut in chunks. Free on CPUs without AMX; training does without.
  bool batch_invariant = true;
};

// ---- embedding, norms, linear, elementwise
struct EmbeddingForward {
  TensorView tokens;     // [n] i32, each in [0, vocab)
  const Weight& weight;  // [vocab, hidden] T
  TensorView y;          // [n, hidden] T
};
struct EmbeddingBackward {
  TensorView tokens;  // [n] i32
  TensorView dy;      // [n, hidden] T
  Weight& weight;     // grad [vocab, hidden] A (or T, rounded once a call), +=; summed in token order
};
// y = x / sqrt(mean(x^2) + eps) * weight, in A with one cast at the end (spec section 2).
struct RmsNormForward {
  TensorView x;          // [n, h] T (or [n, heads, d], normed over the last dimension)
  const Weight& weight;  // [h] T
  double eps;
  TensorView y;     // as x; may be x itself
  TensorView rstd;  // optional [n] or [n, heads] A
};
struct RmsNormBackward {
  TensorView x;     // as forward
  Weight& weight;   // grad [h] A, +=
  TensorView rstd;  // from forward
  TensorView dy;    // as x
  TensorView dx;    // as x; += when accumulate; may be dy itself otherwise
  bool accumulate;
};
// y = x W^T (+ bias) (+ y when accumulate)
struct LinearForward {
  TensorView x;          // [n, in] T
  const Weight& weight;  // [out, in] T
  const Weight* bias;    // optional [out] T
  TensorView y;          // [n, out] T or A
  bool accumulate;
};
struct LinearBackward {
  TensorView x;    // [n, in] T
  Weight& weight;  // grad [out, in] A (or T, rounded once a call), += dy^T x; skipped when it has no grad
  Weight* bias;    // optional; grad [out] A, += column sums of dy
  TensorView dy;   // [n, out] T or A
  TensorView dx;   // optional [n, in] T: dy W, += when accumulate
  bool accumulate;
};
// Rotates the first 2 * half dims of each head in place, half-split pairing: (x_i, x_{i+half}). cos, sin are
// tables over positions, made in float64 and rounded once (spec section 2). inverse rotates back (the
// backward pass).
struct Rope {
  TensorView x;             // [n, heads, d] T, in place
  const int32_t* position;  // [n] host
  TensorView cos, sin;      // [positions, half] A
  bool inverse;
};
struct Add {           // y = a + b; y may be a or b
  TensorView a, b, y;  // same shape, T
};
struct Cast {           // dst = src, between f64, f32, bf16
  TensorView src, dst;  // same shape
};
struct GatherRows {     // dst[i] = src[rows[i]]
  TensorView src;       // [n, h] T
  const int64_t* rows;  // [m] host
  TensorView dst;       // [m, h] T
};
// Rows to where a cache keeps them: pair by pair, dst[rows[i]] = src[i].
struct ScatterRows {
  struct Pair {
    TensorView src;  // [n, ...], each row dense; the dtype is the pair's own
    TensorView dst;  // [m, ...], rows as those of src
  };
  const int64_t* rows;  // [n] host, each in [0, m) and there once; or -1: that row is left out
  std::span<const Pair> pairs;
};
// Rows of K and V in 8 bits to where a cache keeps them: code and scale of row rows[i] from row i, of each
// head of k and of v for itself. scale = the smallest power of two that is at least the row's largest
// magnitude / 127 (i8) or / 448 (f8), code = the nearest value of x / scale, ties to even; 0 both where the
// scale would be below 2^-126. So code * scale is exact in bf16, and what is widened is what was stored. A
// row with an element that is not finite gets a scale of NaN, so that it reads as NaN.
struct QuantiseKv {
  TensorView k, v;              // [n, Hkv, d|dv] T
  const int64_t* rows;          // [n] host, each in [0, m) and there once
  TensorView k_codes, v_codes;  // out [m, Hkv, d|dv] i8, or f8 both; contiguous
  TensorView scales;            // out [m, Hkv, 2] bf16, of k and of v; contiguous
};
struct SwigluForward {     // h = silu(gate) * up
  TensorView gate, up, h;  // [n, f] T; h may be gate or up
};
struct SwigluBackward {
  TensorView gate, up;    // [n, f] T
  TensorView dh;          // [n, f] T
  TensorView dgate, dup;  // [n, f] T; may be dh, gate or up themselves
};

// ---- attention

// Forwards read K and V of T or, in pages, of 8 bits (kernels/kv_view.h).

// Causal softmax attention over all keys 0..position of the sequence. No sink.
struct AttentionForward {
  const RaggedBatch& batch;
  TensorView q;  // [n, Hq, d] T
  KvView kv;     // T
  double scale;
  TensorView o;    // [n, Hq, dv] T
  TensorView lse;  // [n, Hq] A, natural log
  // Block log-scores (spec section 3, the paper's Eq. 3): max over the R heads h of (max over i in block j,
  // i <= t, of scale q.k - lse_h); -inf in every column beyond floor(t / block). Computed in A, never
  // narrower.
  int64_t score_block = 0;
  TensorView block_scores;  // optional [n, Hkv, nblocks] A, nblocks >= ceil(max kv_len / score_block)
};
struct AttentionBackward {
  const RaggedBatch& batch;
  TensorView q;  // [n, Hq, d] T
  KvView kv;     // contiguous, T
  double scale;
  TensorView o, lse;  // from forward
  TensorView d_o;     // [n, Hq, dv] T
  TensorView dq;      // [n, Hq, d] T
  TensorView dk, dv;  // [kv rows, Hkv, d|dv] A, +=  (sparse layers add to the same buffers)
};

// Picks the `entries` blocks of largest score a token and KV head: equal scores -> lower index first;
// ascending; padded with -1. Only blocks 0..floor(t / block) compete. A score of -inf (or NaN) means "no such
// block": it is picked only where forced. Forced blocks take entries of the same budget and rank as +inf, so
// with room for one of two, block 0 wins.
struct SelectBlocks {
  const RaggedBatch& batch;
  TensorView block_scores;  // [n, Hkv, nblocks] A
  int64_t block;
  bool force_first, force_diagonal;
  TensorView idx;  // out [n, Hkv, entries] i32
};
// Scores for the random control: to_unit(hash_words({seed, step, row, layer, head, position, block})) rounded
// to f32 in every backend, so that all rank alike; same layout as block scores. head counts KV heads.
struct RandomScores {
  const RaggedBatch& batch;
  uint64_t seed;
  int64_t layer;
  int64_t block;
  TensorView block_scores;  // out [n, Hkv, nblocks] A; -inf beyond floor(t / block)
};

// Softmax attention over the tokens of the selected blocks, causal, with a per-head sink in the denominator
// only. A row with no visible key gives o = 0, and lse = sink (-inf without one).
struct SparseAttentionForward {
  const RaggedBatch& batch;
  TensorView q;         // [n, Hq, d] T
  KvView kv;            // the source layer's shared K, V
  Selection selection;  // idx [n, Hkv, entries]; -1 entries are skipped wherever they stand, the others are
                        // distinct; tokens beyond the query (whole blocks too) are not visible
  double scale;
  TensorView sinks;  // optional [Hq] A; -inf allowed
  TensorView o;      // [n, Hq, dv] T
  TensorView lse;    // [n, Hq] A, sink included
};
struct SparseAttentionBackward {
  const RaggedBatch& batch;
  TensorView q;
  KvView kv;  // contiguous
  Selection selection;
  double scale;
  TensorView sinks;
  TensorView o, lse, d_o;
  TensorView dq;      // [n, Hq, d] T
  TensorView dk, dv;  // [kv rows, Hkv, d|dv] A, +=; rows of never-chosen blocks are not touched
  TensorView dsinks;  // optional [Hq] A, += -sum_t exp(sink - lse) * (o . d_o)
};

// Query at position t sees keys max(0, t - window + 1) .. t, itself included: min(t + 1, window) keys.
struct WindowAttentionForward {
  const RaggedBatch& batch;
  TensorView q;  // [n, Hq, d] T
  KvView kv;
  int64_t window;
  double scale;
  TensorView sinks;  // optional [Hq] A
  TensorView o;      // [n, Hq, dv] T
  TensorView lse;    // [n, Hq] A, sink included
};
struct WindowAttentionBackward {
  const RaggedBatch& batch;
  TensorView q;
  KvView kv;  // contiguous
  int64_t window;
  double scale;
  TensorView sinks;
  TensorView o, lse, d_o;
  TensorView dq;      // [n, Hq, d] T
  TensorView dk, dv;  // [kv rows, Hkv, d|dv] A, +=
  TensorView dsinks;  // optional [Hq] A, +=
};

// out = sigmoid(gate_a) * a (+ sigmoid(gate_b) * b). Gates are logits: one a head [n, Hq] or one a channel
// [n, Hq * dv].
struct GatedSumForward {
  TensorView a, gate_a;  // [n, Hq, dv] T; gate A
  TensorView b, gate_b;  // optional, as a
  TensorView out;        // [n, Hq, dv] T; may be a or b
};
struct GatedSumBackward {
  TensorView a, gate_a, b, gate_b;  // as forward
  TensorView d_out;                 // [n, Hq, dv] T
  TensorView da, db;                // [n, Hq, dv] T; da may be d_out when there is no b
  TensorView dgate_a, dgate_b;      // as the gates, A
};

// ---- mixture of experts (spec section 7)
//   E experts, k of them active a token, f: width of an expert. An assignment is one expert of one token; the
//   R = n * k of them stand in the order of experts, those of an expert in the order of tokens.

// s = sigmoid(logits). The k experts of largest s + bias (equal -> lower expert; a NaN comes last), in
// ascending order. Their weights are s, without the bias, divided by (sum of the chosen s + 1e-20) where
// `normalise`, times `scale`.
struct RouteForward {
  TensorView logits;  // [n, E] A
  TensorView bias;    // [E] A
  bool normalise;
  double scale;
  bool pinned;         // `experts` are given, and only the weights are made
  TensorView experts;  // out [n, k] i32
  TensorView weights;  // out [n, k] A
};
// The gradient at the logits: through the weights (none through the choice), and of two losses of the router
// over the tokens that count, those whose label does. Of a sequence with m > 0 of them:
//   balance  (1 / m) sum_e c_e sum_t s_te / sum_j s_tj * E / k, c_e its tokens that chose e: m if all is even
//   z        sum_t logsumexp_e(logits_te)^2
struct RouteBackward {
  const RaggedBatch& batch;
  TensorView logits, experts;  // as forward
  bool normalise;
  double scale;
  TensorView dweights;  // [n, k] A
  TensorView labels;    // [n] i32; needed where balance or z is not 0
  double balance, z;    // factors of the two losses' gradients; 0: none
  TensorView dlogits;   // out [n, E] A
};
// Where assignments stand: slot[t, j] is the row of the j-th expert of token t, source[row] = t * k + j; the
// rows of expert e are offset[e] to offset[e + 1].
struct ExpertTables {
  TensorView offset;  // [E + 1] i32
  TensorView source;  // [R] i32
  TensorView slot;    // [n, k] i32
  int64_t experts() const { return offset.dim(0) - 1; }
  int64_t active() const { return slot.dim(1); }
};
struct BuildExpertTables {
  TensorView experts;   // [n, k] i32, each in [0, E), distinct in a row
  TensorView labels;    // optional [n] i32: which tokens `load` counts; empty: all
  ExpertTables tables;  // out
  TensorView load;      // optional [E] i64, += tokens of each expert
};
struct ExpertGather {  // y[row] = x[source[row] / k]
  TensorView x;        // [n, h] T
  ExpertTables tables;
  TensorView y;  // [R, h] T
};
struct ExpertSum {  // y[t] = sum_j x[slot[t, j]] (+ y[t]), in A with one cast at the end
  TensorView x;     // [R, h] T
  ExpertTables tables;
  TensorView y;  // [n, h] T
  bool accumulate;
};
// y[row] = W_e x[row] for the rows of each expert e. Only the weights of experts that have rows are read.
struct GroupedLinear {
  TensorView x;  // [R, in] T
  ExpertTables tables;
  std::span<const Weight> weights;  // E of [out, in] T, or all i8 or f8 with scales
  TensorView y;                     // [R, out] T
};
struct GroupedLinearBackward {
  TensorView x;  // [R, in] T
  ExpertTables tables;
  std::span<Weight> weights;  // grad [out, in] A (or T, rounded once a call), +=; without rows not touched
  TensorView dy;              // [R, out] T
  TensorView dx;              // optional [R, in] T, += when accumulate
  bool accumulate;
};
struct ExpertSwiglu {   // h[row] = weights[source[row]] * silu(gate) * up
  TensorView gate, up;  // [R, f] T
  ExpertTables tables;
  TensorView weights;  // [n, k] A
  TensorView h;        // [R, f] T; may be gate or up
};
struct ExpertSwigluBackward {
  TensorView gate, up;  // [R, f] T
  ExpertTables tables;
  TensorView weights;     // [n, k] A
  TensorView dh;          // [R, f] T
  TensorView dgate, dup;  // [R, f] T; may be dh, gate or up themselves
  TensorView dweights;    // [n, k] A
};

// Two products of the same rows: gate and up.
struct GroupedLinearPair {
  TensorView x;  // [R, in] T
  ExpertTables tables;
  std::span<const Weight> first, second;  // as GroupedLinear
  TensorView y_first, y_second;           // [R, out] T
};
struct GroupedLinearPairBackward {
  TensorView x;  // [R, in] T
  ExpertTables tables;
  std::span<Weight> first, second;  // as GroupedLinearBackward
  TensorView dy_first, dy_second;   // [R, out] T
  TensorView dx;                    // [R, in] T, the sum of both
};
// The experts of a layer, nothing kept: y[t] = sum_j down_e (weights[t, j] silu(gate_e x[t]) up_e x[t]), e
// the j-th expert of t.
struct ExpertMlp {
  TensorView x;  // [n, h] T
  ExpertTables tables;
  TensorView weights;                      // [n, k] A
  std::span<const Weight> gate, up, down;  // as GroupedLinear: [f, h], [f, h], [h, f]
  TensorView y;                            // [n, h] T
};

// ---- drawing tokens
// How one token is drawn: engine/sampler.h without penalties, bias and masks.
struct DrawSettings {
  double temperature = 1.0;  // 0: the likeliest
  int64_t top_k = 0;
  double top_p = 1.0, min_p = 0.0;
  double uniform = 0;  // in [0, 1): which share of the probability is drawn, in the order of ids
  int64_t vocab = 0;   // of the row's logits, the first so many
};
struct DrawTokens {
  TensorView logits;                   // [n, vocab] A
  std::span<const DrawSettings> rows;  // [n]
  TensorView tokens;                   // out [n] i32; -1: NaN, +inf, or nothing above -inf
};

// ---- loss and optimiser
inline constexpr int32_t kIgnoreLabel = -100;

// loss_i = logsumexp(logits_i) - logits_i[label_i], nats; 0 where label is kIgnoreLabel (its dlogits row is
// 0).
struct CrossEntropy {
  TensorView logits;   // [n, vocab] A
  TensorView labels;   // [n] i32
  double grad_scale;   // dlogits = grad_scale * (softmax - onehot)
  TensorView loss;     // [n] A
  TensorView dlogits;  // optional [n, vocab] T or A; may be logits itself when dtypes match
};
// One AdamW step on one tensor (decoupled decay), all in A:
//   g = grad * grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
//   master -= lr * ((m / (1-b1^step)) / (sqrt(v / (1-b2^step)) + eps) + weight_decay * master); value =
//   cast(master)
struct AdamW {
  Weight& weight;   // master, value, grad contiguous; bumps version
  TensorView m, v;  // master's shape, A; on a GPU they and the gradient may be of T, read and written in A
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step;  // 1-based
};
struct SumSquares {  // out[0] += sum x^2, accumulated in f64 in a fixed order
  TensorView x;      // contiguous, f64/f32/bf16
  TensorView out;    // [1] f64
};

// ---- composites: default = the chain of primitives (composites.cpp); a backend may override

struct AttentionSelect {  // attention with block scores, then selection, in query chunks of bounded score
                          // memory
  AttentionForward attention;  // block_scores optional: on request the full [n, Hkv, nblocks] is filled too
  int64_t block;
  bool force_first, force_diagonal;
  bool random;  // rank by RandomScores instead (block_scores, if wanted, are still the oracle's)
  uint64_t random_seed;
  int64_t layer;
  TensorView idx;  // out [n, Hkv, entries] i32
};
// A sparse layer's attention: both branches and their gates. Where the keys lie in pages, a backend may leave
// the o and lse of the branches unwritten.
struct SparseWindowGated {
  SparseAttentionForward sparse;
  const WindowAttentionForward* window;  // null: o = sigmoid(gate_a) * sparse
  TensorView gate_sparse, gate_window;   // [n, Hq] or [n, Hq * dv] A
  TensorView out;                        // [n, Hq, dv] T; may be sparse.o
};
struct AddRmsNorm {     // x += delta, in place; y = rmsnorm(x)
  TensorView x, delta;  // [n, h] T
  const Weight& weight;
  double eps;
  TensorView y;
  TensorView rstd;  // optional [n] A
};
// Loss over the vocabulary in row chunks; [n, vocab] never exists at once. Where grad_scale != 0, dx and
// weight.grad are produced; with 0 they are left alone.
struct HeadLoss {
  TensorView x;       // [n, hidden] T, after the final norm
  Weight& weight;     // [vocab, hidden]; grad += unless empty
  TensorView labels;  // [n] i32
  double grad_scale;
  TensorView loss;  // [n] A
  TensorView dx;    // optional [n, hidden] T
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string name() const = 0;  // "ref", "cpu/AVX3", ...
  virtual Memory& memory() const { return host_memory(); }
  // What the default composites keep of scores or logits at a time.
  virtual int64_t chunk_bytes() const { return int64_t(64) << 20; }

  // The most that reading pages in 8 bits takes beside them, where a row of K and V takes `row_bytes` in T
  // and sequences have up to `context` of them.
  virtual int64_t widened_bytes(int64_t /*row_bytes*/, int64_t /*context*/) const { return 0; }

  // Brings a matrix that will only be read from now on into the order that products read fastest, in place;
  // results do not change by a bit. Leaves it alone where there is no such order. A weight with a gradient is
  // refused.
  virtual void pack(Runtime&, Weight&) const {}

  virtual void embedding(Runtime&, const EmbeddingForward&) const = 0;
  virtual void embedding_backward(Runtime&, const EmbeddingBackward&) const = 0;
  virtual void rmsnorm(Runtime&, const RmsNormForward&) const = 0;
  virtual void rmsnorm_backward(Runtime&, const RmsNormBackward&) const = 0;
  virtual void linear(Runtime&, const LinearForward&) const = 0;
  virtual void linear_backward(Runtime&, const LinearBackward&) const = 0;
  virtual void rope(Runtime&, const Rope&) const = 0;
  virtual void add(Runtime&, const Add&) const = 0;
  virtual void cast(Runtime&, const Cast&) const = 0;
  virtual void gather_rows(Runtime&, const GatherRows&) const = 0;
  virtual void quantise_kv(Runtime&, const QuantiseKv&) const = 0;
  virtual void swiglu(Runtime&, const SwigluForward&) const = 0;
  virtual void swiglu_backward(Runtime&, const SwigluBackward&) const = 0;
  virtual void attention(Runtime&, const AttentionForward&) const = 0;
  virtual void attention_backward(Runtime&, const AttentionBackward&) const = 0;
  virtual void select_blocks(Runtime&, const SelectBlocks&) const = 0;
  virtual void random_scores(Runtime&, const RandomScores&) const = 0;
  virtual void sparse_attention(Runtime&, const SparseAttentionForward&) const = 0;
  virtual void sparse_attention_backward(Runtime&, const SparseAttentionBackward&) const = 0;
  virtual void window_attention(Runtime&, const WindowAttentionForward&) const = 0;
  virtual void window_attention_backward(Runtime&, const WindowAttentionBackward&) const = 0;
  virtual void gated_sum(Runtime&, const GatedSumForward&) const = 0;
  virtual void gated_sum_backward(Runtime&, const GatedSumBackward&) const = 0;
  virtual void cross_entropy(Runtime&, const CrossEntropy&) const = 0;
  virtual void adamw(Runtime&, const AdamW&) const = 0;
  virtual void sum_squares(Runtime&, const SumSquares&) const = 0;

  // Mixture of experts: all of them or none, where experts() says no and each throws Error(input).
  virtual bool experts() const { return false; }
  virtual void route(Runtime&, const RouteForward&) const;
  virtual void route_backward(Runtime&, const RouteBackward&) const;
  virtual void expert_tables(Runtime&, const BuildExpertTables&) const;
  virtual void expert_gather(Runtime&, const ExpertGather&) const;
  virtual void expert_sum(Runtime&, const ExpertSum&) const;
  virtual void grouped_linear(Runtime&, const GroupedLinear&) const;
  virtual void grouped_linear_backward(Runtime&, const GroupedLinearBackward&) const;
  virtual void expert_swiglu(Runtime&, const ExpertSwiglu&) const;
  virtual void expert_swiglu_backward(Runtime&, const ExpertSwigluBackward&) const;
  // Composites of these (experts.cpp).
  virtual void grouped_linear_pair(Runtime&, const GroupedLinearPair&) const;
  virtual void grouped_linear_pair_backward(Runtime&, const GroupedLinearPairBackward&) const;
  virtual void expert_mlp(Runtime&, const ExpertMlp&) const;

  virtual void attention_select(Runtime&, const AttentionSelect&) const;
  virtual void sparse_window_gated(Runtime&, const SparseWindowGated&) const;
  virtual void add_rmsnorm(Runtime&, const AddRmsNorm&) const;
  virtual void head_loss(Runtime&, const HeadLoss&) const;
  virtual void scatter_rows(Runtime&, const ScatterRows&) const;
  // Runs `body`, which issues operations and nothing else that matters; or, where the backend has recorded
  // what an earlier body with this key issued, repeats that with the tables of this step (CUDA graphs).
  virtual void repeat(Runtime&, const RepeatedStep&, const std::function<void()>& body) const { body(); }
  // False: this backend draws nothing, and nothing has happened.
  virtual bool draw_tokens(Runtime&, const DrawTokens&) const { return false; }
  // rope() of each; they differ in nothing but x.
  virtual void rope_group(Runtime&, std::span<const Rope>) const;
  // Products of one and the same x, none of which reads another's y: as linear() of each. next: the weights
  // of the group that follows, where known; a hint.
  virtual void linear_group(Runtime&, std::span<const LinearForward>,
                            std::span<const Weight* const> next = {}) const;
};

constexpr DType accumulation_dtype(DType compute) {
  return compute == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace hysparse
