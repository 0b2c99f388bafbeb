#include "bench_attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace hysparse {
namespace {

using RowSink = std::function<void(const AttentionBenchRow&)>;
constexpr int64_t kBlock = 64, kEntries = 16, kWindow = 128;

// Tensors of one sequence of `tokens` queries after `past` cached tokens.
class Layer {
 public:
  Layer(Runtime& rt, DType t, int64_t tokens, int64_t past, int64_t hq, int64_t hkv, int64_t d)
      : rt_(rt), t_(t), tokens_(tokens), past_(past), hq_(hq), hkv_(hkv), d_(d) {
    batch_.add_sequence(tokens, past);
    q_ = normal({tokens, hq, d});
    k_ = normal({past + tokens, hkv, d});
    v_ = normal({past + tokens, hkv, d});
    o_ = Tensor(t, {tokens, hq, d}, rt.memory);
    o2_ = Tensor(t, {tokens, hq, d}, rt.memory);
    out_ = Tensor(t, {tokens, hq, d}, rt.memory);
    lse_ = Tensor(DType::f32, {tokens, hq}, rt.memory);
    lse2_ = Tensor(DType::f32, {tokens, hq}, rt.memory);
    gate_ = Tensor(DType::f32, {tokens, hq}, rt.memory);
    idx_ = Tensor(DType::i32, {tokens, hkv, kEntries}, rt.memory);
    kv_.k = k_;
    kv_.v = v_;
    kv_.cu_kv = cu_kv_;
  }

  void select_random() {
    Rng rng(7);
    fill_idx([&](int64_t, int64_t have, std::vector<int32_t>& row) {
      while (static_cast<int64_t>(row.size()) < std::min(have, kEntries)) {
        const auto j = static_cast<int32_t>(rng.below(static_cast<uint64_t>(have)));
        if (std::find(row.begin(), row.end(), j) == row.end()) row.push_back(j);
      }
    });
  }
  // What trained models look like: sixteen neighbours choose nearly the same blocks.
  void select_local() {
    fill_idx([&](int64_t i, int64_t have, std::vector<int32_t>& row) {
      Rng common(static_cast<uint64_t>(i / 16), 3), own(static_cast<uint64_t>(i), 4);
      while (static_cast<int64_t>(row.size()) < std::min(have, kEntries)) {
        Rng& rng = row.size() < 14 ? common : own;
        const auto j = static_cast<int32_t>(rng.below(static_cast<uint64_t>(have)));
        if (std::find(row.begin(), row.end(), j) == row.end()) row.push_back(j);
      }
    });
  }

  void full() const { rt_.ops.attention(rt_, forward()); }
  void full_select() const {
    rt_.ops.attention_select(rt_, {forward(), kBlock, false, false, false, 0, 0, idx_});
  }
  void sparse() const { rt_.ops.sparse_attention(rt_, sparse_args()); }
  void window() const { rt_.ops.window_attention(rt_, window_args()); }
  void sparse_layer() const {
    const WindowAttentionForward window = window_args();
    rt_.ops.sparse_window_gated(rt_, {sparse_args(), &window, gate_, gate_, out_});
  }

  void prepare_backward() {
    d_o_ = normal({tokens_, hq_, d_});
    dq_ = Tensor(t_, {tokens_, hq_, d_}, rt_.memory);
    da_ = Tensor(t_, {tokens_, hq_, d_}, rt_.memory);
    db_ = Tensor(t_, {tokens_, hq_, d_}, rt_.memory);
    dgate_ = Tensor(DType::f32, {tokens_, hq_}, rt_.memory);
    dgate2_ = Tensor(DType::f32, {tokens_, hq_}, rt_.memory);
    dk_ = Tensor(DType::f32, {past_ + tokens_, hkv_, d_}, rt_.memory);
    dv_ = Tensor(DType::f32, {past_ + tokens_, hkv_, d_}, rt_.memory);
  }
  void full_backward() const {
    rt_.ops.attention_backward(rt_, {batch_, q_, kv_, scale(), o_, lse_, d_o_, dq_, dk_, dv_});
  }
  void sparse_backward() const {
    rt_.ops.sparse_attention_backward(
        rt_, {batch_, q_, kv_, {idx_, kBlock}, scale(), {}, o_, lse_, d_o_, dq_, dk_, dv_, {}});
  }
  void window_backward() const {
    rt_.ops.window_attention_backward(
        rt_, {batch_, q_, kv_, kWindow, scale(), {}, o2_, lse2_, d_o_, dq_, dk_, dv_, {}});
  }
  void sparse_layer_backward() const {
    rt_.ops.gated_sum_backward(rt_, {o_, gate_, o2_, gate_, d_o_, da_, db_, dgate_, dgate2_});
    rt_.ops.sparse_attention_backward(
        rt_, {batch_, q_, kv_, {idx_, kBlock}, scale(), {}, o_, lse_, da_, dq_, dk_, dv_, {}});
    rt_.ops.window_attention_backward(
        rt_, {batch_, q_, kv_, kWindow, scale(), {}, o2_, lse2_, db_, dq_, dk_, dv_, {}});
  }

  // Multiply-adds count two; q.k and p.v.
  double full_flops() const {
    const double t = static_cast<double>(tokens_), p = static_cast<double>(past_);
    return (t * p + t * (t + 1) / 2) * pair();
  }
  double window_flops() const {
    double keys = 0;
    for (int64_t i = 0; i < tokens_; ++i) keys += static_cast<double>(std::min(past_ + i + 1, kWindow));
    return keys * pair();
  }
  double sparse_flops() const {
    const auto* idx = static_cast<const int32_t*>(idx_.view().data);
    double keys = 0;
    for (int64_t i = 0; i < tokens_ * hkv_; ++i)
      for (int64_t e = 0; e < kEntries; ++e)
        if (const int64_t j = idx[i * kEntries + e]; j >= 0)
          keys += static_cast<double>(std::min(kBlock, past_ + i / hkv_ + 1 - j * kBlock));
    return keys / static_cast<double>(hkv_) * pair();
  }
  double kv_bytes(int64_t keys) const {
    return static_cast<double>(2 * keys * hkv_ * d_) * static_cast<double>(size_of(t_));
  }
  std::string shape() const {
    return fmt::format("{} {}, heads {}/{}, d {}, {}", past_ > 0 ? "past" : "T", past_ > 0 ? past_ : tokens_,
                       hq_, hkv_, d_, name_of(t_));
  }

 private:
  template <class F>
  void fill_idx(const F& choose) {
    std::vector<int32_t> all, row;
    for (int64_t i = 0; i < tokens_; ++i)
      for (int64_t g = 0; g < hkv_; ++g) {
        row.clear();
        choose(i, (past_ + i) / kBlock + 1, row);
        std::sort(row.begin(), row.end());
        row.resize(size_t(kEntries), -1);
        all.insert(all.end(), row.begin(), row.end());
      }
    rt_.memory.from_host(idx_.view().data, all.data(), idx_.view().bytes());
  }
  Tensor normal(std::initializer_list<int64_t> dims) {
    Tensor x(t_, dims, rt_.memory);
    Rng rng(++seed_);
    std::vector<float> wide;
    std::vector<bf16> narrow;
    for (int64_t i = 0; i < x.view().numel(); ++i) {
      // Sums of uniforms: cheap, and near enough to normal for a timing.
      const auto value = static_cast<float>((rng.uniform() + rng.uniform() + rng.uniform() - 1.5) * 2);
      t_ == DType::bf16 ? narrow.push_back(bf16(value)) : wide.push_back(value);
    }
    rt_.memory.from_host(x.view().data, t_ == DType::bf16 ? static_cast<void*>(narrow.data()) : wide.data(),
                         x.view().bytes());
    return x;
  }
  double pair() const { return 4.0 * static_cast<double>(hq_ * d_); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(d_)); }
  AttentionForward forward() const {
    return {.batch = batch_, .q = q_, .kv = kv_, .scale = scale(), .o = o_, .lse = lse_};
  }
  SparseAttentionForward sparse_args() const {
    return {batch_, q_, kv_, {idx_, kBlock}, scale(), {}, o_, lse_};
  }
  WindowAttentionForward window_args() const { return {batch_, q_, kv_, kWindow, scale(), {}, o2_, lse2_}; }

  Runtime& rt_;
  DType t_;
  int64_t tokens_, past_, hq_, hkv_, d_;
  uint64_t seed_ = 0;
  int64_t cu_kv_[2] = {0, 0};
  RaggedBatch batch_;
  KvView kv_;
  Tensor q_, k_, v_, o_, o2_, out_, lse_, lse2_, gate_, idx_;
  Tensor d_o_, dq_, da_, db_, dgate_, dgate2_, dk_, dv_;
};

class Bench {
 public:
  Bench(Runtime& rt, const AttentionBenchOptions& options, double peak, const RowSink& on_row)
      : rt_(rt), options_(options), on_row_(on_row) {
    result.peak_gflops = peak;
  }

  void run() {
    for (const int64_t d : options_.head_dims) {
      for (int64_t t = std::min<int64_t>(2048, options_.longest); t <= options_.longest; t *= 4)
        forward(t, d);
      backward(std::min<int64_t>(8192, options_.longest), d);
      decode(options_.longest, d);
    }
  }
  AttentionBench result;

 private:
  template <class F>
  std::vector<double> time(const F& call) const {
    std::vector<double> seconds;
    call();
    for (int i = 0; i < options_.runs; ++i) {
      const auto start = std::chrono::steady_clock::now();
      call();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
  }
  template <class F>
  double row(const std::string& name, const Layer& layer, double flops, double bytes, const F& call) {
    AttentionBenchRow r;
    r.name = name;
    r.shape = layer.shape();
    r.runs = time(call);
    std::vector<double> sorted = r.runs;
    std::sort(sorted.begin(), sorted.end());
    r.seconds = sorted[sorted.size() / 2];
    r.flops = flops;
    r.gflops = flops / r.seconds / 1e9;
    r.gigabytes_a_second = bytes / r.seconds / 1e9;
    if (result.peak_gflops > 0) r.fraction_of_peak = r.gflops / result.peak_gflops;
    on_row_(r);
    result.rows.push_back(r);
    return r.seconds;
  }
  Layer layer(int64_t tokens, int64_t past, int64_t d) const {
    return Layer(rt_, options_.dtype, tokens, past, options_.query_heads, options_.kv_heads, d);
  }

  void forward(int64_t t, int64_t d) {
    Layer x = layer(t, 0, d);
    const double full = row("attention", x, x.full_flops(), 0, [&] { x.full(); });
    const double select = row("attention + selection", x, x.full_flops(), 0, [&] { x.full_select(); });
    // The blocks that attention itself chose on random numbers: the least overlap between neighbours.
    const double hysparse =
        row("sparse layer", x, x.sparse_flops() + x.window_flops(), 0, [&] { x.sparse_layer(); });
    result.stacks.push_back({"forward", x.shape(), 4 * full, select + 3 * hysparse, 0});
    row("window", x, x.window_flops(), 0, [&] { x.window(); });
    x.select_random();
    row("sparse, random blocks", x, x.sparse_flops(), 0, [&] { x.sparse(); });
    x.select_local();
    row("sparse, local blocks", x, x.sparse_flops(), 0, [&] { x.sparse(); });
  }

  void backward(int64_t t, int64_t d) {
    Layer x = layer(t, 0, d);
    x.prepare_backward();
    x.full_select();
    const double full = row("attention backward", x, 2.5 * x.full_flops(), 0, [&] { x.full_backward(); });
    x.sparse_layer();
    row("window backward", x, 2.5 * x.window_flops(), 0, [&] { x.window_backward(); });
    row("sparse backward", x, 2.5 * x.sparse_flops(), 0, [&] { x.sparse_backward(); });
    const double hysparse = row("sparse layer backward", x, 2.5 * (x.sparse_flops() + x.window_flops()), 0,
                                [&] { x.sparse_layer_backward(); });
    result.stacks.push_back({"backward", x.shape(), 4 * full, full + 3 * hysparse, 0});
    x.select_local();
    x.sparse();
    row("sparse backward, local blocks", x, 2.5 * x.sparse_flops(), 0, [&] { x.sparse_backward(); });
  }

  // One token after a long past.
  void decode(int64_t past, int64_t d) {
    Layer x = layer(1, past, d);
    row("decode attention", x, x.full_flops(), x.kv_bytes(past + 1), [&] { x.full(); });
    row("decode attention + selection", x, x.full_flops(), x.kv_bytes(past + 1), [&] { x.full_select(); });
    row("decode sparse layer", x, x.sparse_flops() + x.window_flops(),
        x.kv_bytes(kBlock * kEntries + kWindow), [&] { x.sparse_layer(); });
  }

  Runtime& rt_;
  const AttentionBenchOptions& options_;
  const RowSink& on_row_;
};

}  // namespace

AttentionBench bench_attention(Runtime& rt, const AttentionBenchOptions& options, double peak_gflops,
                               const RowSink& on_row) {
  Bench bench(rt, options, peak_gflops, on_row);
  bench.run();
  for (AttentionStackRow& s : bench.result.stacks) s.ratio = s.full_seconds / s.hysparse_seconds;
  return std::move(bench.result);
}

}  // namespace hysparse
