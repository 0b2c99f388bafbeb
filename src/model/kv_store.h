// Where K and V live is the only difference between training and inference. The model sees append() alone.
#pragma once

#include "kernels/kv_view.h"

namespace hysparse {

class KvStore {
 public:
  virtual ~KvStore() = default;
  // Takes the K (rotated) and V of the batch's new tokens, [tokens, Hkv, d|dv], and returns a view over past
  // and new ones. The arguments stay valid until the end of the step. Full layers: everything; window
  // branches: the last window - 1 and the new ones.
  virtual KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) = 0;
};

// Training and one-shot scoring: nothing past, the view is the arguments.
class TrainKv : public KvStore {
 public:
  KvView append(int layer, const RaggedBatch& batch, const TensorView& k, const TensorView& v) override {
    KvView view;
    view.kind = KvView::Kind::contiguous;
    view.k = k;
    view.v = v;
    view.cu_kv = batch.cu_q.data();
    (void)layer;
    return view;
  }
};

}  // namespace hysparse
