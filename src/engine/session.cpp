#include "engine/session.h"

#include <algorithm>

#include "base/error.h"
#include "engine/sampler.h"

namespace hysparse {

Session::Session(Runtime& rt, Model& model, const SessionOptions& options)
    : rt_(rt), model_(model), options_(options) {
  const ModelConfig& config = model.config();
  if (options_.context == 0) options_.context = config.max_position_embeddings;
  if (options_.context < 1 || options_.context > config.max_position_embeddings)
    throw expected_error("context",
                         fmt::format("1 to max_position_embeddings ({})", config.max_position_embeddings),
                         std::to_string(options_.context));
  if (options_.chunk < 1) throw expected_error("chunk", "at least 1 token", std::to_string(options_.chunk));
  options_.chunk = std::min(options_.chunk, options_.context);
  const DType compute = model.weights().options().compute;
  PagedKvOptions kv;
  kv.max_tokens = options_.context;
  kv.page_size = options_.page_size;
  // A page longer than the context would hold no more, but take its memory.
  const int64_t block = config.hysparse_block_size, blocks = (options_.context + block - 1) / block;
  if (kv.page_size > 0 && kv.page_size % block == 0) kv.page_size = std::min(kv.page_size, blocks * block);
  kv.dtype = compute;
  kv.kv_dtype = options_.kv_dtype;
  kv.poison = options_.poison;
  kv_ = std::make_unique<PagedKv>(config, model.plan(), kv, rt.memory, cache_runtime(rt, options_.kv_dtype));
  token_buffer_ = Tensor(DType::i32, {options_.chunk}, rt.memory);
  logits_ = Tensor(accumulation_dtype(compute), {1, config.vocab_size}, rt.memory);
  if (rt.memory.device() != DeviceKind::cpu)
    host_logits_ = Tensor(accumulation_dtype(compute), {1, config.vocab_size});
  drawn_ = Tensor(DType::i32, {1}, rt.memory);
}

Session::~Session() = default;

int64_t Session::length() const {
  return static_cast<int64_t>(tokens_.size());
}

void Session::reset() {
  kv_->clear(0);
  tokens_.clear();
  reused_ = 0;
}

void Session::check_tokens(const int32_t* tokens, int64_t count) const {
  const int64_t vocab = model_.config().vocab_size;
  for (int64_t i = 0; i < count; ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab)
      throw expected_error("tokens", fmt::format("ids in [0, {})", vocab), std::to_string(tokens[i]),
                           "the tokenizer must belong to the model");
  }
}

TensorView Session::last_logits() const {
  if (!host_logits_) return logits_.view().at(0);
  rt_.memory.to_host(host_logits_.view().data, logits_.view().data, logits_.view().bytes());
  return host_logits_.view().at(0);
}

// One forward over `count` new tokens. The cache and tokens_ change together or not at all.
void Session::step(const int32_t* tokens, int64_t count, bool want_logits) {
  RaggedBatch batch;
  batch.add_sequence(count, length());
  if (want_logits) batch.logit_rows.push_back(count - 1);
  const TensorView ids = token_buffer_.view().rows(0, count);
  rt_.memory.from_host(ids.data, tokens, ids.bytes());
  if (count == 1 && want_logits && kv_->can_repeat()) {
    const uint64_t layout = model_.layout(rt_, kv_->repeat_bound(length() + 1));
    kv_->repeat({0}, batch, layout, ids, logits_,
                [&](const RaggedBatch& bounded) { model_.forward(rt_, bounded, ids, *kv_, logits_); });
    kv_->commit();
    tokens_.push_back(*tokens);
    return;
  }
  kv_->begin_step({0}, batch);
  try {
    model_.forward(rt_, batch, ids, *kv_, want_logits ? logits_.view() : logits_.view().rows(0, 0));
  } catch (...) {
    kv_->discard();
    throw;
  }
  kv_->commit();
  tokens_.insert(tokens_.end(), tokens, tokens + count);
}

TensorView Session::prompt(const std::vector<int32_t>& tokens, const std::atomic<bool>* cancel) {
  const auto n = static_cast<int64_t>(tokens.size());
  if (n == 0) throw expected_error("prompt", "at least one token", "none");
  if (n > options_.context)
    throw input_error("prompt", fmt::format("{} tokens are more than the context of {}", n, options_.context),
                      "shorten the prompt or raise the context");
  check_tokens(tokens.data(), n);

  const auto differ = std::mismatch(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end()).first;
  // The last token always goes through the model: its logits are what is asked for.
  int64_t keep = std::min<int64_t>(differ - tokens.begin(), n - 1);
  if (!kv_->truncate(0, keep)) {
    kv_->clear(0);
    keep = 0;
  }
  tokens_.resize(static_cast<size_t>(keep));
  reused_ = keep;
  for (int64_t done = keep; done < n;) {
    if (cancel && cancel->load(std::memory_order_relaxed)) return {};
    const int64_t count = std::min(options_.chunk, n - done);
    step(tokens.data() + done, count, done + count == n);
    done += count;
  }
  return last_logits();
}

void Session::decode_step(int32_t token) {
  if (length() >= options_.context)
    throw input_error("decode", fmt::format("the sequence already holds {} tokens, all of the context of {}",
                                            length(), options_.context));
  check_tokens(&token, 1);
  step(&token, 1, true);
}

TensorView Session::decode(int32_t token) {
  decode_step(token);
  return last_logits();
}

std::optional<int32_t> Session::decode_and_draw(int32_t token, const DrawSettings& settings) {
  if (!host_logits_) return {};  // they are here
  decode_step(token);
  int32_t drawn = -1;
  if (rt_.ops.draw_tokens(rt_, {logits_, {&settings, 1}, drawn_}))
    rt_.memory.to_host(&drawn, drawn_.view().data, sizeof drawn);
  if (drawn >= 0) return drawn;
  // The device draws none of this size, or the logits are not numbers: this says so.
  SamplerScratch scratch;
  return draw_token(last_logits(), settings, scratch);
}

}  // namespace hysparse
