// The one list of the configuration's keys: config files, --set, --help and saving all walk it.
#pragma once

#include "model/config.h"

namespace hysparse {

template <class V>
void RopeScaling::fields(V&& visit) {
  using S = RopeScaling;
  visit("rope_type", &S::rope_type, "default | linear | llama3 | yarn: how rotary frequencies are scaled");
  visit("factor", &S::factor, "slow rotations become so many times slower");
  visit("original_max_position_embeddings", &S::original_max_position_embeddings,
        "llama3, yarn: the context of the first training");
  visit("low_freq_factor", &S::low_freq_factor,
        "llama3: fewer turns than this in that context are scaled in full");
  visit("high_freq_factor", &S::high_freq_factor, "llama3: more turns than this are not scaled");
  visit("attention_factor", &S::attention_factor,
        "yarn: multiplies rotated queries and keys; null: 0.1 ln(factor) + 1");
  visit("beta_fast", &S::beta_fast, "yarn: more turns than this are not scaled; null: 32");
  visit("beta_slow", &S::beta_slow, "yarn: fewer turns than this are scaled in full; null: 1");
  visit("truncate", &S::truncate, "yarn: the bounds are whole pairs of dims; null: true");
}

template <class V>
void ModelConfig::fields(V&& visit) {
  using C = ModelConfig;
  visit("model_type", &C::model_type, "hysparse");
  visit("num_hidden_layers", &C::num_hidden_layers, "number of layers");
  visit("hidden_size", &C::hidden_size, "width of the residual stream");
  visit("num_attention_heads", &C::num_attention_heads, "query heads");
  visit("num_key_value_heads", &C::num_key_value_heads, "KV heads; absent: as many as query heads");
  visit("head_dim", &C::head_dim, "dims of a query or key head; null: hidden_size / num_attention_heads");
  visit("v_head_dim", &C::v_head_dim, "dims of a value head; null: head_dim");
  visit("intermediate_size", &C::intermediate_size, "width of the dense MLP");
  visit("vocab_size", &C::vocab_size, "rows of the embedding and of the head");
  visit("max_position_embeddings", &C::max_position_embeddings, "longest context in tokens");
  visit("rms_norm_eps", &C::rms_norm_eps, "added to the mean square in RMSNorm");
  visit("rope_theta", &C::rope_theta, "base of the rotary position embedding");
  visit("partial_rotary_factor", &C::partial_rotary_factor, "share of a head's dims that is rotated");
  visit("rope_scaling", &C::rope_scaling, "scaling of the rotary frequencies");
  visit("tie_word_embeddings", &C::tie_word_embeddings, "the head is the embedding matrix");
  visit("attention_bias", &C::attention_bias, "bias on the q, k and v projections");
  visit("qk_norm", &C::qk_norm, "RMSNorm of each query and key head before RoPE");
  visit("initializer_range", &C::initializer_range, "standard deviation of initial weights");
  visit("sliding_window", &C::sliding_window,
        "keys a window branch sees: the token itself and those before it");
  visit("attention", &C::attention, "full | hybrid_swa | hysparse | window; instead of layer_types");
  visit("full_attention_interval", &C::full_attention_interval,
        "one full layer, then this number less one of others; with attention, absent: 4");
  visit("layer_types", &C::layer_types,
        "a layer: full_attention | sliding_attention | hysparse_attention; instead of attention");
  visit("hysparse_block_size", &C::hysparse_block_size, "tokens of a selection block; 1: token-level");
  visit("hysparse_topk_tokens", &C::hysparse_topk_tokens, "tokens selected a query, a multiple of the block");
  visit("hysparse_gate", &C::hysparse_gate, "head | channel: one gate a query head or one a channel");
  visit("full_attention_gate", &C::full_attention_gate, "gate the output of full layers too");
  visit("hysparse_window", &C::hysparse_window,
        "own | shared | none: the window branch's K, V are its own, the shared ones, or there is no branch");
  visit("hysparse_selection", &C::hysparse_selection, "score | random: what ranks the blocks");
  visit("hysparse_selection_seed", &C::hysparse_selection_seed, "seed of the random selection");
  visit("hysparse_force_first", &C::hysparse_force_first, "block 0 always takes an entry");
  visit("hysparse_force_diagonal", &C::hysparse_force_diagonal,
        "the query's own block always takes an entry");
  visit("moe_intermediate_size", &C::moe_intermediate_size, "width of an expert");
  visit("n_routed_experts", &C::n_routed_experts, "experts a layer; 0: dense");
  visit("num_experts_per_tok", &C::num_experts_per_tok, "experts active a token");
  visit("norm_topk_prob", &C::norm_topk_prob, "the chosen experts' weights are normalised to 1");
  visit("routed_scaling_factor", &C::routed_scaling_factor, "multiplies the experts' weights");
  visit("first_k_dense_replace", &C::first_k_dense_replace, "the first so many layers have a dense MLP");
  visit("n_shared_experts", &C::n_shared_experts,
        "experts that every token passes through, beside the routed ones");
  visit("eos_token_id", &C::eos_token_id, "ids that end a text; any of them");
  visit("bos_token_id", &C::bos_token_id, "id that starts a text");
  visit("pad_token_id", &C::pad_token_id, "padding id");
}

}  // namespace hysparse
