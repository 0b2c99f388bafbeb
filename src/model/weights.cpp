#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

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

// Writes `count` values to elements [begin, begin + count) of a contiguous tensor of any compute dtype.
template <class From>
void store(Memory& memory, const TensorView& dst, int64_t begin, const From* values, int64_t count) {
  auto put = [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_same_v<T, From>)
      return memory.from_host(static_cast<T*>(dst.data) + begin, values,
                              static_cast<size_t>(count) * sizeof(T));
    std::vector<T> converted(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      if constexpr (std::is_same_v<T, bf16>)
        converted[size_t(i)] = bf16(static_cast<float>(values[i]));
      else
        converted[size_t(i)] = static_cast<T>(values[i]);
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

// Writes elements [begin, begin + count) of a weight: its value, and what this rank keeps of the master.
template <class From>
void store(Memory& memory, const Weight& w, int64_t begin, const From* values, int64_t count) {
  store(memory, w.value, begin, values, count);
  if (!w.master || w.master.dtype == w.value.dtype) return;
  const int64_t from = std::max(begin, w.master_begin),
                to = std::min(begin + count, w.master_begin + w.master.numel());
  if (from < to) store(memory, w.master, from - w.master_begin, values + (from - begin), to - from);
}

// Begins of weights in a group, and ends of shares.
constexpr int64_t kGrain = 64;
int64_t grains(int64_t n, int64_t of) {
  return (n + of - 1) / of * of;
}

}  // namespace

WeightFormat weight_format_of(std::string_view name) {
  if (name == "dtype") return WeightFormat::compute;
  if (name == "int8") return WeightFormat::int8;
  if (name == "fp8") return WeightFormat::fp8;
  throw expected_error("weights", "dtype (as the computation), int8 or fp8", "'" + std::string(name) + "'");
}

std::vector<WeightSpec> weight_specs(const ModelConfig& config, const LayerPlan& plan) {
  std::vector<WeightSpec> specs;
  for (Item& item : Catalogue(config, plan).items) specs.push_back(std::move(item.spec));
  return specs;
}

Weights::Weights(const ModelConfig& config, const LayerPlan& plan, WeightOptions options, Memory& memory)
    : options_(options), memory_(&memory) {
  const bool int8 = options.format == WeightFormat::int8, fp8 = options.format == WeightFormat::fp8;
  if ((int8 || fp8) && options.training)
    throw input_error("weights", fmt::format("{} weights cannot be trained", int8 ? "int8" : "fp8"),
                      "train in f32 or bf16; load the result in 8 bits");
  if (fp8 && config.n_routed_experts == 0)
    throw input_error("weights", "fp8 keeps experts, and this model has none",
                      "use int8 (on the CPU) or dtype");
  if (int8 && memory.device() != DeviceKind::cpu)
    throw input_error("weights", "int8 weights run on the CPU only in this version");
  const DType acc = options.compute == DType::f64 ? DType::f64 : DType::f32;
  layers.resize(plan.size());
  const Catalogue catalogue(config, plan);
  const auto numel = [](const Item& item) {
    int64_t n = 1;
    for (const int64_t d : item.spec.shape)
      HYSPARSE_CHECK(!__builtin_mul_overflow(n, d, &n) && n < int64_t(1) << 56, "{} is too large",
                     item.spec.name);
    return n;
  };
  const auto value_dtype = [&](const Item& item) { return item.spec.always_f32 ? acc : options.compute; };
  // The 8-bit type that a tensor is kept in; or none.
  const auto narrow_dtype = [&](const Item& item) -> std::optional<DType> {
    if (int8 && item.spec.quantisable) return DType::i8;
    if (fp8 && item.spec.expert) return DType::f8;
    return {};
  };
  const auto scales_a_row = [](const Item& item, DType dtype) {
    return dtype == DType::f8 ? int64_t(1) : quant_groups(item.spec.shape[1]);
  };

  // First what goes where: trained weights into the group of their dtypes, the others by themselves.
  struct Layout {
    DType value, gradient;
    int64_t elements = 0;
  };
  std::vector<Layout> layouts;
  std::vector<std::pair<size_t, int64_t>> places;  // of an item: its group and the begin in it
  int64_t total = 0;
  const auto take = [&](int64_t elements, DType dtype) {  // the offset of a new buffer
    const int64_t at = total, bytes = grains(elements * static_cast<int64_t>(size_of(dtype)), 64);
    HYSPARSE_CHECK(!__builtin_add_overflow(total, bytes, &total) && total >> 62 == 0,
                   "the model is too large");
    return at;
  };
  for (const Item& item : catalogue.items) {
    places.emplace_back(SIZE_MAX, 0);
    if (!options.training || !item.spec.trained) continue;
    const bool narrow = options.narrow_gradients && item.spec.shape.size() == 2;
    const DType value = value_dtype(item), gradient = narrow ? value : acc;
    size_t group = 0;
    while (group < layouts.size() && (layouts[group].value != value || layouts[group].gradient != gradient))
      ++group;
    if (group == layouts.size()) layouts.push_back({value, gradient});
    places.back() = {group, layouts[group].elements};
    layouts[group].elements += grains(numel(item), kGrain);
  }
  struct Offsets {
    int64_t values, gradients, masters;
  };
  std::vector<Offsets> offsets;
  for (Layout& l : layouts) {
    l.elements = grains(l.elements, kGrain * options.ranks);
    offsets.push_back({take(l.elements, l.value), take(l.elements, l.gradient),
                       l.value == acc ? -1 : take(l.elements / options.ranks, acc)});
  }
  struct Loose {
    int64_t value = 0, scales = 0;
  };
  std::vector<Loose> loose(catalogue.items.size());
  for (size_t i = 0; i < loose.size(); ++i) {
    const Item& item = catalogue.items[i];
    if (places[i].first != SIZE_MAX) continue;
    const std::optional<DType> narrow = narrow_dtype(item);
    loose[i].value = take(numel(item), narrow.value_or(value_dtype(item)));
    if (narrow) loose[i].scales = take(item.spec.shape[0] * scales_a_row(item, *narrow), DType::f32);
  }

  // Then all in one piece of memory, which the system can keep on huge pages.
  storage_ = Tensor(DType::u8, {total}, memory);
  const auto at = [&](int64_t offset) { return static_cast<std::byte*>(storage_.view().data) + offset; };
  groups_.resize(layouts.size());
  for (size_t g = 0; g < layouts.size(); ++g) {
    WeightGroup& group = groups_[g];
    const int64_t n = layouts[g].elements, share = n / options.ranks;
    group.values = TensorView(at(offsets[g].values), layouts[g].value, {n});
    group.gradients = TensorView(at(offsets[g].gradients), layouts[g].gradient, {n});
    group.begin = options.rank * share;
    group.masters = offsets[g].masters < 0 ? group.values.rows(group.begin, group.begin + share)
                                           : TensorView(at(offsets[g].masters), acc, {share});
  }
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
  for (size_t i = 0; i < catalogue.items.size(); ++i) {
    const Item& item = catalogue.items[i];
    LayerWeights* layer = item.layer < 0 ? nullptr : &layers[size_t(item.layer)];
    Weight& w = item.slot                                       ? layer->*item.slot
                : item.experts                                  ? (layer->*item.experts)[item.expert]
                : item.spec.name == "model.embed_tokens.weight" ? embed_tokens
                : item.spec.name == "model.norm.weight"         ? norm
                                                                : lm_head_own;
    w.name = item.spec.name;
    w.decay = item.spec.decay;
    const std::vector<int64_t>& shape = item.spec.shape;
    if (places[i].first == SIZE_MAX) {
      const std::optional<DType> narrow = narrow_dtype(item);
      const DType dtype = narrow.value_or(value_dtype(item));
      w.value = shaped(TensorView(at(loose[i].value), dtype, {0}), shape);
      if (narrow)
        w.scales = TensorView(at(loose[i].scales), DType::f32, {shape[0], scales_a_row(item, *narrow)});
      if (dtype == acc) w.master = w.value;
    } else {
      WeightGroup& group = groups_[places[i].first];
      const int64_t begin = places[i].second, end = begin + numel(item);
      group.parts.push_back({&w, begin});
      w.value = shaped(group.values.rows(begin, end), shape);
      w.grad = shaped(group.gradients.rows(begin, end), shape);
      const int64_t from = std::max(begin, group.begin), to = std::min(end, group.begin + group.share());
      if (from < to) w.master = group.masters.rows(from - group.begin, to - group.begin);
      w.master_begin = std::max<int64_t>(0, from - begin);
      if (options.ranks == 1) w.master = shaped(w.master, shape);
    }
    all_.push_back(&w);
    by_name_[w.name] = &w;
  }
}

Weight* Weights::find(const std::string& name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void Weights::init_random(const ModelConfig& config, const LayerPlan& plan, uint64_t seed, ThreadPool* pool,
                          int64_t distinct_experts) {
  HYSPARSE_CHECK(distinct_experts == 0 || !options_.training, "experts that are copies are not trained");
  std::set<const Weight*> copied;
  if (distinct_experts > 0)
    for (LayerWeights& layer : layers)
      for (auto* experts : {&layer.expert_gate, &layer.expert_up, &layer.expert_down})
        for (size_t e = static_cast<size_t>(distinct_experts); e < experts->size(); ++e)
          copied.insert(&(*experts)[e]);
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
    HYSPARSE_CHECK(!w->panels, "{}: packed already", w->name);
    if (copied.count(w)) continue;
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
    store(*memory_, *piece.weight, piece.begin, values.data(), count);
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (pool)
    pool->parallel_for(count, fill);
  else
    for (int64_t i = 0; i < count; ++i) fill(i, 0);
  if (copied.empty()) return;
  for (LayerWeights& layer : layers)
    for (auto* experts : {&layer.expert_gate, &layer.expert_up, &layer.expert_down})
      for (size_t e = static_cast<size_t>(distinct_experts); e < experts->size(); ++e) {
        const Weight& from = (*experts)[e % static_cast<size_t>(distinct_experts)];
        Weight& to = (*experts)[e];
        memory_->copy(to.value.data, from.value.data, to.value.bytes());
        if (to.scales) memory_->copy(to.scales.data, from.scales.data, to.scales.bytes());
        ++to.version;
      }
}

void Weights::assign(Weight& weight, const TensorView& host) {
  HYSPARSE_CHECK(host.contiguous() && host.same_shape(weight.value), "{} from {}", weight.name,
                 host.describe());
  if (host.dtype == DType::f64)
    store(*memory_, weight, 0, host.as<double>(), host.numel());
  else
    store(*memory_, weight, 0, host.as<float>(), host.numel());
  ++weight.version;
}

void Weights::set_quantised(Weight& weight, int64_t first, int64_t rows, const float* values) {
  const int64_t in = weight.value.dim(1);
  const TensorView value = weight.value.rows(first, first + rows),
                   scales = weight.scales.rows(first, first + rows);
  const bool here = memory_->device() == DeviceKind::cpu;
  Tensor own_value, own_scales;
  if (!here) {
    own_value = Tensor(value.dtype, {rows, in});
    own_scales = Tensor(DType::f32, {rows, scales.dim(1)});
  }
  const TensorView &to = here ? value : own_value.view(), &to_scales = here ? scales : own_scales.view();
  const bool finite = value.dtype == DType::f8
                          ? quantise_rows_f8(values, rows, in, to.as<f8>(), to_scales.as<float>())
                          : quantise_rows(values, rows, in, to.as<int8_t>(), to_scales.as<float>());
  if (!finite)
    throw input_error(weight.name, "holds a value that is not finite, which 8 bits cannot keep",
                      "hysparse inspect counts such values");
  if (here) return;
  memory_->from_host(value.data, to.data, to.bytes());
  memory_->from_host(scales.data, to_scales.data, to_scales.bytes());
}

void Weights::pack(Runtime& rt) {
  for (Weight* w : all_)
    if (w->value.rank == 2 && !w->grad) rt.ops.pack(rt, *w);
}

void Weights::zero_grad() {
  for (const WeightGroup& g : groups_) memory_->zero(g.gradients.data, g.gradients.bytes());
  if (load_) memory_->zero(load_.view().data, load_.view().bytes());
}

void Weights::master_to_value() {
  HYSPARSE_CHECK(options_.ranks == 1, "no rank has the masters of all");
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
