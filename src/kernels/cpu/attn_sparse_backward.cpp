// Gradient of attention over selected blocks, in the order of the forward: tiles of tokens walk the union of
// their blocks. Rows of dk and dv of blocks that nobody chose are not touched.
#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/attn_branches.h"
#include "kernels/cpu/attn_grad.h"
#include "kernels/cpu/impl.h"

namespace hysparse {
namespace attn {
namespace {

constexpr int64_t kTileBytes = int64_t(768) << 10;  // what a tile of queries keeps
constexpr int64_t kMaxTokens = 128, kMinTokens = 8;

struct Worker {
  GradTile tile;
  BlockLists lists;
  int32_t* index = nullptr;
};

class SparseBackward {
 public:
  SparseBackward(Runtime& rt, const SparseAttentionBackward& a, DType t)
      : rt_(rt),
        a_(a),
        b_(a.batch),
        shape_(shape_of("sparse_attention_backward", t, a.q, a.kv)),
        ops_({b_, a.q, a.kv, a.scale, a.o, a.lse, a.d_o, a.dq, a.dk, a.dv, a.sinks, a.dsinks}, shape_),
        block_(a.selection.block) {
    const int64_t row_bytes =
        (3 * int64_t(shape_.dp) + 2 * int64_t(shape_.dvp) + 2 * kKeyTile) * int64_t(sizeof(float));
    tokens_ = std::clamp(kTileBytes / (row_bytes * shape_.r), kMinTokens, kMaxTokens);
    int64_t longest = 0;
    for (int64_t s = 0; s < b_.sequences(); ++s) longest = std::max(longest, b_.q_len(s));
    tokens_ = std::min(tokens_, longest);
  }

  void run() {
    ArenaScope scope(rt_.scratch);
    plan();
    for_items(rt_, static_cast<int64_t>(pieces_.size()), work_, [this](int64_t i, int worker) {
      const Piece& p = pieces_[size_t(i)];
      for (int64_t begin = p.begin; begin < p.end; begin += tokens_)
        tile(i, begin, std::min(p.end, begin + tokens_), workers_[size_t(worker)]);
    });
    join();
    reduce_sinks(pieces_, sink_sums_, shape_.r, a_.dsinks);
  }

 private:
  void plan() {
    const auto seen = [&](int64_t s) {
      return b_.q_len(s) * std::min(b_.kv_len(s), a_.selection.entries() * block_);
    };
    int64_t all = 0;
    for (int64_t s = 0; s < b_.sequences(); ++s) all += seen(s) * shape_.hkv;
    work_ = all * shape_.r * (shape_.d + shape_.dv);
    for (int64_t s = 0; s < b_.sequences(); ++s) {
      const double share = double(seen(s)) * double(kPieces) / double(std::max<int64_t>(1, all));
      const auto count = static_cast<int64_t>(std::clamp(std::round(share), 1.0, double(kPieces)));
      const int64_t even = (b_.q_len(s) + count - 1) / count;
      const int64_t step = (even + tokens_ - 1) / tokens_ * tokens_;
      for (int64_t g = 0; g < shape_.hkv; ++g)
        for (int64_t begin = 0; begin < b_.q_len(s); begin += step) {
          const int64_t end = std::min(b_.q_len(s), begin + step);
          pieces_.push_back({s, g, begin, end, end == b_.q_len(s), {}});
        }
    }
    for (Piece& p : pieces_) {
      if (p.direct) {
        p.part = ops_.caller_grads(p.s, p.g);
        touched_.push_back(nullptr);
        continue;
      }
      const int64_t keys = b_.past_len[size_t(p.s)] + p.end, blocks = (keys + block_ - 1) / block_;
      p.part = ops_.partial(rt_.scratch, 0, keys);
      touched_.push_back(static_cast<char*>(rt_.scratch.alloc_bytes(static_cast<size_t>(blocks))));
      std::fill_n(touched_.back(), blocks, char(0));
    }
    sink_sums_.resize(pieces_.size() * size_t(shape_.r));
    const int64_t blocks = b_.max_kv_len() / block_ + 1, entries = a_.selection.entries();
    workers_ = per_worker<Worker>(rt_, [&](Worker& w, Slab& slab) {
      w.tile.layout(slab, shape_, tokens_ * shape_.r, true);
      w.lists.layout(slab, blocks, tokens_, entries);
      w.index = slab.take<int32_t>(tokens_ * shape_.r);
    });
  }

  // The first use of a block in a partial copy clears it there.
  void touch(int64_t piece, int64_t block) {
    char* touched = touched_[size_t(piece)];
    if (!touched || touched[block]) return;
    touched[block] = 1;
    const Piece& p = pieces_[size_t(piece)];
    ops_.zero(p.part, block * block_, std::min((block + 1) * block_, b_.past_len[size_t(p.s)] + p.end));
  }

  void tile(int64_t piece, int64_t begin, int64_t end, Worker& w) {
    const Piece& p = pieces_[size_t(piece)];
    const int64_t row = b_.cu_q[size_t(p.s)] + begin, count = end - begin;
    const int64_t position = b_.past_len[size_t(p.s)] + begin;
    ops_.load_queries(w.tile, row, count, p.g, &sink_sums_[size_t(piece * shape_.r)]);
    w.lists.build(a_.selection, row, count, p.g, position);
    if (block_ < kSmallBlock)
      by_token(piece, count, position, w);
    else
      by_block(piece, position, w);
    ops_.store_dq(w.tile, row, count, p.g);
  }

  void by_block(int64_t piece, int64_t position, Worker& w) {
    const Piece& p = pieces_[size_t(piece)];
    const int r = shape_.r;
    for (int64_t j = w.lists.next(0), following; j < w.lists.blocks; j = following) {
      following = w.lists.next(j + 1);
      const int32_t* chosen_by = w.lists.tokens + w.lists.begin[j];
      const int members = w.lists.begin[j + 1] - w.lists.begin[j];
      touch(piece, j);
      for (int m = 0; m < members * r; ++m) w.index[m] = chosen_by[m / r] * r + m % r;
      const int64_t end = std::min((j + 1) * block_, position + chosen_by[members - 1] + 1);
      for (int64_t key = j * block_; key < end; key += kKeyTile) {
        const int n = static_cast<int>(std::min<int64_t>(kKeyTile, end - key));
        ops_.load_keys(w.tile, p.s, key, n, p.g, p.part);
        if (const int64_t next = key + n < end ? key + n : following * block_; next <= position)
          ops_.expect_keys(w.tile, p.s, next,
                           static_cast<int>(std::min<int64_t>({kKeyTile, block_, position + 1 - next})), p.g);
        const bool masked = position + chosen_by[0] + 1 - key < n;
        if (masked)
          for (int m = 0; m < members * r; ++m) {
            w.tile.lo[m] = 0;
            w.tile.hi[m] =
                static_cast<int32_t>(std::clamp<int64_t>(position + chosen_by[m / r] + 1 - key, 0, n));
          }
        ops_.pair(w.tile, 0, members * r, w.index, masked);
      }
    }
  }

  // One token at a time, its keys gathered.
  void by_token(int64_t piece, int64_t count, int64_t position, Worker& w) {
    const Piece& p = pieces_[size_t(piece)];
    GradTile& t = w.tile;
    for (int64_t i = 0; i < count; ++i) {
      int loaded = 0;
      const auto flush = [&] {
        ops_.load_key_rows(t, loaded);
        ops_.pair(t, static_cast<int>(i) * shape_.r, shape_.r, nullptr, false);
        loaded = 0;
      };
      const auto* entry = reinterpret_cast<const int32_t*>(
          address(a_.selection.idx, b_.cu_q[size_t(p.s)] + position - b_.past_len[size_t(p.s)] + i, p.g));
      for (int64_t e = 0; e < a_.selection.entries(); ++e) {
        if (entry[e] < 0 || entry[e] > (position + i) / block_) continue;
        touch(piece, entry[e]);
        const int64_t end = std::min((entry[e] + 1) * block_, position + i + 1);
        for (int64_t key = entry[e] * block_; key < end; ++key) {
          key_rows(a_.kv, b_, p.s, key, 1, p.g, t.k_rows + loaded, t.v_rows + loaded);
          t.dk_rows[loaded] = p.part.dk_row(key);
          t.dv_rows[loaded] = p.part.dv_row(key);
          if (++loaded == kKeyTile) flush();
        }
      }
      if (loaded > 0) flush();
    }
  }

  // Adds the partial copies, piece after piece, where they were used. Blocks are independent.
  void join() {
    constexpr int64_t kKeys = 512;
    std::vector<Piece> runs;  // begin, end: blocks
    const int64_t step = std::max<int64_t>(1, kKeys / block_);
    for (const Piece& p : pieces_)
      if (!p.direct && p.begin == 0)
        for (int64_t j = 0; j * block_ < b_.kv_len(p.s); j += step)
          runs.push_back({p.s, p.g, j, j + step, false, {}});
    rt_.pool.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t item, int) {
      const Piece& run = runs[size_t(item)];
      const KeyGrads to = ops_.caller_grads(run.s, run.g);
      for (size_t i = 0; i < pieces_.size(); ++i) {
        const Piece& p = pieces_[i];
        if (p.direct || p.s != run.s || p.g != run.g) continue;
        const int64_t keys = b_.past_len[size_t(p.s)] + p.end;
        for (int64_t j = run.begin; j < run.end && j * block_ < keys; ++j)
          if (touched_[i][j]) ops_.add(to, p.part, j * block_, std::min((j + 1) * block_, keys));
      }
    });
  }

  Runtime& rt_;
  const SparseAttentionBackward& a_;
  const RaggedBatch& b_;
  Shape shape_;
  GradOps ops_;
  int64_t block_;
  int64_t tokens_ = 0;
  int64_t work_ = 0;
  std::vector<Piece> pieces_;
  std::vector<char*> touched_;  // [blocks] of a piece's partial copy; null for direct pieces
  std::vector<double> sink_sums_;
  std::vector<Worker> workers_;
};

}  // namespace
}  // namespace attn

void cpu_sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& a) {
  const DType t = check_args(a);
  if (a.q.dim(0) == 0) return;
  attn::SparseBackward(rt, a, t).run();
}

}  // namespace hysparse
