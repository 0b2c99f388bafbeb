// What the attention forwards share: per-worker scratch, loading of queries and keys into tiles, one step of
// online softmax attention, and the end of a row (sink, lse, cast).
//
// Scores are kept in the log2 domain: queries are loaded times scale * log2(e).
#pragma once

#include <functional>
#include <vector>

#include "base/sanitizer.h"
#include "kernels/cpu/attn_kernels.h"
#include "kernels/ops.h"

namespace hysparse::attn {

inline constexpr double kLog2e = 1.442695040888963407, kLn2 = 0.693147180559945309;
inline constexpr float kNone = -__builtin_huge_valf();  // the log of nothing

// Extents of a call.
struct Shape {
  int64_t n = 0;                                                  // tokens
  int hq = 0, hkv = 0;                                            // query and KV heads
  int r = 0;                                                      // query heads a KV head
  int d = 0, dv = 0;                                              // head dims
  int dp = 0, dvp = 0;                                            // padded
  bool bf16 = false;                                              // T
  DType kv = DType::f32;                                          // T, or what pages in 8 bits hold
  DType type() const { return bf16 ? DType::bf16 : DType::f32; }  // T
};
// Of a call whose arguments were checked; refuses T other than f32 and bf16.
Shape shape_of(const char* op, DType t, const TensorView& q, const KvView& kv);

// Cuts one allocation into pieces. Run a layout once with no memory to count, then once to place.
class Slab {
 public:
  Slab() = default;
  explicit Slab(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    used_ = (used_ + 63) / 64 * 64;
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += static_cast<size_t>(count) * sizeof(T);
    if (p) forbid(base_ + used_, kBorder);
    used_ += kBorder;
    return p;
  }
  size_t used() const { return (used_ + 127) / 128 * 128; }

 private:
  char* base_ = nullptr;
  size_t used_ = 0;
};

// One S a worker, placed by layout(S&, Slab&) in memory of the arena.
template <class S, class Layout>
std::vector<S> per_worker(Runtime& rt, const Layout& layout) {
  Slab count;
  S sample{};
  layout(sample, count);
  const auto workers = static_cast<size_t>(rt.pool.threads());
  char* base = static_cast<char*>(rt.scratch.alloc_bytes(count.used() * workers));
  std::vector<S> all(workers);
  for (size_t w = 0; w < workers; ++w) {
    Slab place(base + w * count.used());
    layout(all[w], place);
  }
  return all;
}

// fn(item, worker) for all items; on the calling thread alone when `work` (multiply-adds in all) is less than
// waking the others costs. Where an item runs never changes its result. in_runs: a worker takes neighbours.
void for_items(Runtime& rt, int64_t items, int64_t work, const std::function<void(int64_t, int)>& fn,
               bool in_runs = false);

// Address of v[row, head].
inline char* address(const TensorView& v, int64_t row, int64_t head) {
  return static_cast<char*>(v.data) +
         (row * v.stride[0] + head * v.stride[1]) * static_cast<int64_t>(size_of(v.dtype));
}
inline float& lse_at(const TensorView& v, int64_t row, int64_t head) {
  return static_cast<float*>(v.data)[row * v.stride[0] + head];
}

// Addresses of key and value rows [p, p + n) of sequence s, head g; of pages in 8 bits those of their two
// scales, too, where `scales` is not null.
void key_rows(const KvView& kv, const RaggedBatch& batch, int64_t s, int64_t p, int n, int64_t g,
              const void** k, const void** v, const void** scales = nullptr);

// Fetching of `count` rows of keys or values.
Ahead rows_ahead(const Shape& shape, const void* const* rows, int count);

// A tile of queries with its running softmax, and the tile of keys at hand. Row i is token i / r, head i % r.
struct Tile {
  float* q = nullptr;               // [rows, dp] log2 units
  float* o = nullptr;               // [rows, dvp] not yet normalised
  float* row_max = nullptr;         // [rows]
  float* row_sum = nullptr;         // [rows]
  int keys = 0;                     // keys that fit
  int scores = 0;                   // columns of s
  float* s = nullptr;               // [rows that attend at a time, scores]
  float* kt = nullptr;              // [d, keys]
  float* v = nullptr;               // [keys, dvp]
  int32_t* lo = nullptr;            // [rows]
  int32_t* hi = nullptr;            // [rows]
  float* factor = nullptr;          // [rows]
  const void** pointers = nullptr;  // [rows]
  const void** k_rows = nullptr;    // [keys] the keys and values at hand, as they lie in memory
  const void** v_rows = nullptr;
  const void** scale_rows = nullptr;             // [keys] where they are in 8 bits, and what lies there:
  float *k_scale = nullptr, *v_scale = nullptr;  // [keys], 0 up to padded(loaded)
  const void** next_rows = nullptr;              // [2 * kKeyTile] those that come next
  Ahead ahead;                                   // where fetching them stands
  int loaded = 0;                                // keys at hand
  bool packed_k = false;                         // kt holds them
  bool packed_v = false;                         // v does

  void layout(Slab& slab, const Shape& shape, int64_t rows);
  // For more keys at hand than rows attend to at a time: `rows_at_once` x `columns` scores.
  void layout(Slab& slab, const Shape& shape, int64_t rows, int64_t keys, int64_t rows_at_once,
              int64_t columns);
};

// Blocks whose raw maxima are wanted while keys pass by.
struct BlockMaxima {
  float* raw = nullptr;  // [rows, ld], -inf at first; null: not wanted
  int64_t ld = 0;
  int64_t block = 1;
};

class TileOps {
 public:
  TileOps(const Shape& shape, const KvView& kv, const RaggedBatch& batch)
      : shape_(shape), kernels_(kernels()), kv_(kv), batch_(batch) {}

  const Shape& shape() const { return shape_; }
  const Kernels& kernels_of_level() const { return kernels_; }

  // Queries of KV head g, tokens [token, token + tokens); nothing seen yet. A row comes out the same to the
  // bit whatever other rows it is taken with, as long as it meets its keys in the same tiles, each beginning
  // at the same key (but for what lies before the first key that the row sees, in whole multiples of kPad).
  void load_queries(Tile& t, const TensorView& q, double scale, int64_t token, int64_t tokens,
                    int64_t g) const;
  // Nothing seen: again.
  void restart(Tile& t, int64_t rows) const;
  // Keys and values [p, p + n), n <= t.keys, of sequence s are at hand now. Those before `oldest` need not
  // exist: nobody sees them, and the oldest stands in for them.
  void set_keys(Tile& t, int64_t s, int64_t p, int n, int64_t g, int64_t oldest = 0) const;
  // The same for any rows: t.k_rows[0, n), t.v_rows[0, n) and, in 8 bits, t.scale_rows[0, n).
  void set_key_rows(Tile& t, int n) const;
  // What set_keys will be called for next: fetched from memory while the keys at hand are used. Only a hint.
  void expect_keys(Tile& t, int64_t s, int64_t p, int n, int64_t g) const;

  // `rows` query rows, from `first` on or those of `index`, attend to the keys at hand. Where `masked`, row i
  // of the call sees the keys [t.lo[i], t.hi[i]) only. Keys start at position p (for block maxima).
  void attend(Tile& t, int first, int rows, const int32_t* index, bool masked, int64_t p = 0,
              const BlockMaxima& blocks = {}) const;
  // The same to the n keys at hand from `column` on, a multiple of kPad; t.lo and t.hi count from there.
  void attend_columns(Tile& t, int first, int rows, const int32_t* index, int column, int n, bool masked,
                      int64_t p = 0, const BlockMaxima& blocks = {}) const;

  // Adds the sinks and writes o and lse. row_max and row_sum stay as they are, without the sink.
  void finish(Tile& t, int64_t token, int64_t tokens, int64_t g, const TensorView& sinks, const TensorView& o,
              const TensorView& lse) const;

 private:
  Shape shape_;
  Kernels kernels_;
  const KvView& kv_;
  const RaggedBatch& batch_;
};

}  // namespace hysparse::attn
