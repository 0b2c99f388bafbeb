#pragma once

#include "kernels/ops.h"

namespace hysparse::cuda_calls {

void attention(Runtime&, const AttentionForward&);
void attention_backward(Runtime&, const AttentionBackward&);
void sparse_attention(Runtime&, const SparseAttentionForward&);
void sparse_attention_backward(Runtime&, const SparseAttentionBackward&);
void window_attention(Runtime&, const WindowAttentionForward&);
void window_attention_backward(Runtime&, const WindowAttentionBackward&);
void select_blocks(Runtime&, const SelectBlocks&);
void random_scores(Runtime&, const RandomScores&);

}  // namespace hysparse::cuda_calls
