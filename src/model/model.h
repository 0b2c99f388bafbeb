// The model: embedding, layers, final norm, head; forward and backward over one code path for every attention
// kind.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"
#include "model/kv_store.h"
#include "model/plan.h"
#include "model/weights.h"

namespace hysparse {

// What backward recomputes; shared K, V and selections are always kept.
enum class Recompute {
  none,
  selective,    // elementwise results
  projections,  // all but what attention makes
  layer         // all but the outputs of full attention
};
inline constexpr int kRecomputes = 4;
template <>
struct EnumNames<Recompute> {
  static const std::vector<std::pair<Recompute, std::string_view>>& list();
};

// Per full layer that emits a selection: idx [tokens, Hkv, entries] i32.
using SelectionMap = std::map<int, TensorView>;

// Per MoE layer: the experts of each token [tokens, num_experts_per_tok] i32, ascending.
using RouteMap = std::map<int, TensorView>;

// What an inspector wants to see of a forward; filled from `arena`.
struct Trace {
  Arena* arena = nullptr;
  bool want_hidden = false, want_scores = false, want_selection = false, want_experts = false;
  bool want_unread_scores = false;         // with want_scores: also of full layers that no sparse layer reads
  std::vector<TensorView> hidden;          // a layer: residual stream after it [tokens, hidden] T
  std::map<int, TensorView> block_scores;  // full emitting layers (all, if wanted): [tokens, Hkv, nblocks] A
  SelectionMap selection;
  RouteMap experts;
};

// Factors of the router's losses (kernels/ops.h, RouteBackward), which join the loss of training, summed over
// the MoE layers, as means over the tokens that count: those with a label.
struct RouterLosses {
  double balance = 0, z = 0;
};

struct ForwardOptions {
  const SelectionMap* pinned = nullptr;  // use these selections instead of scoring
  Trace* trace = nullptr;
  const RouteMap* pinned_experts = nullptr;  // use these experts; their weights are the router's
  RouterLosses router;                       // forward_backward only
  bool as_training = false;  // Model::forward: run the pass that training runs, which keeps all activations
  // Looked at before every layer, forward and backward: once set, the call throws Error(interrupted); what it
  // has written by then (gradients, loss) means nothing.
  const std::atomic<bool>* stop = nullptr;
};

class Saved;  // activations that backward needs, in an arena under a Recompute policy (model/saved.h)

class Model {
 public:
  // `config` finalized; weights of the config's shapes. Keeps references.
  Model(const ModelConfig& config, Weights& weights);
  ~Model();

  // Inference: logits [batch.logit_rows, vocab] in A, written to `logits`. `tokens` [tokens] i32. What `kv`
  // was given stays valid until the next call on this model. After the last layer only logit_rows are
  // computed.
  void forward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits, const ForwardOptions& options = {});

  // Training: forward + loss + backward. Gradients are added to the weights' grads, scaled so that a step's
  // sum over micro-batches is the gradient of (sum of losses) * grad_scale. loss [tokens] A, nats a token, 0
  // where the label is kIgnoreLabel.
  struct TrainStats {
    // An entry a layer, NaN where the layer has no such thing: means over tokens, heads (and channels) of the
    // gates; the share of a token's selected blocks that its predecessor in the sequence had selected, too
    // (at the full layers that select).
    std::vector<double> sparse_gate_mean, window_gate_mean, selection_overlap;
    // MoE layers, means over the tokens with a label: the entropy of the scores over the experts (1: even),
    // and the two losses of the router, whatever their factors.
    std::vector<double> router_entropy, balance_loss, z_loss;
  };
  void forward_backward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens,
                        const TensorView& labels, double grad_scale, Recompute recompute,
                        const TensorView& loss, TrainStats* stats = nullptr,
                        const ForwardOptions& options = {});
  // Loss alone, no gradients, in chunks of the vocabulary head.
  void forward_loss(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, const TensorView& labels,
                    const TensorView& loss, const ForwardOptions& options = {});

  // Makes positions below `positions` usable without memory of their own later. Returns a number that tells
  // where a forward's tables and activations lie: for the key of a step that repeats (kernels/ops.h).
  uint64_t layout(Runtime& rt, int64_t positions);

  const ModelConfig& config() const { return config_; }
  const LayerPlan& plan() const { return plan_; }
  Weights& weights() { return weights_; }
  // Bytes that this model's own arenas hold on to for activations; reused from call to call.
  size_t workspace_bytes() const;
  // Bytes that the last forward_backward kept from forward to backward.
  size_t activation_bytes() const;

 private:
  struct Impl;
  const ModelConfig config_;
  LayerPlan plan_;
  Weights& weights_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
