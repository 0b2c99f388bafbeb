// Attention over pages in 8 bits. New tokens that are their sequence's only one are read by the decode
// kernels as codes; of other sequences K and V are widened to T first, exactly, a group of sequences at a
// time, in one buffer that the calls of a step share.
#pragma once

#include <functional>

#include "kernels/cuda_ops/resident.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

// A group's rows are no more than this takes, but for a single sequence, which may be longer.
inline constexpr int64_t kWidenedBytes = int64_t(256) << 20;
int64_t widened_bytes(int64_t row_bytes, int64_t context);

void quantise_kv(Resident&, const QuantiseKv&);

// `wide` computes one group, whose keys are contiguous rows of T.
void attention_8_bits(Resident&, Runtime&, const AttentionForward&,
                      const std::function<void(const AttentionForward&)>& wide);
void attention_select_8_bits(Resident&, Runtime&, const AttentionSelect&,
                             const std::function<void(const AttentionSelect&)>& wide);
void sparse_attention_8_bits(Resident&, Runtime&, const SparseAttentionForward&,
                             const std::function<void(const SparseAttentionForward&)>& wide);
void window_attention_8_bits(Resident&, Runtime&, const WindowAttentionForward&,
                             const std::function<void(const WindowAttentionForward&)>& wide);
// The window's keys may also be a ring.
void sparse_window_gated_8_bits(Resident&, Runtime&, const SparseWindowGated&,
                                const std::function<void(const SparseWindowGated&)>& wide);

}  // namespace hysparse::cuda_calls
