// Host side of a ragged batch: device tables of tiles, made once a step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hysparse/cuda.h"

namespace hysparse::cuda {

// Sets the calling thread's message and returns `code`.
int fail(int code, const std::string& message);
int check_cuda(cudaError_t error, const char* what);

// A run of query rows of one sequence: what one CTA of a tiled kernel works on.
struct Tile {
  int32_t q_row;     // first packed query row
  int32_t q_count;   // rows, <= the tile height
  int32_t kv_row;    // packed key row of the sequence's position 0
  int32_t position;  // position of the first query row
};

struct TileList {
  std::vector<Tile> host;  // in packed order
  Tile* device = nullptr;
};

// A run of keys of one sequence and the query tiles that see any of them.
struct KeyTile {
  int32_t kv_row;      // packed key row of its first key
  int32_t live;        // keys, <= the tile height
  int32_t position;    // of its first key
  int32_t order;       // number within its sequence
  int32_t q_tile;      // first query tile that sees it, numbered through the batch as in its TileList
  int32_t q_tiles;     // how many do
  int32_t q_row;       // packed row and
  int32_t q_position;  // position of that tile's first query
};

struct KeyTileList {
  int count = 0;
  KeyTile* device = nullptr;  // most query tiles first; those of a sequence in order
};

// A selection block; blocks are numbered through the whole batch.
struct BlockSpan {
  int32_t kv_row;    // packed key row of the block's first token
  int32_t position;  // its position within the sequence
  int32_t live;      // tokens of the sequence from there on
};

struct GatherIndex;

struct BlockTable {
  int count = 0;
  BlockSpan* spans = nullptr;  // device [count]
  int32_t* base = nullptr;     // device [tokens]: number of the first block of the token's sequence
};

}  // namespace hysparse::cuda

struct hysparse_cuda_batch {
  int32_t sequences = 0;
  int32_t tokens = 0;
  int32_t max_kv = 0;  // longest past + new
  std::vector<int32_t> cu_q, past, cu_kv;
  int32_t* position = nullptr;  // device [tokens]: position within the sequence
  int32_t* kv_start = nullptr;  // device [tokens]: packed key row of the sequence's position 0

  // Tiles of at most `height` rows, cut at multiples of it from each sequence's start; made at the first use
  // of a height.
  const hysparse::cuda::TileList* tiles(int height) const;

  // Tiles of at most `height` keys, cut at multiples of it from each sequence's start, beside query tiles of
  // `q_height`; made at the first use.
  const hysparse::cuda::KeyTileList* key_tiles(int height, int q_height) const;

  // The blocks of `block` tokens of all sequences; made at the first use of a size.
  const hysparse::cuda::BlockTable* blocks(int block) const;

  // The sliding window as an inverted index for the key-stationary backward, all heads alike; made at the
  // first use of a window and a count of query heads a KV head. See common/window_index.cu.
  const hysparse::cuda::GatherIndex* window_index(int window, int ratio) const;

  mutable std::mutex mutex;
  mutable std::map<std::pair<int, int>, std::shared_ptr<const hysparse::cuda::GatherIndex>> windows;
  mutable std::map<int, hysparse::cuda::BlockTable> block_tables;
  mutable std::map<int, hysparse::cuda::TileList> lists;
  mutable std::map<std::pair<int, int>, hysparse::cuda::KeyTileList> key_lists;
};
