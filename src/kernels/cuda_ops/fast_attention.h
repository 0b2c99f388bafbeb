// Attention by the Hopper kernels of hysparse/cuda.h and the decode kernels of hysparse/cuda_decode.h: bf16,
// 16-byte rows. Each returns false where no such kernel takes the call; nothing has been written then.
#pragma once

#include "kernels/cuda_ops/resident.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

bool fast_attention(Resident&, Runtime&, const AttentionForward&);
bool fast_attention_select(Resident&, Runtime&, const AttentionSelect&);
bool fast_attention_backward(Resident&, Runtime&, const AttentionBackward&);
bool fast_sparse_attention(Resident&, Runtime&, const SparseAttentionForward&);
bool fast_sparse_attention_backward(Resident&, Runtime&, const SparseAttentionBackward&);
bool fast_window_attention(Resident&, Runtime&, const WindowAttentionForward&);
bool fast_window_attention_backward(Resident&, Runtime&, const WindowAttentionBackward&);

// One new token a sequence, K and V in pages (and rings). The sparse layer in one launch: of its tensors only
// `out` is written.
bool fast_decode(Resident&, Runtime&, const AttentionForward&, const AttentionSelect* select);
bool fast_decode(Resident&, Runtime&, const SparseWindowGated&);

}  // namespace hysparse::cuda_calls
