// The model's configuration: the keys of config.json (spec section 8), their defaults and their validation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/log.h"

namespace hysparse {

enum class AttentionKind { full, hybrid_swa, hysparse, window };
enum class GateGranularity { head, channel };
enum class WindowMode { own, shared, none };
enum class SelectionMode { score, random };
enum class LayerType { full_attention, sliding_attention, hysparse_attention };
enum class RopeType { standard, linear, llama3, yarn };

template <>
struct EnumNames<AttentionKind> {
  static const std::vector<std::pair<AttentionKind, std::string_view>>& list();
};
template <>
struct EnumNames<GateGranularity> {
  static const std::vector<std::pair<GateGranularity, std::string_view>>& list();
};
template <>
struct EnumNames<WindowMode> {
  static const std::vector<std::pair<WindowMode, std::string_view>>& list();
};
template <>
struct EnumNames<SelectionMode> {
  static const std::vector<std::pair<SelectionMode, std::string_view>>& list();
};
template <>
struct EnumNames<LayerType> {
  static const std::vector<std::pair<LayerType, std::string_view>>& list();
};

template <>
struct EnumNames<RopeType> {
  static const std::vector<std::pair<RopeType, std::string_view>>& list();
};

// How rotary frequencies are scaled for contexts beyond those of the first training (model/rope_frequencies.h
// has the formulas). Each type has keys of its own; what is absent has transformers' default.
struct RopeScaling {
  RopeType rope_type = RopeType::standard;
  double factor = 1.0;
  std::optional<int64_t> original_max_position_embeddings;       // llama3, yarn
  std::optional<double> low_freq_factor, high_freq_factor;       // llama3
  std::optional<double> attention_factor, beta_fast, beta_slow;  // yarn
  std::optional<bool> truncate;                                  // yarn

  template <class V>
  static void fields(V&& visit);  // model/config_fields.h
};

struct ModelConfig {
  std::string model_type = "hysparse";
  int64_t num_hidden_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;    // 0: as num_attention_heads
  std::optional<int64_t> head_dim;    // null or absent: hidden_size / num_attention_heads
  std::optional<int64_t> v_head_dim;  // null or absent: head_dim
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 131072;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double partial_rotary_factor = 1.0;
  std::optional<RopeScaling> rope_scaling;  // absent: frequencies are powers of rope_theta alone
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool qk_norm = false;
  double initializer_range = 0.02;
  int64_t sliding_window = 128;
  // The layout: saved files state layer_types; run files may say attention and full_attention_interval
  // instead.
  std::optional<AttentionKind> attention;
  std::optional<int64_t> full_attention_interval;  // N + 1; absent: 4. Also the layout of twins
  std::vector<std::string> layer_types;
  int64_t hysparse_block_size = 64;
  int64_t hysparse_topk_tokens = 1024;
  GateGranularity hysparse_gate = GateGranularity::head;
  bool full_attention_gate = false;
  WindowMode hysparse_window = WindowMode::own;
  SelectionMode hysparse_selection = SelectionMode::score;
  int64_t hysparse_selection_seed = 0;
  bool hysparse_force_first = false;
  bool hysparse_force_diagonal = false;
  // Mixture of experts (0 experts: dense).
  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  int64_t first_k_dense_replace = 0;
  int64_t n_shared_experts = 0;
  // Token ids; every one of eos_token_id ends generation.
  std::vector<int64_t> eos_token_id;
  std::optional<int64_t> bos_token_id;
  std::optional<int64_t> pad_token_id;

  template <class V>
  static void fields(V&& visit);  // model/config_fields.h

  int64_t interval() const { return full_attention_interval.value_or(4); }
  int64_t kv_heads() const { return num_key_value_heads > 0 ? num_key_value_heads : num_attention_heads; }
  int64_t d() const { return head_dim ? *head_dim : hidden_size / num_attention_heads; }
  int64_t dv() const { return v_head_dim ? *v_head_dim : d(); }
  int64_t rotary_dims() const {
    return static_cast<int64_t>(static_cast<double>(d()) * partial_rotary_factor);
  }
  int64_t entries() const { return hysparse_topk_tokens / hysparse_block_size; }  // selected blocks a token
  int64_t gate_width() const {                                                    // gate logits a token
    return hysparse_gate == GateGranularity::head ? num_attention_heads : num_attention_heads * dv();
  }
  // Width of the MLP that every token of a layer passes through: a MoE layer's shared experts, as one; 0:
  // none.
  int64_t dense_width(bool moe) const {
    return moe ? n_shared_experts * moe_intermediate_size : intermediate_size;
  }
  bool moe_layer(int64_t layer) const { return n_routed_experts > 0 && layer >= first_k_dense_replace; }

  // The attention kind that layer_types amounts to; nothing where a list mixes sliding and sparse layers.
  std::optional<AttentionKind> kind() const;

  // Fills layer_types from attention (absent: hysparse) and the interval where it is empty; then checks every
  // rule of the spec. `where` names the file in errors. Throws Error(input) that names the field, what was
  // expected and what came.
  void finalize(const std::string& where);
};

// The layout of `layers` layers at 1:(interval - 1): layer i is full if i % interval == 0 or i is the last.
std::vector<std::string> layer_layout(AttentionKind kind, int64_t layers, int64_t interval);

// Gives `config` the layer types of `kind`: the full layers stay where they are if its list has any mix of
// full and other layers that starts with a full one, else the interval says where they are.
void replace_layout(ModelConfig& config, AttentionKind kind);

// Reads the text of a config.json (ours, or a Hugging Face one of a family that we know) or the model part of
// a run file; `overrides` are "key=value" as after --set, `where` names the file in errors. The result is
// finalized. What deserves a word (no rope_theta anywhere: the default is used) goes to `log`.
ModelConfig parse_model_config(const std::string& json_text, const std::string& where,
                               const std::vector<std::string>& overrides = {}, const Log& log = {});

// Adds the end ids of a generation_config.json, which Hugging Face's programs stop at: config.json often
// names one of several. Call finalize() after it.
void add_end_ids(ModelConfig& config, const std::string& json_text, const std::string& where);

// The text of config.json for a finalized config; states layer_types, never attention.
std::string model_config_json(const ModelConfig& config);

// "theta 640000, 64 of 128 dims rotated", and the scaling where there is one: for load messages and inspect.
std::string describe_rope(const ModelConfig& config);

}  // namespace hysparse
