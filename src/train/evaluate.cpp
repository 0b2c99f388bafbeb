#include "train/evaluate.h"

#include <algorithm>
#include <cmath>

#include "train/step.h"

namespace hysparse {

int64_t spread_window(int64_t i, int64_t count, int64_t total) {
  // floor((2 i + 1) total / (2 count)), without the product of large numbers.
  const int64_t share = total / count, rest = total % count;
  return i * share + (share + (2 * i + 1) * rest / count) / 2;
}

HeldOut evaluate_held_out(Runtime& rt, Model& model, const TokenData& data, const HeldOutOptions& o) {
  const int64_t seq_len = std::min(o.seq_len, data.tokens() - 1);
  if (seq_len < 1)
    throw expected_error("held-out data", "at least 2 tokens", std::to_string(data.tokens()),
                         "prepare the data again with a larger --holdout");
  const int64_t total = (data.tokens() - 1) / seq_len;
  int64_t windows = total;
  if (o.max_tokens > 0) windows = std::clamp<int64_t>(o.max_tokens / seq_len, 1, windows);
  HeldOut out;
  double nats = 0.0, bytes = 0.0;
  const double mean_bytes = static_cast<double>(data.bytes_of_text()) / static_cast<double>(data.tokens());
  for (int64_t first = rt.comm.rank() * o.rows; first < windows; first += rt.comm.size() * o.rows) {
    std::vector<int64_t> samples;
    for (int64_t i = first; i < std::min(first + o.rows, windows); ++i)
      samples.push_back(spread_window(i, windows, total));
    TrainBatch batch = make_train_batch(data, samples, seq_len, o.document_mask);
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
  double sums[] = {nats, bytes, static_cast<double>(out.targets)};
  rt.comm.all_reduce_values(sums);
  nats = sums[0], bytes = sums[1];
  out.targets = static_cast<int64_t>(sums[2]);
  out.nats_per_token = out.targets > 0 ? nats / static_cast<double>(out.targets) : NAN;
  out.bits_per_byte = bytes > 0 ? nats / std::log(2.0) / bytes : NAN;
  return out;
}

}  // namespace hysparse
