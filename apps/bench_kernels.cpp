// Single operations outside attention, at the shapes of a model's layers.
#include "base/rng.h"
#include "bench_parts.h"

namespace hysparse {
namespace {

constexpr int64_t kTokens = 2048;

void fill(const TensorView& t, uint64_t seed, double scale = 1) {
  Rng rng(seed);
  for (int64_t i = 0; i < t.numel(); ++i) {
    const auto x = static_cast<float>(scale * rng.normal());
    if (t.dtype == DType::f64) t.as<double>()[i] = x;
    if (t.dtype == DType::f32) t.as<float>()[i] = x;
    if (t.dtype == DType::bf16) t.as<bf16>()[i] = bf16(x);
  }
}

struct Matrix {
  const char* name;
  int64_t out, in;
};

}  // namespace

void bench_kernels(Runtime& rt, const BenchModel& m, const BenchSettings& settings, BenchReport& report) {
  const ModelConfig& c = m.config.model;
  const DType t = settings.compute, a = accumulation_dtype(t);
  const int64_t hidden = c.hidden_size;
  const auto tensor = [&](DType type, std::initializer_list<int64_t> dims, uint64_t seed) {
    Tensor x(type, dims, rt.memory);
    fill(x, seed);
    return x;
  };
  const auto add = [&](const std::string& name, std::vector<std::pair<std::string, std::string>> shape,
                       const std::string& unit, const std::function<double()>& fn) {
    report.add({name, std::move(shape), unit, measure_rate(fn, settings.repeats, settings.seconds)});
  };
  const auto text = [](int64_t x) { return std::to_string(x); };

  for (const Matrix& matrix :
       {Matrix{"q_proj", c.num_attention_heads * c.d(), hidden},
        Matrix{"mlp_up", c.intermediate_size, hidden}, Matrix{"mlp_down", hidden, c.intermediate_size},
        Matrix{"lm_head", c.vocab_size, hidden}}) {
    const Tensor value = tensor(t, {matrix.out, matrix.in}, 1), grad(a, {matrix.out, matrix.in}, rt.memory);
    Weight w;
    w.name = matrix.name;
    w.value = value;
    for (const int64_t n : {int64_t(1), kTokens}) {
      const Tensor x = tensor(t, {n, matrix.in}, 2), y(t, {n, matrix.out}, rt.memory);
      const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(matrix.out * matrix.in) / 1e9;
      const auto shape = [&] {
        return std::vector<std::pair<std::string, std::string>>{
            {"weight", matrix.name}, {"n", text(n)}, {"out", text(matrix.out)}, {"in", text(matrix.in)}};
      };
      add("linear", shape(), "GFLOP/s", [&] {
        rt.ops.linear(rt, {.x = x, .weight = w, .bias = nullptr, .y = y, .accumulate = false});
        return flops;
      });
      if (n == 1) continue;
      Weight trained = w;
      trained.packed.reset();
      trained.grad = grad;
      const Tensor dx(t, {n, matrix.in}, rt.memory);
      add("linear_backward", shape(), "GFLOP/s", [&] {
        rt.ops.linear_backward(
            rt, {.x = x, .weight = trained, .bias = nullptr, .dy = y, .dx = dx, .accumulate = false});
        return 2 * flops;
      });
    }
  }

  const auto bytes = [](std::initializer_list<const Tensor*> all) {
    size_t sum = 0;
    for (const Tensor* x : all) sum += x->view().bytes();
    return static_cast<double>(sum) / 1e9;
  };
  {
    const Tensor x = tensor(t, {kTokens, hidden}, 3), y(t, {kTokens, hidden}, rt.memory),
                 one = tensor(t, {hidden}, 4);
    Weight w;
    w.value = one;
    add("rmsnorm", {{"n", text(kTokens)}, {"hidden", text(hidden)}}, "GB/s", [&] {
      rt.ops.rmsnorm(rt, {.x = x, .weight = w, .eps = 1e-6, .y = y});
      return bytes({&x, &y});
    });
  }
  {
    const Tensor gate = tensor(t, {kTokens, c.intermediate_size}, 5),
                 up = tensor(t, {kTokens, c.intermediate_size}, 6),
                 h(t, {kTokens, c.intermediate_size}, rt.memory);
    add("swiglu", {{"n", text(kTokens)}, {"f", text(c.intermediate_size)}}, "GB/s", [&] {
      rt.ops.swiglu(rt, {gate, up, h});
      return bytes({&gate, &up, &h});
    });
  }
}

}  // namespace hysparse
