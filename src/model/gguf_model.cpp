#include "model/gguf_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "model/rope_frequencies.h"
#include "model/weights.h"

namespace hysparse {
namespace {

// llama.cpp turns neighbouring dims of a head together in a llama model, the two halves in the others.
struct Architecture {
  std::string_view name;
  bool qk_norm;
  bool neighbours;
};
constexpr Architecture kArchitectures[] = {
    {"llama", false, true}, {"qwen2", false, false}, {"qwen3", true, false}};

constexpr std::pair<std::string_view, std::string_view> kModelNames[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"}};
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"}};

// "model.layers.7.mlp.up_proj.weight" -> "blk.7.ffn_up.weight"
std::string their_name(const std::string& ours) {
  for (const auto& [a, b] : kModelNames)
    if (ours == a) return std::string(b);
  constexpr std::string_view kPrefix = "model.layers.";
  HYSPARSE_CHECK(ours.starts_with(kPrefix), "tensor {} has no name in GGUF", ours);
  const size_t dot = ours.find('.', kPrefix.size());
  const std::string_view layer = std::string_view(ours).substr(kPrefix.size(), dot - kPrefix.size());
  for (const auto& [a, b] : kLayerNames)
    if (std::string_view(ours).substr(dot + 1) == a) return fmt::format("blk.{}.{}", layer, b);
  throw failure("internal check", fmt::format("tensor {} has no name in GGUF", ours));
}

bool is_rotated(const std::string& ours) {
  return ours.find("self_attn.q_proj.") != std::string::npos ||
         ours.find("self_attn.k_proj.") != std::string::npos;
}

// The rows of every head of `d` with dim s d/2 + i (half s, pair i) at place 2 i + s, or back.
TensorSource reordered(TensorSource inner, int64_t d, bool to_neighbours) {
  TensorSource out{inner.name, inner.shape, {}};
  const int64_t row = inner.row_size(), half = d / 2;
  out.read = [inner = std::move(inner), d, half, row, to_neighbours](int64_t first, int64_t count,
                                                                     float* to) {
    for (int64_t r = first; r < first + count; ++r, to += row) {
      const int64_t in_head = r % d;
      const int64_t source =
          to_neighbours ? in_head % 2 * half + in_head / 2 : in_head % half * 2 + in_head / half;
      inner.read(r - in_head + source, 1, to);
    }
  };
  return out;
}

// ---- scaled rotary frequencies

// A number that was a decimal before it became f32: 9.99999997e-06 is 1e-05.
double decimal(double f32) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(f32)).ptr;
  double value = f32;
  std::from_chars(text, end, value);
  return value;
}

constexpr const char* kRopeDivisors = "rope_freqs.weight";

// What the scaling divides each pair's frequency by.
std::vector<float> rope_divisors(ModelConfig config) {
  const RopeFrequencies scaled = rope_frequencies(config);
  config.rope_scaling.reset();
  const RopeFrequencies plain = rope_frequencies(config);
  std::vector<float> out;
  for (size_t i = 0; i < plain.radians.size(); ++i)
    out.push_back(static_cast<float>(plain.radians[i] / scaled.radians[i]));
  return out;
}

// The scaling of Llama 3's kind that these are the divisors of: its factor is the largest, its bounds are 1
// and 4 turns in every such model, and its original context is a power of two.
std::optional<RopeScaling> scaling_of_divisors(ModelConfig config, const std::vector<float>& divisors,
                                               const std::string& place) {
  RopeScaling s;
  s.rope_type = RopeType::llama3;
  s.factor = decimal(*std::max_element(divisors.begin(), divisors.end()));
  if (std::all_of(divisors.begin(), divisors.end(), [](float d) { return d == 1.0f; })) return {};
  s.low_freq_factor = 1;
  s.high_freq_factor = 4;
  for (int64_t original = 1024; s.factor > 1 && original <= int64_t(1) << 20; original *= 2) {
    s.original_max_position_embeddings = original;
    config.rope_scaling = s;
    const std::vector<float> derived = rope_divisors(config);
    const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4f * b; };
    if (std::equal(divisors.begin(), divisors.end(), derived.begin(), close)) return s;
  }
  throw input_error(place,
                    "divides the rotary frequencies otherwise than Llama 3 does, which is all that is known");
}

// ---- from GGUF

class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file), where_(file.path().string()) {}

  ModelConfig read() {
    const Architecture& arch = architecture();
    prefix_ = std::string(arch.name) + '.';
    ModelConfig c;
    c.attention = AttentionKind::full;
    c.qk_norm = arch.qk_norm;
    c.attention_bias = file_.find("blk.0.attn_q.bias") != nullptr;
    c.tie_word_embeddings = file_.find("output.weight") == nullptr;
    c.num_hidden_layers = needed("block_count");
    c.max_position_embeddings = needed("context_length");
    c.hidden_size = needed("embedding_length");
    c.intermediate_size = per_layer("feed_forward_length");
    c.num_attention_heads = per_layer("attention.head_count");
    c.num_key_value_heads =
        has("attention.head_count_kv") ? per_layer("attention.head_count_kv") : c.num_attention_heads;
    if (const auto n = integer("attention.key_length")) c.head_dim = n;
    if (const auto n = integer("attention.value_length"); n && n != c.head_dim) c.v_head_dim = n;
    c.rms_norm_eps = decimal(needed_real("attention.layer_norm_rms_epsilon"));
    c.rope_theta = decimal(real("rope.freq_base").value_or(c.rope_theta));
    c.vocab_size = vocabulary();
    token_ids(c);
    const std::optional<int64_t> rotated = integer("rope.dimension_count");
    check_plain();
    c.rope_scaling = rope_scaling(c);
    check_keys();
    c.finalize(where_);
    read_rope_divisors(c);
    if (rotated && *rotated != c.d())
      throw expected_error(at("rope.dimension_count"), fmt::format("{}, all dims of a head", c.d()),
                           std::to_string(*rotated));
    return c;
  }

 private:
  std::string at(const std::string& key) const { return fmt::format("{}: {}{}", where_, prefix_, key); }
  bool has(const std::string& key) {
    known_.insert(prefix_ + key);
    return file_.metadata().count(prefix_ + key) > 0;
  }
  std::optional<int64_t> integer(const std::string& key) {
    known_.insert(prefix_ + key);
    return file_.integer(prefix_ + key);
  }
  std::optional<double> real(const std::string& key) {
    known_.insert(prefix_ + key);
    return file_.real(prefix_ + key);
  }
  int64_t needed(const std::string& key) {
    const std::optional<int64_t> n = integer(key);
    if (!n) throw expected_error(at(key), "a whole number", "nothing");
    return *n;
  }
  double needed_real(const std::string& key) {
    const std::optional<double> x = real(key);
    if (!x) throw expected_error(at(key), "a number", "nothing");
    return *x;
  }
  // One number for all layers, or an array of equal ones.
  int64_t per_layer(const std::string& key) {
    has(key);
    const auto found = file_.metadata().find(prefix_ + key);
    if (found == file_.metadata().end() || found->second.type != GgufType::array) return needed(key);
    const GgufValue& list = found->second;
    for (size_t i = 0; i < list.count; ++i)
      if (!list.integer(i) || list.integer(i) != list.integer(0))
        throw expected_error(at(key), "the same whole number for every layer",
                             i == 0 ? list.describe() : fmt::format("another one for layer {}", i));
    if (list.count == 0) throw expected_error(at(key), "a whole number", list.describe());
    return *list.integer(0);
  }

  const Architecture& architecture() {
    const std::string name = file_.text("general.architecture").value_or("");
    std::vector<std::string_view> names;
    for (const Architecture& a : kArchitectures) {
      if (a.name == name) return a;
      names.push_back(a.name);
    }
    throw expected_error(where_ + ": general.architecture", fmt::format("{}", fmt::join(names, ", ")),
                         name.empty() ? "nothing" : quote_text(name));
  }

  int64_t vocabulary() {
    const GgufTensor* embedding = file_.find("token_embd.weight");
    if (!embedding) throw input_error(where_, "has no tensor \"token_embd.weight\"");
    const int64_t rows = embedding->shape[0];
    if (const auto n = integer("vocab_size"); n && *n != rows)
      throw expected_error(at("vocab_size"), fmt::format("{}, the rows of token_embd.weight", rows),
                           std::to_string(*n));
    return rows;
  }

  void token_ids(ModelConfig& c) const {
    const auto id = [&](const char* role) {
      return file_.integer(fmt::format("tokenizer.ggml.{}_token_id", role));
    };
    for (const char* role : {"eos", "eot", "eom"})
      if (const auto n = id(role); n && !std::count(c.eos_token_id.begin(), c.eos_token_id.end(), *n))
        c.eos_token_id.push_back(*n);
    c.bos_token_id = id("bos");
    c.pad_token_id = id("padding");
  }

  // Without a type, a factor is linear; 0 stands for none.
  std::optional<RopeScaling> rope_scaling(const ModelConfig& c) {
    known_.insert(prefix_ + "rope.scaling.type");
    const std::string type = file_.text(prefix_ + "rope.scaling.type").value_or("linear");
    const double factor = decimal(real("rope.scaling.factor").value_or(0.0));
    const std::optional<int64_t> original = integer("rope.scaling.original_context_length");
    if (type != "none" && type != "linear" && type != "yarn")
      throw expected_error(at("rope.scaling.type"), "none, linear or yarn", quote_text(type));
    if (type == "none" || factor == 0.0 || factor == 1.0) return {};
    RopeScaling s;
    s.rope_type = type == "yarn" ? RopeType::yarn : RopeType::linear;
    s.factor = factor;
    if (type == "yarn") s.original_max_position_embeddings = original.value_or(c.max_position_embeddings);
    return s;
  }

  // Llama 3's scaling is written as what it divides each frequency by.
  void read_rope_divisors(ModelConfig& c) {
    const GgufTensor* tensor = file_.find(kRopeDivisors);
    if (!tensor) return;
    const std::string place = fmt::format("{}: tensor {}", where_, quote_text(kRopeDivisors));
    if (c.rope_scaling) throw input_error(place, "is there, and rope.scaling.type is, too");
    const int64_t half = c.rotary_dims() / 2;
    if (tensor->shape != std::vector<int64_t>{half})
      throw expected_error(place, fmt::format("shape [{}]", half),
                           fmt::format("[{}]", fmt::join(tensor->shape, ", ")));
    std::vector<float> divisors(static_cast<size_t>(half));
    file_.source(*tensor).read(0, half, divisors.data());
    c.rope_scaling = scaling_of_divisors(c, divisors, place);
  }

  // What must have its plain value, or be absent.
  void check_plain() {
    for (const char* key : {"expert_count", "expert_used_count"})
      if (const auto n = integer(key); n && *n != 0)
        throw expected_error(at(key), "0: mixture-of-experts models are not read", std::to_string(*n));
    known_.insert(prefix_ + "attention.causal");
    if (!file_.boolean(prefix_ + "attention.causal").value_or(true))
      throw expected_error(at("attention.causal"), "true", "false");
  }
  void check_keys() const {
    std::set<std::string> known = known_;
    known.insert(prefix_ + "tensor_data_layout");
    for (const auto& [key, value] : file_.metadata())
      if (key.starts_with(prefix_) && !known.count(key))
        throw input_error(where_, fmt::format("unknown key {} ({})", quote_text(key), value.describe()),
                          "it may change what the model computes, so it is not ignored");
  }

  const GgufFile& file_;
  const std::string where_;
  std::string prefix_;
  std::set<std::string> known_;
};

const Architecture& stated_architecture(const GgufFile& file) {
  const std::string name = file.text("general.architecture").value_or("");
  for (const Architecture& a : kArchitectures)
    if (a.name == name) return a;
  throw failure("internal check", "gguf_tensors before gguf_config");
}

// ---- to GGUF

const Architecture& architecture_for(const ModelConfig& c) {
  constexpr const char* kWhere = "export";
  if (c.kind() != AttentionKind::full)
    throw input_error(kWhere,
                      fmt::format("llama.cpp knows full attention alone, and this model is {}",
                                  c.kind() ? enum_name(*c.kind()) : "of mixed layers"),
                      "its full twin can be exported: train or init one with --set attention=full");
  if (c.full_attention_gate)
    throw input_error(kWhere, "llama.cpp knows no gate on full attention (full_attention_gate)");
  if (c.n_routed_experts > 0) throw input_error(kWhere, "mixture-of-experts models are not written as GGUF");
  if (c.dv() != c.d() || c.rotary_dims() != c.d())
    throw input_error(kWhere,
                      "llama.cpp needs v_head_dim to be head_dim and all dims of a head to be rotated");
  if (c.qk_norm && c.attention_bias)
    throw input_error(kWhere, "llama.cpp knows no architecture with both qk_norm and attention_bias");
  if (c.rope_scaling) {
    const RopeScaling& s = *c.rope_scaling;
    if (s.rope_type == RopeType::llama3 && (c.qk_norm || c.attention_bias))
      throw input_error(kWhere,
                        "llama.cpp knows rope_scaling llama3 in models without biases and qk_norm alone");
    if (s.attention_factor || s.beta_fast || s.beta_slow || s.truncate)
      throw input_error(kWhere,
                        "llama.cpp knows yarn with its usual attention_factor, betas and truncation alone");
  }
  if (c.qk_norm) return kArchitectures[2];
  const bool square = c.num_attention_heads * c.d() == c.hidden_size;  // its qwen2 takes no other
  return kArchitectures[c.attention_bias && square ? 1 : 0];
}

constexpr int64_t file_type(GgufDType as) {
  switch (as) {
    case GgufDType::f32:
      return 0;
    case GgufDType::f16:
      return 1;
    case GgufDType::q8_0:
      return 7;
    case GgufDType::bf16:
      return 32;
    default:
      return 1024;
  }
}

}  // namespace

ModelConfig gguf_config(const GgufFile& file) {
  return ConfigReader(file).read();
}

std::vector<TensorSource> gguf_tensors(const GgufFile& file, const ModelConfig& config) {
  const std::string where = file.path().string();
  const Architecture& arch = stated_architecture(file);
  std::vector<TensorSource> out;
  std::set<std::string> known = {kRopeDivisors};
  for (const WeightSpec& spec : weight_specs(config, build_layer_plan(config))) {
    const std::string name = their_name(spec.name);
    known.insert(name);
    const GgufTensor* tensor = file.find(name);
    if (!tensor) throw input_error(where, fmt::format("has no tensor {}", quote_text(name)));
    if (tensor->shape != spec.shape)
      throw expected_error(where + ": tensor " + quote_text(name),
                           fmt::format("shape [{}] by the metadata", fmt::join(spec.shape, ", ")),
                           fmt::format("[{}]", fmt::join(tensor->shape, ", ")));
    TensorSource source = file.source(*tensor);
    if (arch.neighbours && is_rotated(spec.name)) source = reordered(std::move(source), config.d(), false);
    source.name = spec.name;
    out.push_back(std::move(source));
  }
  for (const GgufTensor& t : file.tensors())
    if (!known.count(t.name))
      throw input_error(where,
                        fmt::format("tensor {} is none of a {} model's", quote_text(t.name), arch.name),
                        "it may change what the model computes, so it is not ignored");
  return out;
}

bool fits_bf16(const GgufFile& file) {
  std::vector<float> values;
  for (const GgufTensor& t : file.tensors()) {
    if (t.dtype == GgufDType::bf16) continue;
    if (t.shape.size() > 1) return false;
    values.resize(static_cast<size_t>(t.shape[0]));
    file.source(t).read(0, t.shape[0], values.data());
    for (const float v : values)
      if (static_cast<float>(bf16(v)) != v) return false;
  }
  return true;
}

void add_gguf_model(GgufWriter& file, const ModelConfig& config, std::vector<TensorSource> tensors,
                    GgufDType as, const std::string& name, const Log& sink) {
  const Architecture& arch = architecture_for(config);
  const auto key = [&](const char* rest) { return fmt::format("{}.{}", arch.name, rest); };
  file.add_text("general.architecture", arch.name);
  file.add_text("general.type", "model");
  file.add_text("general.name", name);
  file.add_u32("general.file_type", file_type(as));
  file.add_u32("general.quantization_version", 2);
  file.add_u32(key("block_count"), config.num_hidden_layers);
  file.add_u32(key("context_length"), config.max_position_embeddings);
  file.add_u32(key("embedding_length"), config.hidden_size);
  file.add_u32(key("feed_forward_length"), config.intermediate_size);
  file.add_u32(key("attention.head_count"), config.num_attention_heads);
  file.add_u32(key("attention.head_count_kv"), config.kv_heads());
  file.add_u32(key("attention.key_length"), config.d());
  file.add_u32(key("attention.value_length"), config.dv());
  file.add_u32(key("rope.dimension_count"), config.rotary_dims());
  file.add_u32(key("vocab_size"), config.vocab_size);
  file.add_f32(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
  file.add_f32(key("rope.freq_base"), config.rope_theta);
  if (config.rope_scaling) {
    const RopeScaling& s = *config.rope_scaling;
    if (s.rope_type == RopeType::llama3) {
      const std::vector<float> divisors = rope_divisors(config);
      file.add({kRopeDivisors,
                {std::ssize(divisors)},
                [divisors](int64_t first, int64_t count, float* to) {
                  std::copy_n(divisors.begin() + first, count, to);
                }},
               GgufDType::f32);
    } else if (s.rope_type != RopeType::standard) {
      file.add_text(key("rope.scaling.type"), enum_name(s.rope_type));
      file.add_f32(key("rope.scaling.factor"), s.factor);
      if (s.original_max_position_embeddings)
        file.add_u32(key("rope.scaling.original_context_length"), *s.original_max_position_embeddings);
    }
  }
  std::vector<std::string> wider;
  for (TensorSource& t : tensors) {
    GgufDType dtype = t.shape.size() == 1 ? GgufDType::f32 : as;
    if (dtype == GgufDType::q8_0 && !GgufWriter::quantisable(t.shape)) {
      wider.push_back(t.name);
      dtype = GgufDType::f16;
    }
    const std::string theirs = their_name(t.name);
    if (arch.neighbours && is_rotated(t.name)) t = reordered(std::move(t), config.d(), true);
    t.name = theirs;
    file.add(std::move(t), dtype);
  }
  if (!wider.empty())
    log(sink, LogLevel::warning,
        fmt::format(
            "{} tensors have rows that are no multiple of 32 and are stored as F16, not Q8_0: {}, ...",
            wider.size(), wider[0]));
}

}  // namespace hysparse
