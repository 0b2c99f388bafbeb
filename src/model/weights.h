// All parameters of a model, by layer and by checkpoint name.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/weight.h"
#include "model/plan.h"

namespace hysparse {

struct LayerWeights {
  Weight input_layernorm, post_attention_layernorm;
  Weight q_proj, k_proj, v_proj, o_proj;  // k_proj, v_proj empty where a sparse layer has no own window K, V
  Weight q_bias, k_bias, v_bias;          // attention_bias
  Weight q_norm, k_norm;                  // qk_norm
  Weight sinks;                           // window branch [Hq], value f32 (f64 under ref)
  Weight sparse_sinks;                    // sparse branch [Hq], likewise
  Weight sparse_gate, window_gate, gate;  // [gate_width, hidden]
  Weight mlp_gate, mlp_up, mlp_down;      // dense; in a MoE layer its shared experts, as one MLP
  // MoE layers: E experts.
  Weight router, router_bias;  // [E, hidden]; [E] f32 (f64 under ref), no gradient
  std::vector<Weight> expert_gate, expert_up, expert_down;  // [f, hidden], [hidden, f]
  TensorView expert_load;  // training: [E] i64, tokens that chose each expert since zero_grad()
};

struct WeightSpec {  // what exists for a config, before any memory does
  std::string name;
  std::vector<int64_t> shape;
  enum class Init { normal, scaled_normal, one, zero } init;  // scaled: divided by sqrt(2 L)
  bool decay;
  bool always_f32;  // sinks, the router's bias
  bool expert = false;
  bool trained = true;  // false: no gradient; the balancing of experts moves it
  bool quantisable =
      false;  // may be kept as 8-bit integers: matrices of products and the embedding, not gates
};
// Every tensor of the checkpoint in file order.
std::vector<WeightSpec> weight_specs(const ModelConfig& config, const LayerPlan& plan);

// What the quantisable tensors are kept in, where nothing is trained (kernels/quantise.h). int8: 8-bit
// integers with a scale for every 64 neighbours of a row; on the CPU. fp8: the experts alone, e4m3 with a
// scale a row.
enum class WeightFormat : uint8_t { compute, int8, fp8 };
// "dtype" (as the computation), "int8" or "fp8"; Error(input) naming the option "weights" for anything else.
WeightFormat weight_format_of(std::string_view name);

struct WeightOptions {
  DType compute = DType::f32;  // f64 (ref), f32 or bf16
  bool training = false;       // allocate masters (where compute is narrower) and gradients
  WeightFormat format = WeightFormat::compute;
  bool narrow_gradients = false;  // matrices' gradients in the compute dtype, not the masters'
  // Training on several ranks: each keeps its share of the masters (and of the optimiser's state).
  int rank = 0, ranks = 1;
};

// Trained weights of the same dtypes, one behind the other in one piece of memory: what ranks cut among
// themselves. Every weight begins at a multiple of 64 elements; what lies between is 0.
struct WeightGroup {
  struct Part {
    Weight* weight;
    int64_t begin;  // element of the group that is its first
  };
  std::vector<Part> parts;
  TensorView values, gradients;  // [n], n a multiple of 64 * ranks
  TensorView
      masters;  // [n / ranks], elements [begin, begin + n / ranks); part of `values` where dtypes match
  int64_t begin = 0;
  int64_t share() const { return masters.numel(); }
  TensorView own(const TensorView& whole) const { return whole.rows(begin, begin + share()); }
};

class Weights {
 public:
  // Zeroed. Experts of a kind stand at equal distances in a layer. Throws Error(input) for int8 in memory
  // that is not the CPU's, for fp8 without experts, and for either with training.
  Weights(const ModelConfig& config, const LayerPlan& plan, WeightOptions options,
          Memory& memory = host_memory());
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  Weight embed_tokens, norm;
  Weight lm_head_own;  // empty when tied
  std::vector<LayerWeights> layers;
  Weight& lm_head() { return lm_head_own ? lm_head_own : embed_tokens; }

  // For weights that will only be read from now on: matrices into the order that the backend's products read
  // fastest, in place (Ops::pack). Nothing changes but the speed. They can no longer be saved, loaded or
  // trained; matrices with gradients are left alone.
  void pack(Runtime& rt);

  // Every present weight once, in checkpoint order.
  std::vector<Weight*>& all() { return all_; }
  const std::vector<Weight*>& all() const { return all_; }
  Weight* find(const std::string& name);  // null where there is none
  // Training: every weight that has a gradient is in one of these.
  const std::vector<WeightGroup>& groups() const { return groups_; }
  const TensorView& expert_loads() const { return load_.view(); }  // of all layers, [layers, E]; or empty
  const WeightOptions& options() const { return options_; }
  Memory& memory() const { return *memory_; }

  // An element depends on (seed, tensor name, index) alone: drawn in f64, rounded to f32, then to the compute
  // dtype. So every dtype, thread count and twin starts from the same values in the tensors they share.
  // distinct_experts, where not 0 (benchmarks of large models; not for training): of a layer's experts only
  // that many are drawn, the others are copies of them made where the weights live.
  void init_random(const ModelConfig& config, const LayerPlan& plan, uint64_t seed,
                   ThreadPool* pool = nullptr, int64_t distinct_experts = 0);
  // The value of `weight`, and what this rank keeps of its master, from a whole tensor in host memory: f32,
  // or f64 where the masters are.
  void assign(Weight& weight, const TensorView& host);
  // Rows [first, first + rows) of `weight`, kept in 8 bits, from f32 values. Error(input) where
  // one is not finite.
  void set_quantised(Weight& weight, int64_t first, int64_t rows, const float* values);
  void zero_grad();        // and the load of experts
  void master_to_value();  // refresh compute copies, bump versions; not where ranks share the masters
  int64_t parameters() const;

 private:
  WeightOptions options_;
  Memory* memory_;
  Tensor storage_, load_;
  std::vector<WeightGroup> groups_;
  std::vector<Weight*> all_;
  std::unordered_map<std::string, Weight*> by_name_;
};

}  // namespace hysparse
