// Attention: the fast kernels where they take the call (fast_attention.h), the plain ones elsewhere.
#pragma once

#include "kernels/cuda_ops/resident.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

void attention(Resident&, Runtime&, const AttentionForward&);
void attention_backward(Resident&, Runtime&, const AttentionBackward&);
void sparse_attention(Resident&, Runtime&, const SparseAttentionForward&);
void sparse_attention_backward(Resident&, Runtime&, const SparseAttentionBackward&);
void window_attention(Resident&, Runtime&, const WindowAttentionForward&);
void window_attention_backward(Resident&, Runtime&, const WindowAttentionBackward&);
void select_blocks(Resident&, Runtime&, const SelectBlocks&);
void random_scores(Resident&, Runtime&, const RandomScores&);

}  // namespace hysparse::cuda_calls
