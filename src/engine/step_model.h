// What the engine needs of a model: its shape and one forward. Tests put scripted models in its place.
#pragma once

#include "model/model.h"

namespace hysparse {

class StepModel {
 public:
  virtual ~StepModel() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const LayerPlan& plan() const = 0;
  virtual DType compute() const = 0;
  // A number that changes whenever the same tokens would give other K and V: it is part of every key of the
  // prefix cache.
  virtual uint64_t identity() const = 0;
  // Bytes of the weights, where they lie; for the memory table.
  virtual int64_t weight_bytes() const { return 0; }
  // As Model::layout; 0: its steps are not repeated.
  virtual uint64_t layout(Runtime&, int64_t /*positions*/) { return 0; }
  // As Model::forward.
  virtual void forward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
                       const TensorView& logits) = 0;
};

// A real one. Keeps a reference.
class ModelStep : public StepModel {
 public:
  explicit ModelStep(Model& model) : model_(model) {}
  const ModelConfig& config() const override { return model_.config(); }
  const LayerPlan& plan() const override { return model_.plan(); }
  DType compute() const override { return model_.weights().options().compute; }
  uint64_t identity() const override;  // of this model object and the versions of its weights
  int64_t weight_bytes() const override;
  uint64_t layout(Runtime& rt, int64_t positions) override { return model_.layout(rt, positions); }
  void forward(Runtime& rt, const RaggedBatch& batch, const TensorView& tokens, KvStore& kv,
               const TensorView& logits) override {
    model_.forward(rt, batch, tokens, kv, logits);
  }

 private:
  Model& model_;
};

}  // namespace hysparse
