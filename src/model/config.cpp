#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hysparse {

const std::vector<std::pair<AttentionKind, std::string_view>>& EnumNames<AttentionKind>::list() {
  static const std::vector<std::pair<AttentionKind, std::string_view>> names = {
      {AttentionKind::full, "full"},
      {AttentionKind::hybrid_swa, "hybrid_swa"},
      {AttentionKind::hysparse, "hysparse"},
      {AttentionKind::window, "window"}};
  return names;
}

const std::vector<std::pair<GateGranularity, std::string_view>>& EnumNames<GateGranularity>::list() {
  static const std::vector<std::pair<GateGranularity, std::string_view>> names = {
      {GateGranularity::head, "head"}, {GateGranularity::channel, "channel"}};
  return names;
}

const std::vector<std::pair<WindowMode, std::string_view>>& EnumNames<WindowMode>::list() {
  static const std::vector<std::pair<WindowMode, std::string_view>> names = {
      {WindowMode::own, "own"}, {WindowMode::shared, "shared"}, {WindowMode::none, "none"}};
  return names;
}

const std::vector<std::pair<SelectionMode, std::string_view>>& EnumNames<SelectionMode>::list() {
  static const std::vector<std::pair<SelectionMode, std::string_view>> names = {
      {SelectionMode::score, "score"}, {SelectionMode::random, "random"}};
  return names;
}

const std::vector<std::pair<LayerType, std::string_view>>& EnumNames<LayerType>::list() {
  static const std::vector<std::pair<LayerType, std::string_view>> names = {
      {LayerType::full_attention, "full_attention"},
      {LayerType::sliding_attention, "sliding_attention"},
      {LayerType::hysparse_attention, "hysparse_attention"}};
  return names;
}

const std::vector<std::pair<RopeType, std::string_view>>& EnumNames<RopeType>::list() {
  static const std::vector<std::pair<RopeType, std::string_view>> names = {{RopeType::standard, "default"},
                                                                           {RopeType::linear, "linear"},
                                                                           {RopeType::llama3, "llama3"},
                                                                           {RopeType::yarn, "yarn"}};
  return names;
}

namespace {

constexpr std::string_view kFull = "full_attention";
constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kSparse = "hysparse_attention";

// Bounds far above any real model and low enough that products of a few of them stay inside int64.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxWidth = int64_t(1) << 20;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxVocab = int64_t(1) << 24;
constexpr int64_t kMaxPositions = (int64_t(1) << 31) - 2;  // positions are 32-bit
constexpr int64_t kMaxExperts = int64_t(1) << 16;
constexpr int64_t kMaxSharedExperts = 256;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kMaxGroup = 16;      // query heads a KV head that the kernels take
constexpr int64_t kMaxEntries = 2048;  // selected blocks a token that the kernels take

struct Checker {
  const std::string& where;

  Error error(std::string_view field, std::string_view expected, const std::string& got,
              std::string hint = {}) const {
    return expected_error(where.empty() ? std::string(field) : fmt::format("{}: {}", where, field), expected,
                          got, std::move(hint));
  }
  void range(std::string_view field, int64_t value, int64_t low, int64_t high) const {
    if (value < low || value > high)
      throw error(field, fmt::format("a whole number from {} to {}", low, high), std::to_string(value));
  }
  void real(std::string_view field, double value, bool ok, std::string_view expected) const {
    if (!ok) throw error(field, expected, fmt::format("{}", value));
  }
};

void check_sizes(const Checker& check, const ModelConfig& c) {
  check.range("num_hidden_layers", c.num_hidden_layers, 1, kMaxLayers);
  check.range("hidden_size", c.hidden_size, 1, kMaxWidth);
  check.range("num_attention_heads", c.num_attention_heads, 1, kMaxHeads);
  check.range("num_key_value_heads", c.num_key_value_heads, 0, kMaxHeads);
  check.range("vocab_size", c.vocab_size, 1, kMaxVocab);
  check.range("max_position_embeddings", c.max_position_embeddings, 1, kMaxPositions);
  if (c.num_attention_heads % c.kv_heads() != 0)
    throw check.error("num_attention_heads",
                      fmt::format("a multiple of num_key_value_heads {}", c.kv_heads()),
                      std::to_string(c.num_attention_heads));
  if (c.num_attention_heads / c.kv_heads() > kMaxGroup)
    throw check.error("num_key_value_heads", fmt::format("at least num_attention_heads / {}", kMaxGroup),
                      fmt::format("{} of {} query heads", c.kv_heads(), c.num_attention_heads));

  auto head_dim = [&](std::string_view field, const std::optional<int64_t>& given, int64_t value) {
    if (value < 8 || value > kMaxHeadDim || value % 8 != 0)
      throw check.error(field, fmt::format("a multiple of 8 from 8 to {}", kMaxHeadDim),
                        given ? std::to_string(value)
                              : fmt::format("{} (derived: hidden_size / num_attention_heads)", value),
                        given ? "" : "state head_dim");
  };
  if (!c.head_dim && c.hidden_size % c.num_attention_heads != 0)
    throw check.error("hidden_size", "a multiple of num_attention_heads where head_dim is not stated",
                      fmt::format("{} and {} heads", c.hidden_size, c.num_attention_heads), "state head_dim");
  head_dim("head_dim", c.head_dim, c.d());
  if (c.v_head_dim) head_dim("v_head_dim", c.v_head_dim, c.dv());

  check.real("rms_norm_eps", c.rms_norm_eps, c.rms_norm_eps > 0 && c.rms_norm_eps < 1,
             "a number above 0, below 1");
  check.real("rope_theta", c.rope_theta, c.rope_theta > 1 && c.rope_theta <= 1e15,
             "a number above 1, at most 1e15");
  check.real("partial_rotary_factor", c.partial_rotary_factor,
             c.partial_rotary_factor > 0 && c.partial_rotary_factor <= 1, "a number above 0, at most 1");
  if (c.rotary_dims() < 2 || c.rotary_dims() % 2 != 0)
    throw check.error(
        "partial_rotary_factor", "a share of head_dim that is an even number of dims, at least 2",
        fmt::format("{} of {}, which is {} dims", c.partial_rotary_factor, c.d(), c.rotary_dims()));
  check.real("initializer_range", c.initializer_range, c.initializer_range >= 0 && c.initializer_range <= 100,
             "a number from 0 to 100");
}

void check_rope_scaling(const Checker& check, const RopeScaling& s) {
  const auto field = [](std::string_view name) { return fmt::format("rope_scaling.{}", name); };
  const auto of_type = [&](std::string_view name, bool stated, RopeType type, bool needed = false) {
    if (stated && s.rope_type != type)
      throw check.error(field(name), fmt::format("none: it belongs to type {}", enum_name(type)),
                        fmt::format("one beside type {}", enum_name(s.rope_type)));
    if (!stated && needed && s.rope_type == type)
      throw check.error(field(name), fmt::format("a number: type {} needs it", enum_name(type)), "nothing");
  };
  const auto number = [&](std::string_view name, const std::optional<double>& x, double low, double high) {
    if (x)
      check.real(field(name), *x, *x > low && *x <= high,
                 fmt::format("a number above {}, at most {}", low, high));
  };
  check.real(field("factor"), s.factor, s.factor >= 1 && s.factor <= 1e6, "a number from 1 to 1e6");
  of_type("low_freq_factor", s.low_freq_factor.has_value(), RopeType::llama3, true);
  of_type("high_freq_factor", s.high_freq_factor.has_value(), RopeType::llama3, true);
  number("low_freq_factor", s.low_freq_factor, 0, 1e6);
  number("high_freq_factor", s.high_freq_factor, s.low_freq_factor.value_or(0), 1e6);
  of_type("attention_factor", s.attention_factor.has_value(), RopeType::yarn);
  of_type("beta_fast", s.beta_fast.has_value(), RopeType::yarn);
  of_type("beta_slow", s.beta_slow.has_value(), RopeType::yarn);
  of_type("truncate", s.truncate.has_value(), RopeType::yarn);
  number("attention_factor", s.attention_factor, 0, 1e3);
  number("beta_slow", s.beta_slow, 0, 1e6);
  number("beta_fast", s.beta_fast, s.beta_slow.value_or(1), 1e6);
  const bool bounded = s.rope_type == RopeType::llama3 || s.rope_type == RopeType::yarn;
  if (bounded != s.original_max_position_embeddings.has_value())
    throw check.error(field("original_max_position_embeddings"),
                      bounded ? fmt::format("a whole number: type {} needs it", enum_name(s.rope_type))
                              : "none: it belongs to types llama3 and yarn",
                      bounded ? "nothing" : fmt::format("one beside type {}", enum_name(s.rope_type)));
  if (bounded)
    check.range(field("original_max_position_embeddings"), *s.original_max_position_embeddings, 1,
                kMaxPositions);
}

void check_selection(const Checker& check, const ModelConfig& c) {
  check.range("sliding_window", c.sliding_window, 1, kMaxPositions);
  check.range("hysparse_block_size", c.hysparse_block_size, 1, kMaxWidth);
  check.range("hysparse_topk_tokens", c.hysparse_topk_tokens, 1, kMaxPositions);
  if (c.hysparse_topk_tokens % c.hysparse_block_size != 0)
    throw check.error("hysparse_topk_tokens",
                      fmt::format("a multiple of hysparse_block_size {}", c.hysparse_block_size),
                      std::to_string(c.hysparse_topk_tokens));
  if (c.entries() > kMaxEntries)
    throw check.error("hysparse_topk_tokens",
                      fmt::format("at most {} blocks of {} tokens", kMaxEntries, c.hysparse_block_size),
                      fmt::format("{} tokens, {} blocks", c.hysparse_topk_tokens, c.entries()));
  const int64_t forced = int64_t(c.hysparse_force_first) + int64_t(c.hysparse_force_diagonal);
  if (forced > c.entries())
    throw check.error("hysparse_topk_tokens",
                      fmt::format("at least {} blocks, since {} are forced", forced, forced),
                      fmt::format("{} tokens, {} blocks", c.hysparse_topk_tokens, c.entries()));
}

void check_experts(const Checker& check, const ModelConfig& c) {
  check.range("n_routed_experts", c.n_routed_experts, 0, kMaxExperts);
  check.range("first_k_dense_replace", c.first_k_dense_replace, 0, c.num_hidden_layers);
  check.real("routed_scaling_factor", c.routed_scaling_factor,
             c.routed_scaling_factor > 0 && c.routed_scaling_factor <= 1e6, "a number above 0, at most 1e6");
  if (c.n_routed_experts > 0) {
    check.range("moe_intermediate_size", c.moe_intermediate_size, 1, kMaxWidth);
    check.range("num_experts_per_tok", c.num_experts_per_tok, 1, c.n_routed_experts);
    check.range("n_shared_experts", c.n_shared_experts, 0, kMaxSharedExperts);
  } else {
    auto none = [&](std::string_view field, int64_t value) {
      if (value != 0)
        throw check.error(field, "0, since n_routed_experts is 0 (a dense model)", std::to_string(value),
                          "state n_routed_experts");
    };
    none("moe_intermediate_size", c.moe_intermediate_size);
    none("num_experts_per_tok", c.num_experts_per_tok);
    none("first_k_dense_replace", c.first_k_dense_replace);
    none("n_shared_experts", c.n_shared_experts);
  }
  const bool dense_layer = c.n_routed_experts == 0 || c.first_k_dense_replace > 0;
  check.range("intermediate_size", c.intermediate_size, dense_layer ? 1 : 0, kMaxWidth * 4);
}

void check_tokens(const Checker& check, const ModelConfig& c) {
  for (int64_t id : c.eos_token_id) check.range("eos_token_id", id, 0, c.vocab_size - 1);
  if (c.bos_token_id) check.range("bos_token_id", *c.bos_token_id, 0, c.vocab_size - 1);
  if (c.pad_token_id) check.range("pad_token_id", *c.pad_token_id, 0, c.vocab_size - 1);
}

// The first layer where two lists of the same length differ, for messages.
std::string first_difference(const std::vector<std::string>& stated,
                             const std::vector<std::string>& derived) {
  for (size_t i = 0; i < stated.size(); ++i)
    if (stated[i] != derived[i])
      return fmt::format("layer {} is {} there and {} here", i, stated[i], derived[i]);
  return {};
}

void check_layout(const Checker& check, const ModelConfig& c) {
  if (static_cast<int64_t>(c.layer_types.size()) != c.num_hidden_layers)
    throw check.error("layer_types", fmt::format("{} entries, one a layer", c.num_hidden_layers),
                      fmt::format("{} entries", c.layer_types.size()));
  bool have_source = false;
  for (size_t i = 0; i < c.layer_types.size(); ++i) {
    const std::string& type = c.layer_types[i];
    if (type == kFull) have_source = true;
    if (type != kFull && type != kSliding && type != kSparse)
      throw check.error(fmt::format("layer_types[{}]", i),
                        fmt::format("{}, {} or {}", kFull, kSliding, kSparse), '"' + type + '"');
    if (type == kSparse && !have_source)
      throw check.error(fmt::format("layer_types[{}]", i),
                        "a full_attention layer before the first hysparse_attention layer",
                        fmt::format("layer {} is sparse and has no full layer before it to read", i));
  }
  // What a file says twice must agree.
  std::optional<AttentionKind> kind = c.attention;
  if (!kind && c.full_attention_interval) {
    kind = c.kind();
    if (!kind) return;  // no interval describes such a list; it serves twins
  }
  if (!kind) return;
  const auto derived = layer_layout(*kind, c.num_hidden_layers, c.interval());
  if (derived != c.layer_types)
    throw check.error("layer_types",
                      fmt::format("the layout of attention {} with full_attention_interval {}",
                                  enum_name(*kind), c.interval()),
                      first_difference(c.layer_types, derived), "state one of the two");
}

}  // namespace

std::vector<std::string> layer_layout(AttentionKind kind, int64_t layers, int64_t interval) {
  HYSPARSE_CHECK(interval >= 1, "full_attention_interval {}", interval);
  std::vector<std::string> types;
  for (int64_t i = 0; i < layers; ++i) {
    const bool full_place = i % interval == 0 || i == layers - 1;
    switch (kind) {
      case AttentionKind::full:
        types.emplace_back(kFull);
        break;
      case AttentionKind::hybrid_swa:
        types.emplace_back(full_place ? kFull : kSliding);
        break;
      case AttentionKind::hysparse:
        types.emplace_back(full_place ? kFull : kSparse);
        break;
      case AttentionKind::window:
        types.emplace_back(kSliding);
        break;
    }
  }
  return types;
}

void replace_layout(ModelConfig& c, AttentionKind kind) {
  const auto full = std::count(c.layer_types.begin(), c.layer_types.end(), kFull);
  const bool mixed =
      full > 0 && full < static_cast<int64_t>(c.layer_types.size()) && c.layer_types[0] == kFull;
  c.attention.reset();
  if (mixed && (kind == AttentionKind::hybrid_swa || kind == AttentionKind::hysparse)) {
    for (std::string& type : c.layer_types)
      if (type != kFull) type = kind == AttentionKind::hysparse ? kSparse : kSliding;
    if (c.layer_types != layer_layout(kind, c.num_hidden_layers, c.interval()))
      c.full_attention_interval.reset();
    return;
  }
  c.layer_types = layer_layout(kind, c.num_hidden_layers, c.interval());
}

std::optional<AttentionKind> ModelConfig::kind() const {
  bool full = false, sliding = false, sparse = false;
  for (const std::string& type : layer_types) {
    full |= type == kFull;
    sliding |= type == kSliding;
    sparse |= type == kSparse;
  }
  if (sparse) return sliding ? std::nullopt : std::optional(AttentionKind::hysparse);
  if (sliding) return full ? AttentionKind::hybrid_swa : AttentionKind::window;
  return full ? std::optional(AttentionKind::full) : std::nullopt;
}

void ModelConfig::finalize(const std::string& where) {
  const Checker check{where};
  if (model_type != "hysparse") throw check.error("model_type", "\"hysparse\"", '"' + model_type + '"');
  check_sizes(check, *this);
  if (rope_scaling) check_rope_scaling(check, *rope_scaling);
  check_selection(check, *this);
  check_experts(check, *this);
  check_tokens(check, *this);
  if (full_attention_interval)
    check.range("full_attention_interval", *full_attention_interval, 1, kMaxLayers);
  if (layer_types.empty())
    layer_types = layer_layout(attention.value_or(AttentionKind::hysparse), num_hidden_layers, interval());
  check_layout(check, *this);
}

std::string describe_rope(const ModelConfig& c) {
  std::string text = fmt::format("theta {}, {} of {} dims rotated", c.rope_theta, c.rotary_dims(), c.d());
  if (!c.rope_scaling) return text;
  const RopeScaling& s = *c.rope_scaling;
  text += fmt::format(", {} scaling by {}", enum_name(s.rope_type), s.factor);
  if (s.original_max_position_embeddings)
    text += fmt::format(" beyond {} positions", *s.original_max_position_embeddings);
  return text;
}

}  // namespace hysparse
