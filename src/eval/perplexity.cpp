#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace hysparse {
namespace {

constexpr size_t kBlockTokens = 64;
constexpr size_t kEnoughBlocks = 10;
constexpr int64_t kFirstBand = 64;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Standard error of (sum of nats) / (sum of tokens) over independent groups.
template <class Groups>
double ratio_error(const Groups& groups, double mean, int64_t tokens) {
  double squares = 0;
  for (const auto& g : groups) {
    const double residual = g.nats - mean * static_cast<double>(g.tokens);
    squares += residual * residual;
  }
  const auto n = static_cast<double>(groups.size());
  return std::sqrt(squares * n / (n - 1)) / static_cast<double>(tokens);
}

}  // namespace

std::vector<ScoreWindow> score_windows(int64_t tokens, int64_t window, int64_t stride) {
  if (window < 1) throw expected_error("window", "at least 1 token", std::to_string(window));
  if (stride < 1 || stride > window)
    throw expected_error("stride", fmt::format("1 to the window ({})", window), std::to_string(stride),
                         "a larger stride would leave tokens unscored");
  std::vector<ScoreWindow> out;
  for (int64_t begin = 0, scored = 0; scored < tokens - 1; begin += stride) {
    const int64_t inputs = std::min(window, tokens - 1 - begin);
    out.push_back({begin, inputs, scored + 1});
    scored = begin + inputs;
  }
  return out;
}

PerplexityOptions fill_in(PerplexityOptions o, int64_t max_positions) {
  if (o.window == 0) o.window = std::min<int64_t>(max_positions, 1024);
  if (o.window > max_positions)
    throw expected_error("window", fmt::format("at most max_position_embeddings ({})", max_positions),
                         std::to_string(o.window));
  if (o.stride == 0) o.stride = std::max<int64_t>(1, o.window / 2);
  return o;
}

WindowLosses model_losses(Runtime& rt, Model& model) {
  return [&rt, &model](const RaggedBatch& batch, const std::vector<int32_t>& tokens,
                       const std::vector<int32_t>& labels, std::vector<double>& loss) {
    const auto n = static_cast<int64_t>(tokens.size());
    const DType a = accumulation_dtype(model.weights().options().compute);
    const Tensor ids(DType::i32, {n}, rt.memory), targets(DType::i32, {n}, rt.memory), out(a, {n}, rt.memory);
    rt.memory.from_host(ids.view().data, tokens.data(), ids.view().bytes());
    rt.memory.from_host(targets.view().data, labels.data(), targets.view().bytes());
    model.forward_loss(rt, batch, ids, targets, out);
    const Tensor host(a, {n});
    rt.memory.to_host(host.view().data, out.view().data, out.view().bytes());
    for (int64_t i = 0; i < n; ++i)
      loss[static_cast<size_t>(i)] =
          a == DType::f64 ? host.view().as<double>()[i] : static_cast<double>(host.view().as<float>()[i]);
  };
}

double PositionBand::nats_per_token() const {
  return tokens > 0 ? nats / static_cast<double>(tokens) : kNaN;
}
double PositionBand::bits_per_byte() const {
  return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : kNaN;
}
double PerplexityResult::nats_per_token() const {
  return tokens > 0 ? nats / static_cast<double>(tokens) : kNaN;
}
double PerplexityResult::perplexity() const {
  return std::exp(nats_per_token());
}
double PerplexityResult::bits_per_byte() const {
  return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : kNaN;
}
double PerplexityResult::bits_per_byte_error() const {
  return bytes > 0 ? standard_error * static_cast<double>(tokens) / std::log(2.0) / static_cast<double>(bytes)
                   : kNaN;
}

Perplexity::Perplexity(WindowLosses losses, const PerplexityOptions& options)
    : losses_(std::move(losses)), options_(options) {
  score_windows(0, options_.window, options_.stride);  // checks both
  if (options_.batch < 0) throw expected_error("batch", "a count >= 0", std::to_string(options_.batch));
  if (options_.max_tokens < 0)
    throw expected_error("max_tokens", "a count >= 0", std::to_string(options_.max_tokens));
  if (options_.batch == 0) options_.batch = std::max<int64_t>(1, 2048 / options_.window);
}

bool Perplexity::full() const {
  return options_.max_tokens > 0 && taken_ >= options_.max_tokens;
}

void Perplexity::add(const std::vector<int32_t>& document) {
  if (full()) return;
  ++result_.documents;
  auto n = static_cast<int64_t>(document.size());
  if (options_.max_tokens > 0) n = std::min(n, options_.max_tokens - taken_ + 1);
  taken_ += std::max<int64_t>(0, n - 1);
  for (const ScoreWindow& w : score_windows(n, options_.window, options_.stride)) {
    const auto first = document.begin() + w.begin;
    pending_.push_back({{first, first + w.inputs + 1}, w.first_target - w.begin - 1, w.begin});
    if (static_cast<int64_t>(pending_.size()) == options_.batch) flush();
  }
}

void Perplexity::flush() {
  if (pending_.empty()) return;
  RaggedBatch batch;
  std::vector<int32_t> tokens, labels;
  for (const Pending& p : pending_) {
    batch.add_sequence(static_cast<int64_t>(p.tokens.size()) - 1);
    tokens.insert(tokens.end(), p.tokens.begin(), p.tokens.end() - 1);
    labels.insert(labels.end(), static_cast<size_t>(p.ignored), kIgnoreLabel);
    labels.insert(labels.end(), p.tokens.begin() + 1 + p.ignored, p.tokens.end());
  }
  std::vector<double> loss(tokens.size());
  losses_(batch, tokens, labels, loss);
  for (size_t s = 0; s < pending_.size(); ++s) {
    if (pending_[s].starts_document()) end_block();
    for (auto i = static_cast<size_t>(batch.cu_q[s]); i < static_cast<size_t>(batch.cu_q[s + 1]); ++i)
      if (labels[i] != kIgnoreLabel)
        count(labels[i], loss[i], pending_[s].begin + static_cast<int64_t>(i) - batch.cu_q[s] + 1);
  }
  pending_.clear();
  if (options_.progress) options_.progress(result_.tokens);
}

void Perplexity::count(int32_t token, double nats, int64_t position) {
  if (std::isnan(nats))
    throw failure("perplexity", fmt::format("the loss of scored token {} is not a number", result_.tokens),
                  "the weights or the computation are broken");
  result_.nats += nats;
  ++result_.tokens;
  const double delta = nats - mean_;
  mean_ += delta / static_cast<double>(result_.tokens);
  squares_ += delta * (nats - mean_);
  const int64_t bytes = options_.token_bytes ? options_.token_bytes(token) : 0;
  result_.bytes += bytes;
  auto& bands = result_.by_position;
  if (bands.empty()) bands.push_back({1, kFirstBand});
  while (bands.back().to <= position) bands.push_back({bands.back().to, 2 * bands.back().to});
  PositionBand& band =
      *std::find_if(bands.begin(), bands.end(), [&](const auto& b) { return position < b.to; });
  ++band.tokens;
  band.bytes += bytes;
  band.nats += nats;
  block_.push_back(nats);
  if (block_.size() == kBlockTokens) end_block();
}

void Perplexity::end_block() {
  if (block_.empty()) return;
  double sum = 0;
  for (const double x : block_) sum += x;
  blocks_.push_back({sum, static_cast<int64_t>(block_.size())});
  block_.clear();
}

PerplexityResult Perplexity::finish() {
  flush();
  end_block();
  const double mean = result_.nats_per_token();
  const auto n = static_cast<double>(result_.tokens);
  if (result_.tokens < 2)
    result_.standard_error = kNaN;
  else if (blocks_.size() >= kEnoughBlocks)
    result_.standard_error = ratio_error(blocks_, mean, result_.tokens);
  else
    result_.standard_error = std::sqrt(squares_ / (n - 1) / n);
  return result_;
}

}  // namespace hysparse
