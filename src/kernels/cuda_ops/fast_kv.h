// Keys and values as the fast kernels read them: rows of one [rows, Hkv, d] tensor, a sequence's in order.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda_ops/resident.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

inline bool aligned_rows(const TensorView& t) {
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] % 8 == 0 && t.stride[1] % 8 == 0;
}
inline hysparse_cuda_tensor fast_tensor(const TensorView& t) {
  return {t.data, t.stride[0], t.stride[1]};
}

// What a full layer's calls, of any number of tokens, are to leave of block scores and selection.
template <class Params>
void set_scores(Params& p, const AttentionForward& a, const AttentionSelect* select) {
  p.block = static_cast<int32_t>(select ? select->block : a.score_block);
  if (a.block_scores) {
    p.block_scores = a.block_scores.as<float>();
    p.score_stride = a.block_scores.stride[1];
  }
  if (!select) return;
  p.entries = static_cast<int32_t>(select->idx.dim(2));
  p.force_first = select->force_first;
  p.force_diagonal = select->force_diagonal;
  p.idx = select->idx.as<int32_t>();
}

struct FastKv {
  FastBatch batch;
  TensorView k, v;  // [rows, Hkv, d|dv]
};

// Contiguous K and V and pages that follow each other are read where they are; scattered pages are gathered
// in scratch first. Rings are for fast_window_kv. Nothing where the rows do not suit.
std::optional<FastKv> fast_kv(Resident&, Runtime&, const RaggedBatch&, const KvView&);
// For window attention, which asks for distances alone: of a ring, the keys that some query still sees, with
// positions counted from the first of them.
std::optional<FastKv> fast_window_kv(Resident&, Runtime&, const RaggedBatch&, const KvView&, int64_t window);

}  // namespace hysparse::cuda_calls
