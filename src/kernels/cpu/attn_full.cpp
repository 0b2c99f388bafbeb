// Causal attention over all keys, with block log-scores and selection in the same pass: raw block maxima are
// kept while the keys go by, normalised by each head's finished lse, and reduced to indices per token before
// the tile is left. Scores of a whole sequence never exist unless they are asked for.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/attn_select.h"
#include "kernels/cpu/attn_tile.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kQueryRows = 96;                   // rows (tokens x heads of a KV head) of a query tile
constexpr int64_t kMaximaFloats = int64_t(2) << 20;  // raw block maxima that a tile may hold
// A row meets its keys in chunks of so many (and whole blocks), from the first key on: each chunk has a
// softmax of its own, and they are joined in order. Where a sequence has few queries the chunks are items of
// their own.
constexpr int64_t kChunkKeys = 256;

// How a sequence is taken. Depends on its own lengths alone.
struct Plan {
  int64_t tokens = 0;  // of a query tile
  bool split = false;  // a chunk of keys is an item of its own
  int64_t chunks = 1;
  int64_t first_part = 0;  // of this sequence in the list of partial results
};

struct Item {
  int64_t s, g;
  int64_t begin, end;  // tokens of the sequence
  int64_t chunk;       // -1: all keys
};

// What an item leaves behind when a sequence is split.
struct Part {
  float *o, *row_max, *row_sum;
};

struct Worker {
  Tile tile;
  float *o = nullptr, *row_max = nullptr, *row_sum = nullptr;  // of the chunks so far, as in `tile`
  float* maxima = nullptr;
  float* log2_sum = nullptr;
  float* scores = nullptr;
  Candidate* candidates = nullptr;
};

class FullAttention {
 public:
  FullAttention(Runtime& rt, const AttentionForward& a, const AttentionSelect* select, DType t)
      : rt_(rt),
        a_(a),
        select_(select),
        shape_(shape_of("attention", t, a.q, a.kv)),
        ops_(shape_, a.kv, a.batch) {
    block_ = a.score_block;
    oracle_ = a.block_scores || (select && !select->random);
    rank_ = oracle_ || select;
    const int64_t unit = rank_ ? block_ : 1;
    chunk_ = (kChunkKeys + unit - 1) / unit * unit;
  }

  void run() {
    ArenaScope scope(rt_.scratch);
    plan();
    const auto run = [this](int64_t i, int worker) { attend(items_[size_t(i)], workers_[size_t(worker)]); };
    // Chunks of one sequence and head stand side by side.
    for_items(rt_, static_cast<int64_t>(items_.size()), work_, run, !merges_.empty());
    if (!merges_.empty())
      for_items(rt_, static_cast<int64_t>(merges_.size()), merge_work_,
                [this](int64_t i, int worker) { merge(merges_[size_t(i)], workers_[size_t(worker)]); });
  }

 private:
  void plan() {
    const RaggedBatch& b = a_.batch;
    std::vector<int64_t> order;
    int64_t rows = 0, maxima = 0, blocks = 0, parts = 0, most_chunks = 0;
    for (int64_t s = 0; s < b.sequences(); ++s) {
      Plan p;
      if (b.q_len(s) == 0) {  // nothing to do, and possibly no key to plan by
        plans_.push_back(p);
        continue;
      }
      p.tokens = std::max<int64_t>(1, kQueryRows / shape_.r);
      const int64_t ld = maxima_ld(b.kv_len(s));
      if (oracle_) p.tokens = std::clamp<int64_t>(kMaximaFloats / (shape_.r * ld), 1, p.tokens);
      p.tokens = std::min(p.tokens, b.q_len(s));
      p.chunks = (b.kv_len(s) + chunk_ - 1) / chunk_;
      most_chunks = std::max(most_chunks, p.chunks);
      if (b.q_len(s) <= p.tokens && p.chunks > 1) {
        p.split = true;
        p.first_part = parts;
        parts += p.chunks * shape_.hkv;
      }
      rows = std::max(rows, p.tokens * shape_.r);
      maxima = std::max(maxima, p.tokens * shape_.r * ld);
      blocks = std::max(blocks, ld);
      plans_.push_back(p);
      order.push_back(s);
    }
    workers_ = per_worker<Worker>(rt_, [&](Worker& w, Slab& slab) {
      w.tile.layout(slab, shape_, rows);
      if (most_chunks > 1) {
        w.o = slab.take<float>(rows * shape_.dvp);
        w.row_max = slab.take<float>(rows);
        w.row_sum = slab.take<float>(rows);
      }
      w.log2_sum = slab.take<float>(rows);
      if (oracle_) w.maxima = slab.take<float>(maxima);
      if (rank_) w.scores = slab.take<float>(blocks);
      if (select_) w.candidates = slab.take<Candidate>(candidates_for(select_->idx.dim(2)));
    });

    // Longest first, so that the last items to finish are short.
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t x, int64_t y) { return b.kv_len(x) > b.kv_len(y); });
    for (int64_t s : order) {
      const Plan& p = plans_[size_t(s)];
      const int64_t tiles = (b.q_len(s) + p.tokens - 1) / p.tokens;
      for (int64_t g = 0; g < shape_.hkv; ++g) {
        if (p.split) {
          for (int64_t c = 0; c < p.chunks; ++c) items_.push_back({s, g, 0, b.q_len(s), c});
          merges_.push_back({s, g, 0, b.q_len(s), -1});
        } else {
          for (int64_t i = tiles - 1; i >= 0; --i)
            items_.push_back({s, g, i * p.tokens, std::min(b.q_len(s), (i + 1) * p.tokens), -1});
        }
      }
      work_ += b.q_len(s) * b.kv_len(s) * shape_.hq * (shape_.d + shape_.dv);
    }
    parts_.resize(size_t(parts));
    part_maxima_.resize(plans_.size() * size_t(shape_.hkv));
    for (const Item& m : merges_) {
      const Plan& p = plans_[size_t(m.s)];
      const int64_t part_rows = m.end * shape_.r;
      merge_work_ += p.chunks * part_rows * shape_.dvp;
      for (int64_t c = 0; c < p.chunks; ++c) {
        Part& part = parts_[size_t(p.first_part + m.g * p.chunks + c)];
        part.o = floats(part_rows * shape_.dvp);
        part.row_max = floats(part_rows);
        part.row_sum = floats(part_rows);
      }
      if (oracle_)
        part_maxima_[size_t(m.s * shape_.hkv + m.g)] = floats(part_rows * maxima_ld(b.kv_len(m.s)));
    }
  }

  float* floats(int64_t count) {
    return static_cast<float*>(rt_.scratch.alloc_bytes(static_cast<size_t>(count) * sizeof(float)));
  }
  int64_t maxima_ld(int64_t keys) const { return rank_ ? padded((keys + block_ - 1) / block_) : 0; }

  void attend(const Item& item, Worker& w) {
    const RaggedBatch& b = a_.batch;
    const Plan& p = plans_[size_t(item.s)];
    const int64_t tokens = item.end - item.begin, past = b.past_len[size_t(item.s)];
    const int rows = static_cast<int>(tokens) * shape_.r;
    const bool split = item.chunk >= 0;
    const int64_t keys_begin = split ? item.chunk * chunk_ : 0;
    const int64_t keys_end = split ? std::min(past + item.end, keys_begin + chunk_) : past + item.end;

    BlockMaxima blocks;
    if (oracle_) {
      blocks.ld = maxima_ld(split ? b.kv_len(item.s) : keys_end);
      blocks.block = block_;
      blocks.raw = split ? part_maxima_[size_t(item.s * shape_.hkv + item.g)] : w.maxima;
      // A chunk owns its columns; the last one also owns the padding.
      const int64_t from = keys_begin / block_;
      const int64_t to = split && item.chunk + 1 < p.chunks ? (keys_begin + chunk_) / block_ : blocks.ld;
      for (int i = 0; i < rows; ++i)
        std::fill(blocks.raw + i * blocks.ld + from, blocks.raw + i * blocks.ld + to, kNone);
    }

    ops_.load_queries(w.tile, a_.q, a_.scale, b.cu_q[size_t(item.s)] + item.begin, tokens, item.g);
    for (int64_t key = keys_begin, n; key < keys_end; key += n) {
      if (key > keys_begin && key % chunk_ == 0) join(w, rows, key == chunk_);
      n = std::min({int64_t(kKeyTile), keys_end - key, chunk_ - key % chunk_});
      ops_.set_keys(w.tile, item.s, key, static_cast<int>(n), item.g);
      // Behind a chunk that is an item of its own the worker usually goes on to the next.
      if (const int64_t next = key + n, left = past + item.end - next; left > 0)
        ops_.expect_keys(w.tile, item.s, next, static_cast<int>(std::min<int64_t>(kKeyTile, left)), item.g);
      // The first token stands at past + begin: does it see the whole tile?
      const int64_t first_seen = past + item.begin + 1 - key;
      if (first_seen >= n) {
        ops_.attend(w.tile, 0, rows, nullptr, false, key, blocks);
        continue;
      }
      const int64_t blind = std::max<int64_t>(0, 1 - first_seen);  // tokens before all keys of the tile
      const int first = static_cast<int>(blind) * shape_.r;
      for (int i = first; i < rows; ++i) {
        w.tile.lo[i - first] = 0;
        w.tile.hi[i - first] = static_cast<int32_t>(std::min<int64_t>(n, first_seen + i / shape_.r));
      }
      ops_.attend(w.tile, first, rows - first, nullptr, true, key, blocks);
    }
    if (!split) {
      if (keys_end > chunk_) {
        join(w, rows, false);
        std::copy_n(w.o, int64_t(rows) * shape_.dvp, w.tile.o);
        std::copy_n(w.row_max, rows, w.tile.row_max);
        std::copy_n(w.row_sum, rows, w.tile.row_sum);
      }
      return finish(item, w, blocks);
    }
    const Part& part = parts_[size_t(p.first_part + item.g * p.chunks + item.chunk)];
    std::copy_n(w.tile.o, int64_t(rows) * shape_.dvp, part.o);
    std::copy_n(w.tile.row_max, rows, part.row_max);
    std::copy_n(w.tile.row_sum, rows, part.row_sum);
  }

  // The chunk that the tile has met joins those before it, and the tile begins anew.
  void join(Worker& w, int rows, bool first) {
    if (first) {
      std::copy_n(w.tile.o, int64_t(rows) * shape_.dvp, w.o);
      std::copy_n(w.tile.row_max, rows, w.row_max);
      std::copy_n(w.tile.row_sum, rows, w.row_sum);
    } else {
      ops_.kernels_of_level().merge(rows, shape_.dvp, w.tile.row_max, w.tile.row_sum, w.tile.o, w.row_max,
                                    w.row_sum, w.o);
    }
    ops_.restart(w.tile, rows);
  }

  // Joins the chunks of a split sequence, in order.
  void merge(const Item& item, Worker& w) {
    const Plan& p = plans_[size_t(item.s)];
    const int rows = static_cast<int>(item.end) * shape_.r;
    const Part* parts = &parts_[size_t(p.first_part + item.g * p.chunks)];
    std::copy_n(parts[0].o, int64_t(rows) * shape_.dvp, w.tile.o);
    std::copy_n(parts[0].row_max, rows, w.tile.row_max);
    std::copy_n(parts[0].row_sum, rows, w.tile.row_sum);
    for (int64_t c = 1; c < p.chunks; ++c)
      ops_.kernels_of_level().merge(rows, shape_.dvp, parts[c].row_max, parts[c].row_sum, parts[c].o,
                                    w.tile.row_max, w.tile.row_sum, w.tile.o);
    BlockMaxima blocks;
    if (oracle_)
      blocks = {part_maxima_[size_t(item.s * shape_.hkv + item.g)], maxima_ld(a_.batch.kv_len(item.s)),
                block_};
    finish(item, w, blocks);
  }

  // o and lse of the tile's rows, then scores and selection of its tokens.
  void finish(const Item& item, Worker& w, const BlockMaxima& blocks) {
    const RaggedBatch& b = a_.batch;
    const int64_t first = b.cu_q[size_t(item.s)] + item.begin, tokens = item.end - item.begin;
    ops_.finish(w.tile, first, tokens, item.g, {}, a_.o, a_.lse);
    if (!rank_) return;
    for (int64_t i = 0; i < tokens * shape_.r; ++i) w.log2_sum[i] = std::log2(w.tile.row_sum[i]);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = first + i, at = i * shape_.r,
                    position = b.past_len[size_t(item.s)] + item.begin + i;
      const int64_t last = position / block_;
      if (oracle_)
        ops_.kernels_of_level().group_scores(blocks.raw + at * blocks.ld, blocks.ld, w.tile.row_max + at,
                                             w.log2_sum + at, shape_.r, padded(last + 1), w.scores);
      if (a_.block_scores) {
        auto* out = reinterpret_cast<float*>(address(a_.block_scores, row, item.g));
        std::copy_n(w.scores, last + 1, out);
        std::fill(out + last + 1, out + a_.block_scores.dim(2), kNone);
      }
      if (!select_) continue;
      if (select_->random)
        random_row(b, select_->random_seed, select_->layer, item.s, item.g, position, last, w.scores);
      select_row(w.scores, last, select_->idx.dim(2), {select_->force_first, select_->force_diagonal},
                 reinterpret_cast<int32_t*>(address(select_->idx, row, item.g)), w.candidates);
    }
  }

  Runtime& rt_;
  const AttentionForward& a_;
  const AttentionSelect* select_;
  Shape shape_;
  TileOps ops_;
  int64_t block_ = 1, chunk_ = kChunkKeys;
  bool oracle_ = false;  // block scores are needed
  bool rank_ = false;    // so is a row of scores
  int64_t work_ = 0, merge_work_ = 0;
  std::vector<Plan> plans_;
  std::vector<Item> items_, merges_;
  std::vector<Worker> workers_;
  std::vector<Part> parts_;
  std::vector<float*> part_maxima_;
};

}  // namespace
}  // namespace attn

void cpu_attention(Runtime& rt, const AttentionForward& a) {
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  attn::FullAttention(rt, a, nullptr, t).run();
}

void cpu_attention_select(Runtime& rt, const AttentionSelect& a) {
  HYSPARSE_CHECK(a.block >= 1, "attention_select: block {}", a.block);
  AttentionForward f = a.attention;
  f.score_block = a.block;
  const DType t = check_args(f);
  const TensorView& idx = a.idx;
  HYSPARSE_CHECK(idx && idx.dtype == DType::i32 && idx.rank == 3 && idx.dim(0) == f.q.dim(0) &&
                     idx.dim(1) == f.kv.heads() && idx.dim(2) >= 1,
                 "attention_select: idx: expected i32[{}, {}, entries], got {}", f.q.dim(0), f.kv.heads(),
                 idx ? idx.describe() : "none");
  if (f.q.dim(0) == 0) return;
  attn::FullAttention(rt, f, &a, t).run();
}

}  // namespace hysparse
