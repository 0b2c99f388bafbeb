// The two branches of a sparse layer as work items, so that decoding can run both and their gates in one go.
#pragma once

#include <vector>

#include "kernels/cpu/attn_tile.h"
#include "kernels/cpu/attn_window.h"

namespace hysparse::attn {

// A run of tokens of one sequence and one KV head.
struct TokenTile {
  int64_t s, g;
  int64_t begin, end;  // tokens of the sequence
};
// Every sequence and KV head cut into tiles of `tokens(s)` tokens; heads inside sequences.
template <class Tokens>
std::vector<TokenTile> token_tiles(const RaggedBatch& batch, int64_t heads, const Tokens& tokens) {
  std::vector<TokenTile> tiles;
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const int64_t length = batch.q_len(s), step = length > 0 ? tokens(s) : 1;
    for (int64_t g = 0; g < heads; ++g)
      for (int64_t i = 0; i < length; i += step) tiles.push_back({s, g, i, std::min(length, i + step)});
  }
  return tiles;
}

// Blocks below this are gathered token by token: a tile of their keys would be mostly padding.
inline constexpr int64_t kSmallBlock = 16;

// The tokens of a tile listed by the block that they chose, blocks ascending, tokens ascending.
struct BlockLists {
  int32_t* begin = nullptr;   // [blocks + 1]
  int32_t* tokens = nullptr;  // [tokens * entries] token of the tile
  int64_t blocks = 0;

  void layout(Slab& slab, int64_t max_blocks, int64_t max_tokens, int64_t entries);
  // Tokens [row, row + tokens) of the batch, the first at `position`. Entries below 0 or beyond the token's
  // own block are left out; a block named twice by a token is an error.
  void build(const Selection& selection, int64_t row, int64_t tokens, int64_t g, int64_t position);
  // The first block from j on that somebody chose; `blocks` when there is none.
  int64_t next(int64_t j) const {
    while (j < blocks && begin[j] == begin[j + 1]) ++j;
    return j;
  }
};

class SparseForward {
 public:
  SparseForward(Runtime& rt, const SparseAttentionForward& a, DType t);  // scratch is taken from rt here
  int64_t items() const { return static_cast<int64_t>(tiles_.size()); }
  int64_t work() const { return work_; }
  void run(int64_t item, int worker);

 private:
  struct Worker {
    Tile tile;
    BlockLists lists;
    int32_t* index = nullptr;
    int32_t* entries = nullptr;
  };
  void by_block(const TokenTile& tile, Worker& w) const;
  void by_token(const TokenTile& tile, Worker& w) const;

  const SparseAttentionForward& a_;
  Shape shape_;
  TileOps ops_;
  std::vector<TokenTile> tiles_;
  std::vector<Worker> workers_;
  int64_t work_ = 0;
};

class WindowForward {
 public:
  WindowForward(Runtime& rt, const WindowAttentionForward& a, DType t);
  int64_t items() const { return static_cast<int64_t>(tiles_.size()); }
  int64_t work() const { return plan_.work; }
  void run(int64_t item, int worker);

 private:
  void in_band(const TokenTile& tile, int64_t position, Tile& w) const;
  void in_key_tiles(const TokenTile& tile, int64_t position, Tile& w) const;

  const WindowAttentionForward& a_;
  Shape shape_;
  TileOps ops_;
  WindowPlan plan_;
  std::vector<TokenTile> tiles_;
  std::vector<Tile> workers_;
};

// out of the given tokens and query heads; checked arguments.
void gated_rows(const Kernels& kernels, const GatedSumForward& a, int64_t row_begin, int64_t row_end,
                int64_t head_begin, int64_t head_end);

}  // namespace hysparse::attn
