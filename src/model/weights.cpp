#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/quantise.h"

namespace hysparse {
namespace {

using Init = WeightSpec::Init;

struct Item {
  WeightSpec spec;
  int layer = -1;  // -1: a tensor of the whole model
  Weight LayerWeights::*slot = nullptr;
  std::vector<Weight> LayerWeights::*experts = nullptr;  // with `expert`, where slot is null
  size_t expert = 0;
};

// The one list of tensors. What comes first in it comes first in the file.
class Catalogue {
 public:
  Catalogue(const ModelConfig& config, const LayerPlan& plan) : c_(config) {
    matrix("model.embed_tokens.weight", c_.vocab_size, c_.hidden_size);
    for (size_t i = 0; i < plan.size(); ++i) layer(static_cast<int>(i), plan[i]);
    layer_ = -1;
    prefix_.clear();
    vector("model.norm.weight", c_.hidden_size, Init::one);
    if (!c_.tie_word_embeddings) matrix("lm_head.weight", c_.vocab_size, c_.hidden_size);
  }
  std::vector<Item> items;

 private:
  using Slot = Weight LayerWeights::*;

  void add(const std::string& name, std::vector<int64_t> shape, Init init, Slot slot, bool f32 = false) {
    const bool decay = init == Init::normal || init == Init::scaled_normal;
    items.push_back({{prefix_ + name, std::move(shape), init, decay, f32}, layer_, slot});
  }
  void matrix(const std::string& name, int64_t out, int64_t in, Slot slot = nullptr,
              Init init = Init::normal) {
    add(name, {out, in}, init, slot);
    items.back().spec.quantisable = true;
  }
  // Of gates and routers: small, and what they say is felt everywhere.
  void gate(const std::string& name, int64_t out, Slot slot = nullptr) {
    add(name, {out, c_.hidden_size}, Init::normal, slot);
  }
  void vector(const std::string& name, int64_t size, Init init, Slot slot = nullptr, bool f32 = false) {
    add(name, {size}, init, slot, f32);
  }

  void layer(int index, const LayerPlanEntry& entry) {
    using W = LayerWeights;
    layer_ = index;
    prefix_ = fmt::format("model.layers.{}.", index);
    const int64_t hidden = c_.hidden_size, hq = c_.num_attention_heads;
    vector("input_layernorm.weight", hidden, Init::one, &W::input_layernorm);

    const bool own_kv = entry.kind != LayerKind::sparse || entry.own_window_kv;
    projection("q", hq * c_.d(), &W::q_proj, &W::q_bias);
    if (own_kv) {
      projection("k", c_.kv_heads() * c_.d(), &W::k_proj, &W::k_bias);
      projection("v", c_.kv_heads() * c_.dv(), &W::v_proj, &W::v_bias);
    }
    matrix("self_attn.o_proj.weight", hidden, hq * c_.dv(), &W::o_proj, Init::scaled_normal);
    if (c_.qk_norm) {
      vector("self_attn.q_norm.weight", c_.d(), Init::one, &W::q_norm);
      if (own_kv) vector("self_attn.k_norm.weight", c_.d(), Init::one, &W::k_norm);
    }
    if (entry.window > 0) vector("self_attn.sinks", hq, Init::zero, &W::sinks, true);
    if (entry.kind == LayerKind::sparse) {
      vector("self_attn.sparse_sinks", hq, Init::zero, &W::sparse_sinks, true);
      gate("self_attn.sparse_gate.weight", c_.gate_width(), &W::sparse_gate);
      if (entry.window > 0) gate("self_attn.window_gate.weight", c_.gate_width(), &W::window_gate);
    }
    if (entry.kind == LayerKind::full && entry.gated)
      gate("self_attn.gate.weight", c_.gate_width(), &W::gate);

    vector("post_attention_layernorm.weight", hidden, Init::one, &W::post_attention_layernorm);
    if (entry.moe) {
      gate("mlp.gate.weight", c_.n_routed_experts, &W::router);
      vector("mlp.gate.e_score_correction_bias", c_.n_routed_experts, Init::zero, &W::router_bias, true);
      items.back().spec.trained = false;
      for (int64_t e = 0; e < c_.n_routed_experts; ++e) {
        const size_t first = items.size();
        mlp(fmt::format("mlp.experts.{}.", e), c_.moe_intermediate_size, nullptr, nullptr, nullptr);
        std::vector<Weight> W::*groups[] = {&W::expert_gate, &W::expert_up, &W::expert_down};
        for (size_t i = first; i < items.size(); ++i) {
          items[i].spec.expert = true;
          items[i].experts = groups[i - first];
          items[i].expert = static_cast<size_t>(e);
        }
      }
      if (const int64_t width = c_.dense_width(true); width > 0)
        mlp("mlp.shared_experts.", width, &W::mlp_gate, &W::mlp_up, &W::mlp_down);
    } else {
      mlp("mlp.", c_.intermediate_size, &W::mlp_gate, &W::mlp_up, &W::mlp_down);
    }
  }
  void projection(const char* which, int64_t out, Slot weight, Slot bias) {
    const std::string name = fmt::format("self_attn.{}_proj.", which);
    matrix(name + "weight", out, c_.hidden_size, weight);
    if (c_.attention_bias) vector(name + "bias", out, Init::zero, bias);
  }
  void mlp(const std::string& name, int64_t width, Slot gate, Slot up, Slot down) {
    matrix(name + "gate_proj.weight", width, c_.hidden_size, gate);
    matrix(name + "up_proj.weight", width, c_.hidden_size, up);
    matrix(name + "down_proj.weight", c_.hidden_size, width, down, Init::scaled_normal);
  }

  const ModelConfig& c_;
  int layer_ = -1;
  std::string prefix_;
};

uint64_t hash_name(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char ch : name) h = (h ^ static_cast<unsigned char>(ch)) * 0x100000001b3ull;
  return h;
}

TensorView shaped(const TensorView& flat_like, const std::vector<int64_t>& shape) {
  if (shape.size() == 1) return TensorView(flat_like.data, flat_like.dtype, {shape[0]});
  return TensorView(flat_like.data, flat_like.dtype, {shape[0], shape[1]});
}

// Writes `count` f32 values to elements [begin, begin + count) of a contiguous tensor of any compute dtype.
void store(Memory& memory, const TensorView& dst, int64_t begin, const float* values, int64_t count) {
  auto put = [&](auto tag) {
    using T = decltype(tag);
    std::vector<T> converted(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) converted[size_t(i)] = static_cast<T>(values[i]);
    memory.from_host(static_cast<T*>(dst.data) + begin, converted.data(), converted.size() * sizeof(T));
  };
  switch (dst.dtype) {
    case DType::f64:
      return put(double{});
    case DType::f32:
      return put(float{});
    default:
      HYSPARSE_CHECK(dst.dtype == DType::bf16, "weights in {}", name_of(dst.dtype));
      return put(bf16{});
  }
}

}  // namespace

WeightFormat weight_format_of(std::string_view name) {
  if (name == "dtype") return WeightFormat::compute;
  if (name == "int8") return WeightFormat::int8;
  throw expected_error("weights", "dtype (as the computation) or int8", "'" + std::string(name) + "'");
}

std::vector<WeightSpec> weight_specs(const ModelConfig& config, const LayerPlan& plan) {
  std::vector<WeightSpec> specs;
  for (Item& item : Catalogue(config, plan).items) specs.push_back(std::move(item.spec));
  return specs;
}

Weights::Weights(const ModelConfig& config, const LayerPlan& plan, WeightOptions options, Memory& memory)
    : options_(options), memory_(&memory) {
  if (config.n_routed_experts > 0 && memory.device() != DeviceKind::cpu)
    throw input_error("n_routed_experts", "mixture-of-experts layers do not run on a GPU in this version",
                      "run them with --device cpu");
  const bool int8 = options.format == WeightFormat::int8;
  if (int8 && options.training)
    throw input_error("weights", "int8 weights cannot be trained",
                      "train in f32 or bf16; load the result as int8");
  if (int8 && memory.device() != DeviceKind::cpu)
    throw input_error("weights", "int8 weights run on the CPU only in this version");
  const DType acc = options.compute == DType::f64 ? DType::f64 : DType::f32;
  layers.resize(plan.size());
  const Catalogue catalogue(config, plan);
  const auto for_buffers = [&](const Item& item, const auto& fn) {
    const std::vector<int64_t>& shape = item.spec.shape;
    if (int8 && item.spec.quantisable) {
      fn(DType::i8, shape, &Weight::value);
      fn(DType::f32, std::vector<int64_t>{shape[0], quant_groups(shape[1])}, &Weight::scales);
      return;
    }
    const DType value = item.spec.always_f32 ? acc : options.compute;
    fn(value, shape, &Weight::value);
    if (options.training && value != acc) fn(acc, shape, &Weight::master);
    const bool narrow = options.narrow_gradients && shape.size() == 2;
    if (options.training && item.spec.trained) fn(narrow ? value : acc, shape, &Weight::grad);
  };
  // All in one piece of memory, which the system can keep on huge pages.
  const auto bytes_of = [](const Item& item, DType dtype, const std::vector<int64_t>& shape) {
    size_t bytes = size_of(dtype);
    for (const int64_t d : shape)
      HYSPARSE_CHECK(!__builtin_mul_overflow(bytes, static_cast<size_t>(d), &bytes), "{} is too large",
                     item.spec.name);
    return (bytes + 63) / 64 * 64;
  };
  size_t total = 0, at = 0;
  for (const Item& item : catalogue.items)
    for_buffers(item, [&](DType dtype, const std::vector<int64_t>& shape, auto) {
      HYSPARSE_CHECK(!__builtin_add_overflow(total, bytes_of(item, dtype, shape), &total) && total >> 62 == 0,
                     "the model is too large");
    });
  storage_ = Tensor(DType::u8, {static_cast<int64_t>(total)}, memory);
  int64_t moe_layers = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (!plan[i].moe) continue;
    ++moe_layers;
    for (auto* group : {&layers[i].expert_gate, &layers[i].expert_up, &layers[i].expert_down})
      group->resize(static_cast<size_t>(config.n_routed_experts));
  }
  if (options.training && moe_layers > 0) {
    load_ = Tensor(DType::i64, {moe_layers, config.n_routed_experts}, memory);
    int64_t next = 0;
    for (size_t i = 0; i < plan.size(); ++i)
      if (plan[i].moe) layers[i].expert_load = load_.view().at(next++);
  }
  for (const Item& item : catalogue.items) {
    LayerWeights* layer = item.layer < 0 ? nullptr : &layers[size_t(item.layer)];
    Weight& w = item.slot                                       ? layer->*item.slot
                : item.experts                                  ? (layer->*item.experts)[item.expert]
                : item.spec.name == "model.embed_tokens.weight" ? embed_tokens
                : item.spec.name == "model.norm.weight"         ? norm
                                                                : lm_head_own;
    w.name = item.spec.name;
    w.decay = item.spec.decay;
    for_buffers(item, [&](DType dtype, const std::vector<int64_t>& shape, TensorView Weight::*buffer) {
      const TensorView flat(static_cast<std::byte*>(storage_.view().data) + at, dtype, {0});
      at += bytes_of(item, dtype, shape);
      w.*buffer = shaped(flat, shape);
    });
    if (w.value.dtype == acc) w.master = w.value;
    all_.push_back(&w);
    by_name_[w.name] = &w;
  }
}

Weight* Weights::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Weights::init_random(const ModelConfig& config, const LayerPlan& plan, uint64_t seed, ThreadPool* pool) {
  struct Piece {
    Weight* weight;
    const WeightSpec* spec;
    int64_t begin, end;
  };
  constexpr int64_t kPiece = int64_t(1) << 16;
  const std::vector<WeightSpec> specs = weight_specs(config, plan);
  std::vector<Piece> pieces;
  for (const WeightSpec& spec : specs) {
    Weight* w = find(spec.name);
    HYSPARSE_CHECK(w, "init_random: no tensor {}: another config", spec.name);
    const int64_t row = spec.shape.back(), piece = std::max<int64_t>(1, kPiece / row) * row;  // whole rows
    for (int64_t begin = 0; begin < w->value.numel(); begin += piece)
      pieces.push_back({w, &spec, begin, std::min(begin + piece, w->value.numel())});
    ++w->version;
  }
  const double scaled =
      config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  auto fill = [&](int64_t task, int) {
    const Piece& piece = pieces[size_t(task)];
    std::vector<float> values(static_cast<size_t>(piece.end - piece.begin));
    const Init init = piece.spec->init;
    if (init == Init::normal || init == Init::scaled_normal) {
      const double deviation = init == Init::normal ? config.initializer_range : scaled;
      Rng rng(seed, hash_name(piece.spec->name),
              static_cast<uint64_t>(2 * piece.begin));  // two draws a value
      for (float& v : values) v = static_cast<float>(deviation * rng.normal());
    } else {
      std::fill(values.begin(), values.end(), init == Init::one ? 1.0f : 0.0f);
    }
    const int64_t count = piece.end - piece.begin, row = piece.spec->shape.back();
    if (piece.weight->scales)
      return set_quantised(*piece.weight, piece.begin / row, count / row, values.data());
    store(*memory_, piece.weight->value, piece.begin, values.data(), count);
    if (piece.weight->master && piece.weight->master.data != piece.weight->value.data)
      store(*memory_, piece.weight->master, piece.begin, values.data(), count);
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (pool)
    pool->parallel_for(count, fill);
  else
    for (int64_t i = 0; i < count; ++i) fill(i, 0);
}

void Weights::set_quantised(Weight& weight, int64_t first, int64_t rows, const float* values) {
  const int64_t in = weight.value.dim(1);
  if (!quantise_rows(values, rows, in, weight.value.rows(first, first + rows).as<int8_t>(),
                     weight.scales.rows(first, first + rows).as<float>()))
    throw input_error(weight.name, "holds a value that is not finite, which int8 cannot keep",
                      "hysparse inspect counts such values");
}

void Weights::zero_grad() {
  for (Weight* w : all_)
    if (w->grad) memory_->zero(w->grad.data, w->grad.bytes());
  if (load_) memory_->zero(load_.view().data, load_.view().bytes());
}

void Weights::master_to_value() {
  for (Weight* w : all_) {
    if (w->master && w->master.data != w->value.data) {
      std::vector<float> values(static_cast<size_t>(w->master.numel()));
      memory_->to_host(values.data(), w->master.data, w->master.bytes());
      store(*memory_, w->value, 0, values.data(), w->master.numel());
    }
    ++w->version;
  }
}

int64_t Weights::parameters() const {
  int64_t n = 0;
  for (const Weight* w : all_) n += w->value.numel();
  return n;
}

}  // namespace hysparse
