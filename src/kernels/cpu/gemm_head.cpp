// The head and its loss in row chunks whose logits stay in the caches.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cpu/impl.h"

namespace hysparse {

void cpu_head_loss(Runtime& rt, const HeadLoss& p) {
  const DType t = check_args(p);
  const int64_t n = p.x.dim(0), vocab = p.weight.value.dim(0);
  const bool gradients = p.grad_scale != 0 && (p.dx || p.weight.grad);
  // About 8 MiB of f32 logits, but rows enough that reading the head's weight is shared by many.
  constexpr int64_t kChunkBytes = int64_t(8) << 20, kFewest = 256;
  const int64_t rows = std::max(kFewest, kChunkBytes / (vocab * 4) / 64 * 64);
  for (int64_t begin = 0; begin < n; begin += rows) {
    const int64_t end = std::min(n, begin + rows);
    ArenaScope scope(rt.scratch);
    const TensorView x = p.x.rows(begin, end);
    const TensorView logits = rt.scratch.alloc(DType::f32, {end - begin, vocab});
    TensorView dlogits;
    if (gradients) dlogits = t == DType::f32 ? logits : rt.scratch.alloc(t, {end - begin, vocab});
    cpu_linear(rt, {x, p.weight, nullptr, logits, false});
    cpu_cross_entropy(rt,
                      {logits, p.labels.rows(begin, end), p.grad_scale, p.loss.rows(begin, end), dlogits});
    if (gradients)
      cpu_linear_backward(rt, {.x = x,
                               .weight = p.weight,
                               .bias = nullptr,
                               .dy = dlogits,
                               .dx = p.dx ? p.dx.rows(begin, end) : TensorView{},
                               .accumulate = false});
  }
}

}  // namespace hysparse
