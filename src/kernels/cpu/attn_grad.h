// What the attention backwards share. Probabilities are recomputed from the lse; a pair of tiles costs five
// products: S = Q K^T, dP = dO V^T, dV = P^T dO, dK = dS^T Q, dQ += dS K, with dS = P (dP - o . dO).
//
// dq belongs to the query tile. dk and dv are summed over query tiles in a fixed order: a work item owns a
// run of tokens ("piece") and adds either straight to the caller's buffers or to a partial copy, and the
// partial copies are added piece after piece at the end. Pieces are cut by shape alone.
#pragma once

#include "kernels/cpu/attn_tile.h"

namespace hysparse::attn {

// A tile of queries, the tile of keys at hand, and what comes of them. Row i is token i / r, head i % r.
struct GradTile {
  float* q = nullptr;      // [rows, dp] log2 units
  float* d_o = nullptr;    // [rows, dvp]
  float* dq = nullptr;     // [rows, dp] still to be multiplied by the scale
  float* lse2 = nullptr;   // [rows] lse in log2 units; +inf where a row saw nothing
  float* delta = nullptr;  // [rows] o . d_o
  float* q_of = nullptr;   // [rows, dp], [rows, dvp]: the rows of an index, side by side
  float* d_o_of = nullptr;
  int keys = 0;         // keys that fit
  int scores = 0;       // columns of s and ds
  float* s = nullptr;   // [rows taken at a time, scores] scores, then p
  float* ds = nullptr;  // [rows taken at a time, scores] dp, then ds
  float* kt = nullptr;  // [d, keys]
  float* vt = nullptr;  // [dv, keys]
  float* k = nullptr;   // [keys, dp]
  float* dk = nullptr;  // [keys, dp] of the tiles at hand
  float* dv = nullptr;  // [keys, dvp]
  int loaded = 0;
  int32_t* lo = nullptr;
  int32_t* hi = nullptr;
  float* factor = nullptr;
  const void** pointers = nullptr;  // [rows]
  const void** more = nullptr;
  const void** k_rows = nullptr;  // [keys] the keys and values at hand, as they lie in memory
  const void** v_rows = nullptr;
  const void** next_rows = nullptr;  // [2 kKeyTile] keys and values that come next
  Ahead ahead;                       // where fetching them stands
  float** dk_rows = nullptr;         // [kKeyTile] where the gradients of the loaded keys go
  float** dv_rows = nullptr;

  void layout(Slab& slab, const Shape& shape, int64_t rows, bool gathers);
  // For more keys at hand than rows meet at a time: `rows_at_once` x `columns` scores.
  void layout(Slab& slab, const Shape& shape, int64_t rows, bool gathers, int64_t keys, int64_t rows_at_once,
              int64_t columns);
};

// Rows of dk and dv for the positions from `first` on.
struct KeyGrads {
  float* dk = nullptr;
  float* dv = nullptr;
  int64_t dk_step = 0, dv_step = 0;
  int64_t first = 0;

  float* dk_row(int64_t p) const { return dk + (p - first) * dk_step; }
  float* dv_row(int64_t p) const { return dv + (p - first) * dv_step; }
};

// What the three backward structs have in common.
struct GradArgs {
  const RaggedBatch& batch;
  const TensorView& q;
  const KvView& kv;
  double scale;
  const TensorView &o, &lse, &d_o, &dq, &dk, &dv;
  TensorView sinks, dsinks;
};

class GradOps {
 public:
  GradOps(const GradArgs& a, const Shape& shape) : a_(a), shape_(shape), kernels_(kernels()) {}
  const Kernels& kernels_of_level() const { return kernels_; }

  // Tokens [token, token + tokens) of KV head g. Adds each head's share of the sink gradient, sum of
  // exp(sink - lse) (o . d_o), to sink_sums [r] where sinks are wanted.
  void load_queries(GradTile& t, int64_t token, int64_t tokens, int64_t g, double* sink_sums) const;
  // Keys [p, p + n) of sequence s, gradients going to `to`.
  void load_keys(GradTile& t, int64_t s, int64_t p, int n, int64_t g, const KeyGrads& to) const;
  // What load_keys will be called for next: fetched from memory while this pair is computed. Only a hint.
  void expect_keys(GradTile& t, int64_t s, int64_t p, int n, int64_t g) const;
  // The same from any rows: t.pointers[0, n) to keys, t.pointers[kKeyTile, + n) to values, t.dk_rows,
  // t.dv_rows.
  void load_key_rows(GradTile& t, int n) const;
  // `rows` query rows, from `first` on or those of `index`, against the n loaded keys; where `masked`, row i
  // of the call sees [t.lo[i], t.hi[i]) only.
  void pair(GradTile& t, int first, int rows, const int32_t* index, bool masked) const;
  // The same in steps: clear_key_grads, then rows against the n keys from `column` on (a multiple of kPad;
  // t.lo and t.hi count from there) as often as wanted, then add_key_grads.
  void clear_key_grads(GradTile& t) const;
  void pair_columns(GradTile& t, int first, int rows, int column, int n, bool masked) const;
  void add_key_grads(GradTile& t, int n) const;
  void store_dq(GradTile& t, int64_t token, int64_t tokens, int64_t g) const;

  // The caller's dk and dv of sequence s, head g.
  KeyGrads caller_grads(int64_t s, int64_t g) const;
  // A partial copy for positions [first, first + rows), not zeroed.
  KeyGrads partial(Arena& arena, int64_t first, int64_t rows) const;
  void zero(const KeyGrads& partial, int64_t begin, int64_t end) const;
  // to[p] += from[p] for positions [begin, end).
  void add(const KeyGrads& to, const KeyGrads& from, int64_t begin, int64_t end) const;

 private:
  void products(GradTile& t, int first, int rows, const int32_t* index, int column, int seen, bool masked,
                bool accumulate) const;

  GradArgs a_;
  Shape shape_;
  Kernels kernels_;
};

// A run of tokens of one sequence and KV head whose gradients of keys are summed in token order.
struct Piece {
  int64_t s, g;
  int64_t begin, end;  // tokens of the sequence
  bool direct;         // adds to the caller's buffers; else to `part`
  KeyGrads part;
};
inline constexpr int64_t kPieces = 8;  // wanted in all, so that few long sequences still use several cores

// dsinks[h] -= the sums of all pieces, in their order. sums [pieces, r].
void reduce_sinks(const std::vector<Piece>& pieces, const std::vector<double>& sums, int r,
                  const TensorView& dsinks);

}  // namespace hysparse::attn
