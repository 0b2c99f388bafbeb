#include "train/evaluate.h"

#include <algorithm>
#include <cmath>

#include "train/step.h"

namespace hysparse {

HeldOut evaluate_held_out(Runtime& rt, Model& model, const TokenData& data, const HeldOutOptions& o) {
  const int64_t seq_len = std::min(o.seq_len, data.tokens() - 1);
  if (seq_len < 1)
    throw expected_error("held-out data", "at least 2 tokens", std::to_string(data.tokens()),
                         "prepare the data again with a larger --holdout");
  int64_t windows = (data.tokens() - 1) / seq_len;
  if (o.max_tokens > 0) windows = std::clamp<int64_t>(o.max_tokens / seq_len, 1, windows);
  const SampleOrder order(windows, 0, false);
  HeldOut out;
  double nats = 0.0, bytes = 0.0;
  const double mean_bytes = static_cast<double>(data.bytes_of_text()) / static_cast<double>(data.tokens());
  for (int64_t first = 0; first < windows; first += o.rows) {
    TrainBatch batch =
        make_train_batch(data, order, first, std::min(o.rows, windows - first), seq_len, o.document_mask);
    if (batch.targets == 0) continue;
    const std::vector<double> losses = batch_losses(rt, model, batch);
    for (size_t i = 0; i < losses.size(); ++i) {
      const int32_t label = batch.labels[i];
      if (label == kIgnoreLabel) continue;
      nats += losses[i];
      bytes += o.token_bytes.empty() ? mean_bytes : o.token_bytes[static_cast<size_t>(label)];
    }
    out.targets += batch.targets;
  }
  out.nats_per_token = out.targets > 0 ? nats / static_cast<double>(out.targets) : NAN;
  out.bits_per_byte = bytes > 0 ? nats / std::log(2.0) / bytes : NAN;
  return out;
}

}  // namespace hysparse
