// The parity harness: runs one operation on the float64 reference and on a backend over the same numbers,
// several times on several thread counts, with poisoned outputs and guarded gaps, and compares.
//
//   KernelTest with a Backend parameter          which operations, dispatch level and dtype are under test
//   Bench b(GetParam(), gaps, seed)              makes pairs of tensors: b.in, b.out, b.accumulator,
//   b.in_place b.run([&](int i, Runtime& rt) { ... p[i] })  runs side 0 (ref) once and side 1 (kernel)
//   repeatedly EXPECT_TRUE(b.close("dq", dq, bound))        |got - ref| <= ulps * epsilon * bound, element by
//   element
#pragma once

#include <map>
#include <memory>

#include "kernels/ref/ref.h"
#include "parity/kernels/tensors.h"

namespace hysparse::test {

struct Backend {
  std::string name;  // "cpu_AVX2_bf16"
  const Ops* ops;
  DType dtype;        // T
  std::string level;  // cpu dispatch level to force; empty: none
  bool main = true;   // the others get the shorter default sweep
  DType acc() const { return accumulation_dtype(dtype); }
  bool on_host() const {
    return ops->memory().device() == DeviceKind::cpu;
  }  // it can check values of index tensors
};
inline void PrintTo(const Backend& b, std::ostream* out) {
  *out << b.name;
}
// Every backend of this build (backends.cpp).
const std::vector<Backend>& backends();
void force_level(const std::string& level);
inline std::vector<Backend> main_backends() {
  std::vector<Backend> list;
  for (const Backend& b : backends())
    if (b.main) list.push_back(b);
  return list;
}

inline Backend ref_backend() {
  return {"ref", &ref_ops(), DType::f64, "", true};
}

class KernelTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override { force_level(GetParam().level); }
  void TearDown() override { force_level(""); }
};
inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}
// HYSPARSE_KERNEL_SUITE(Suite) runs a suite on every backend, the other one where a short sweep is enough.
#define HYSPARSE_KERNEL_SUITE(Suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::ValuesIn(::hysparse::test::backends()), \
                           ::hysparse::test::backend_name)
#define HYSPARSE_MAIN_KERNEL_SUITE(Suite)                                                           \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, ::testing::ValuesIn(::hysparse::test::main_backends()), \
                           ::hysparse::test::backend_name)

class Bench {
 public:
  explicit Bench(const Backend& backend, uint64_t seed = 1, bool gaps = false)
      : backend_(backend), rng_(seed), gaps_(gaps) {}

  DType t() const { return backend_.dtype; }
  DType acc() const { return backend_.acc(); }
  const Backend& backend() const { return backend_; }
  Rng& rng() { return rng_; }

  // Inputs: normal numbers rounded to the dtype.
  const Pair& in(const std::vector<int64_t>& dims, double sigma = 1) { return input(t(), dims, sigma); }
  const Pair& in_acc(const std::vector<int64_t>& dims, double sigma = 1) { return input(acc(), dims, sigma); }
  const Pair& in_values(DType type, const std::vector<int64_t>& dims, const std::vector<double>& x) {
    return remember(type, dims, Role::input, x);
  }
  // Outputs: poison before every run.
  const Pair& out(const std::vector<int64_t>& dims) { return remember(t(), dims, Role::output, {}); }
  const Pair& out_acc(const std::vector<int64_t>& dims) { return remember(acc(), dims, Role::output, {}); }
  const Pair& out_type(DType type, const std::vector<int64_t>& dims) {
    return remember(type, dims, Role::output, {});
  }
  // "+=" outputs: dirty numbers before every run.
  const Pair& accumulator(const std::vector<int64_t>& dims) {
    return remember(acc(), dims, Role::restored, normals(rng_, count(dims), 1, acc()));
  }
  // Read and overwritten.
  const Pair& in_place(DType type, const std::vector<int64_t>& dims, double sigma = 1) {
    return remember(type, dims, Role::restored, normals(rng_, count(dims), sigma, type));
  }

  // Side 0 on the reference, then side 1 on 1, 2 and 4 threads and once more: all bit-equal, gaps untouched,
  // inputs unchanged.
  void run(const std::function<void(int side, Runtime&)>& call) {
    {
      reset(0);
      Arena scratch;
      Runtime rt{pool(1), scratch, ref_ops(), host_memory()};
      call(0, rt);
    }
    std::vector<std::vector<std::byte>> inputs, first;
    for (const Item& item : items_)
      if (item.role == Role::input) inputs.push_back(item.pair.buffer(1).snapshot());
    for (const int threads : {1, 2, 4, 1}) {
      reset(1);
      Arena scratch(backend_.ops->memory());
      Runtime rt{pool(threads), scratch, *backend_.ops, backend_.ops->memory()};
      call(1, rt);
      backend_.ops->memory().synchronize();
      std::vector<std::vector<std::byte>> outputs;
      size_t next_input = 0;
      for (size_t i = 0; i < items_.size(); ++i) {
        const Buffer& b = items_[i].pair.buffer(1);
        EXPECT_TRUE(b.untouched()) << "tensor " << i << ' ' << b.view().describe()
                                   << ": memory between its rows was written";
        if (items_[i].role == Role::input)
          EXPECT_TRUE(b.snapshot() == inputs[next_input++]) << "input " << i << " was changed";
        else
          outputs.push_back(b.snapshot());
      }
      if (first.empty())
        first = std::move(outputs);
      else
        EXPECT_TRUE(first == outputs) << "not bit-equal on " << threads << " threads";
    }
  }

  ::testing::AssertionResult close(const std::string& name, const Pair& p, std::vector<double> bound,
                                   double ulps = 8) const {
    return close(name, p, std::move(bound), ulps, epsilon(p[1].dtype));
  }
  ::testing::AssertionResult close(const std::string& name, const Pair& p, std::vector<double> bound,
                                   double ulps, double eps) const {
    for (double& x : bound) x = ulps * eps * std::fabs(x);
    return within(backend_.name + ": " + name, p[1], p[0], bound);
  }

 private:
  enum class Role { input, output, restored };
  struct Item {
    Pair pair;
    Role role;
    std::vector<double> initial;
  };
  static int64_t count(const std::vector<int64_t>& dims) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  static ThreadPool& pool(int threads) {
    static std::map<int, std::unique_ptr<ThreadPool>> pools;
    auto& p = pools[threads];
    if (!p) p = std::make_unique<ThreadPool>(threads);
    return *p;
  }
  const Pair& input(DType type, const std::vector<int64_t>& dims, double sigma) {
    return remember(type, dims, Role::input, normals(rng_, count(dims), sigma, type));
  }
  const Pair& remember(DType type, const std::vector<int64_t>& dims, Role role,
                       const std::vector<double>& x) {
    items_.push_back({Pair(type, dims, gaps_, backend_.ops->memory()), role, x});
    if (role != Role::output) items_.back().pair.set(x);
    return items_.back().pair;
  }
  void reset(int side) {
    for (const Item& item : items_) {
      if (item.role == Role::output) Buffer::poison(item.pair[side]);
      if (item.role == Role::restored) assign(item.pair[side], item.initial);
    }
  }

  Backend backend_;
  Rng rng_;
  bool gaps_;
  std::deque<Item> items_;
};

}  // namespace hysparse::test
