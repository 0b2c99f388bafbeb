// The baselines and every ablation through the same paths.
#include <algorithm>
#include <functional>

#include "paths_common.h"

namespace hysparse::paths {
namespace {

struct Variant {
  const char* name;
  std::function<void(ModelConfig&)> change;
};

void with_experts(ModelConfig& c) {
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 3;
  c.moe_intermediate_size = 32;
  c.first_k_dense_replace = 1;
}

const std::vector<Variant>& variants() {
  static const std::vector<Variant> list{
      {"full", [](ModelConfig& c) { c.attention = AttentionKind::full; }},
      {"gated_full",
       [](ModelConfig& c) {
         c.attention = AttentionKind::full;
         c.full_attention_gate = true;
       }},
      {"hybrid_swa", [](ModelConfig& c) { c.attention = AttentionKind::hybrid_swa; }},
      {"window", [](ModelConfig& c) { c.attention = AttentionKind::window; }},
      {"shared_window", [](ModelConfig& c) { c.hysparse_window = WindowMode::shared; }},
      {"no_window", [](ModelConfig& c) { c.hysparse_window = WindowMode::none; }},
      {"channel_gate", [](ModelConfig& c) { c.hysparse_gate = GateGranularity::channel; }},
      {"random_selection",
       [](ModelConfig& c) {
         c.hysparse_selection = SelectionMode::random;
         c.hysparse_selection_seed = 5;
       }},
      {"token_level",
       [](ModelConfig& c) {
         c.hysparse_block_size = 1;
         c.hysparse_topk_tokens = 20;
       }},
      {"forced_blocks",
       [](ModelConfig& c) {
         c.hysparse_force_first = c.hysparse_force_diagonal = true;
         c.hysparse_topk_tokens = 32;
       }},
      {"everything_selected", [](ModelConfig& c) { c.hysparse_topk_tokens = 1024; }},
      {"biases_norms_partial_rotary",
       [](ModelConfig& c) {
         c.attention_bias = c.qk_norm = true;
         c.partial_rotary_factor = 0.5;
       }},
      {"narrow_values_tied",
       [](ModelConfig& c) {
         c.v_head_dim = 16;
         c.tie_word_embeddings = true;
       }},
      {"experts", with_experts},
      {"experts_hybrid_swa",
       [](ModelConfig& c) {
         with_experts(c);
         c.attention = AttentionKind::hybrid_swa;
       }},
      {"experts_gated_full",
       [](ModelConfig& c) {
         with_experts(c);
         c.attention = AttentionKind::full;
         c.full_attention_gate = true;
       }},
      {"shared_experts",
       [](ModelConfig& c) {
         with_experts(c);
         c.n_shared_experts = 2;
         c.norm_topk_prob = false;
         c.routed_scaling_factor = 0.8;
       }},
      {"sparse_at_once",
       [](ModelConfig& c) {
         c.attention.reset();
         c.layer_types = {"full_attention",     "hysparse_attention", "sliding_attention",
                          "hysparse_attention", "full_attention",     "full_attention",
                          "hysparse_attention", "sliding_attention",  "hysparse_attention"};
       }},
  };
  return list;
}

class Kinds : public testing::TestWithParam<size_t> {};

TEST_P(Kinds, EveryPathAgrees) {
  const int64_t n = 150;
  const std::vector<int32_t> tokens = random_tokens(n, 21);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(dtype));
    ModelConfig config = tiny(AttentionKind::hysparse, 16, 20, 48);
    variants()[GetParam()].change(config);
    Subject subject(config, dtype);
    Subject reference = subject.reference();
    const Outcome truth = run(reference, tokens, train(), {.want_scores = true});
    RunOptions pinned;
    pinned.pinned = &truth.selection;
    pinned.experts = &truth.experts;
    Agreement sum;
    for (const Path& path :
         {train(), one_shot(n), chunks(n, 1), chunks(n, 7), chunks(n, 64), Path{19, 21, 1, 40, 69}}) {
      expect_logits(run(subject, tokens, path, pinned), truth, dtype);
      // Forced blocks are in by rule, not by score; their selection is compared within the back end.
      if (dtype == DType::bf16 || config.hysparse_force_first) continue;
      expect_free_agreement(reference, tokens, truth, run(subject, tokens, path), dtype, sum);
    }
    if (config.hysparse_force_first && dtype == DType::f64) {
      const Outcome decoded = run(subject, tokens, chunks(n, 1));
      EXPECT_EQ(decoded.selection, truth.selection);
      for (const auto& [layer, idx] : decoded.selection)
        for (int64_t row = 0; row < n * subject.config.kv_heads(); ++row) {
          const auto first = idx.begin() + row * decoded.entries;
          const int64_t diagonal = row / subject.config.kv_heads() / 16;
          EXPECT_EQ(*first, 0);
          EXPECT_NE(std::find(first, first + decoded.entries, int32_t(diagonal)), first + decoded.entries);
        }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Tiny, Kinds, testing::Range(size_t(0), variants().size()),
                         [](const auto& info) { return variants()[info.param].name; });

}  // namespace
}  // namespace hysparse::paths
