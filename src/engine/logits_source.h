// What a generation draws from: one growing sequence and the logits after its last token.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/ops.h"
#include "tensor/tensor.h"

namespace hysparse {

class LogitsSource {
 public:
  virtual ~LogitsSource() = default;
  // Makes `tokens` (at least one) the sequence and returns the logits [vocab] (host, f32 or f64) of its last
  // token; an empty view when `cancel` was set on the way. Views live until the next call.
  virtual TensorView prompt(const std::vector<int32_t>& tokens,
                            const std::atomic<bool>* cancel = nullptr) = 0;
  // Appends one token.
  virtual TensorView decode(int32_t token) = 0;
  // Appends one token and draws the next, where that needs no logits on the host; empty, and nothing has
  // happened, elsewhere. Error(failure) where the logits are not numbers.
  virtual std::optional<int32_t> decode_and_draw(int32_t, const DrawSettings&) { return {}; }
  virtual int64_t length() const = 0;   // tokens of the sequence so far
  virtual int64_t context() const = 0;  // the most it may ever hold
};

}  // namespace hysparse
