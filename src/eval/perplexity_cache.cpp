// Perplexity through the inference cache.
#include <algorithm>

#include "base/error.h"
#include "engine/paged_kv.h"
#include "eval/perplexity.h"

namespace hysparse {
namespace {

// Appends the losses of `labels` under logits [n, vocab].
void append_losses(Runtime& rt, const TensorView& logits, const std::vector<int32_t>& labels,
                   std::vector<double>& out) {
  const DType a = logits.dtype;
  const auto n = static_cast<int64_t>(labels.size());
  const Tensor targets(DType::i32, {n}, rt.memory), loss(a, {n}, rt.memory), host(a, {n});
  rt.memory.from_host(targets.view().data, labels.data(), targets.view().bytes());
  rt.ops.cross_entropy(rt, {.logits = logits, .labels = targets, .grad_scale = 0, .loss = loss});
  rt.memory.to_host(host.view().data, loss.view().data, loss.view().bytes());
  for (int64_t i = 0; i < n; ++i)
    out.push_back(a == DType::f64 ? host.view().as<double>()[i]
                                  : static_cast<double>(host.view().as<float>()[i]));
}

}  // namespace

WindowLosses cached_losses(Runtime& rt, Model& model, KvDtype kv_dtype, int64_t chunk) {
  if (chunk < 1) throw expected_error("chunk", "at least 1 token", std::to_string(chunk));
  return [&rt, &model, kv_dtype, chunk](const RaggedBatch& windows, const std::vector<int32_t>& tokens,
                                        const std::vector<int32_t>& labels, std::vector<double>& loss) {
    const DType compute = model.weights().options().compute;
    PagedKvOptions options;
    options.max_tokens = std::max<int64_t>(1, windows.max_kv_len());
    options.dtype = compute;
    options.kv_dtype = kv_dtype;
    PagedKv kv(model.config(), model.plan(), options, rt.memory, cache_runtime(rt, kv_dtype));
    const int64_t most = std::min(chunk, options.max_tokens);
    const Tensor ids(DType::i32, {most}, rt.memory);
    const Tensor logits(accumulation_dtype(compute), {most, model.config().vocab_size}, rt.memory);
    for (int64_t s = 0; s < windows.sequences(); ++s) {
      for (int64_t done = 0; done < windows.q_len(s); done += most) {
        const int64_t n = std::min(most, windows.q_len(s) - done);
        const auto first = static_cast<size_t>(windows.cu_q[static_cast<size_t>(s)] + done);
        RaggedBatch batch;
        batch.add_sequence(n, done);
        std::vector<int32_t> wanted;
        for (int64_t i = 0; i < n; ++i) {
          if (labels[first + static_cast<size_t>(i)] == kIgnoreLabel) continue;
          batch.logit_rows.push_back(i);
          wanted.push_back(labels[first + static_cast<size_t>(i)]);
        }
        const TensorView rows = logits.view().rows(0, static_cast<int64_t>(wanted.size()));
        const TensorView input = ids.view().rows(0, n);
        rt.memory.from_host(input.data, tokens.data() + first, input.bytes());
        kv.begin_step({0}, batch);
        model.forward(rt, batch, input, kv, rows);
        kv.commit();
        std::vector<double> found;
        if (!wanted.empty()) append_losses(rt, rows, wanted, found);
        for (size_t i = 0; i < found.size(); ++i)
          loss[first + static_cast<size_t>(batch.logit_rows[i])] = found[i];
      }
      kv.clear(0);
    }
  };
}

}  // namespace hysparse
