// The sparse branch's gradient cut off: what a model learns without it. Lives in tests only.
#pragma once

#include "unit/train/forwarding_ops.h"

namespace hysparse::tests {

// q' gets nothing from the sparse branch; the shared K, V and the sinks get nothing at all from it.
class CutSparse : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void sparse_attention_backward(Runtime& rt, const SparseAttentionBackward& p) const override {
    rt.memory.zero(p.dq.data, p.dq.bytes());
  }
};

}  // namespace hysparse::tests
