// TINY: the toy model of the tests.
#pragma once

#include "model/config.h"
#include "model/plan.h"

namespace hysparse::tests {

inline ModelConfig tiny_config(AttentionKind kind = AttentionKind::hysparse) {
  ModelConfig c;
  c.num_hidden_layers = 9;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.intermediate_size = 96;
  c.vocab_size = 97;
  c.max_position_embeddings = 4096;
  c.sliding_window = 128;
  c.hysparse_block_size = 64;
  c.hysparse_topk_tokens = 128;
  c.initializer_range = 0.2;
  c.attention = kind;
  return c;
}

}  // namespace hysparse::tests
