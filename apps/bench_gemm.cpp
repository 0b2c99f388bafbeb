// Matrix products beside oneDNN's own best, in one run: weights packed beforehand there and here.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "bench_parts.h"
#include "kernels/cpu/gemm_onednn.h"

namespace hysparse {
namespace {

Tensor random(DType t, std::initializer_list<int64_t> dims, uint64_t seed) {
  Tensor x(t, dims);
  Rng rng(seed);
  for (int64_t i = 0; i < x.view().numel(); ++i) {
    const auto value = static_cast<float>(rng.uniform() - 0.5);
    if (t == DType::f32) x.view().as<float>()[i] = value;
    if (t == DType::bf16) x.view().as<bf16>()[i] = bf16(value);
  }
  return x;
}

}  // namespace

void bench_gemm(Runtime& rt, const BenchModel& m, const BenchSettings& settings, BenchReport& report) {
  if (settings.compute == DType::f64 || rt.memory.device() != DeviceKind::cpu)
    throw input_error("bench gemm", "compares with oneDNN, in f32 or bf16 on the CPU");
  const ModelConfig& c = m.config.model;
  const DType t = settings.compute;
  struct Shape {
    const char* name;
    int64_t out, in;
  };
  for (const Shape& s :
       {Shape{"1024 x 1024", 1024, 1024}, Shape{"q_proj", c.num_attention_heads * c.d(), c.hidden_size},
        Shape{"mlp_up", c.intermediate_size, c.hidden_size},
        Shape{"mlp_down", c.hidden_size, c.intermediate_size}})
    for (const int64_t n : {8, 64, 128, 512}) {
      const Tensor value = random(t, {s.out, s.in}, 1), x = random(t, {n, s.in}, 2), y(t, {n, s.out}),
                   theirs(t, {n, s.out});
      Weight w;
      w.name = s.name;
      w.value = value;
      // Before ours is packed, in place.
      const gemm::OnednnProduct peer(t, n, s.out, s.in, value.view().data, rt.pool.threads());
      rt.ops.pack(rt, w);
      const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(s.out * s.in) / 1e9;
      std::vector<double> ours_rates, peer_rates, ratios;
      for (int i = 0; i < settings.repeats; ++i) {
        // Both leave threads spinning for a while: they must not meet.
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        ours_rates.push_back(measure_rate(
            [&] {
              rt.ops.linear(rt, {.x = x, .weight = w, .bias = nullptr, .y = y, .accumulate = false});
              return flops;
            },
            1, settings.seconds / 3)[0]);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        peer_rates.push_back(measure_rate(
            [&] {
              peer.run(x.view().data, theirs.view().data);
              return flops;
            },
            1, settings.seconds / 3)[0]);
        ratios.push_back(ours_rates.back() / peer_rates.back());
      }
      const auto text = [](int64_t v) { return std::to_string(v); };
      const BenchResult peer_result{.name = "oneDNN", .runs = peer_rates},
          ratio{.name = "ratio", .runs = ratios};
      report.add({"gemm",
                  {{"weight", s.name},
                   {"n", text(n)},
                   {"out", text(s.out)},
                   {"in", text(s.in)},
                   {"oneDNN", fmt::format("{:.1f}", peer_result.median())},
                   {"of_oneDNN", fmt::format("{:.3f}", ratio.median())}},
                  "GFLOP/s",
                  std::move(ours_rates)});
    }
}

}  // namespace hysparse
