// Central differences in float64 for the operations of the reference.
#pragma once

#include "kernels/ref/ref.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {

// A reference runtime and an owner of f64 tensors.
class RefBench {
 public:
  explicit RefBench(uint64_t seed) : rng(seed) {}
  TensorView random(const std::vector<int64_t>& dims, double sigma = 1) {
    buffers_.emplace_back(DType::f64, dims, true);  // strided: gaps hold NaN
    const TensorView& v = buffers_.back();
    assign(v, normals(rng, v.numel(), sigma, DType::f64));
    return v;
  }
  TensorView zeros(const std::vector<int64_t>& dims) {
    const TensorView v = random(dims);
    fill(v, 0);
    return v;
  }
  TensorView ints(const std::vector<int64_t>& dims, const std::vector<double>& x) {
    buffers_.emplace_back(DType::i32, dims);
    assign(buffers_.back(), x);
    return buffers_.back();
  }

  Rng rng;
  ThreadPool pool{2};
  Arena scratch;
  Runtime rt{pool, scratch, ref_ops(), host_memory()};

 private:
  std::deque<Buffer> buffers_;
};

inline double inner(const TensorView& a, const TensorView& b) {
  const std::vector<double> x = values(a), y = values(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// gradient[i] against (loss(x + h e_i) - loss(x - h e_i)) / 2h, for every element of x, to 1e-6 of the larger
// of the element and the tensor's root mean square.
inline void expect_gradient(const std::string& name, const TensorView& x, const TensorView& gradient,
                            const std::function<double()>& loss, double step = 1e-5) {
  const std::vector<double> g = values(gradient);
  double rms = 0;
  for (double e : g) rms += e * e / double(g.size());
  rms = std::sqrt(rms);
  ASSERT_GT(rms, 0) << name << ": a gradient of zero shows nothing";
  size_t i = 0;
  for (const int64_t o : offsets(x)) {
    const double before = load(x, o), h = step * std::max(1.0, std::fabs(before));
    store(x, o, before + h);
    const double up = loss();
    store(x, o, before - h);
    const double down = loss();
    store(x, o, before);
    const double expected = (up - down) / (2 * h);
    ASSERT_NEAR(g[i], expected, 1e-6 * std::max(std::fabs(expected), rms)) << name << " element " << i;
    ++i;
  }
}

}  // namespace hysparse::test
