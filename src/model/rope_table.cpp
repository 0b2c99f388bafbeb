#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hysparse {
namespace {

template <class T>
void fill(Runtime& rt, const RopeFrequencies& f, int64_t positions, const TensorView& cos,
          const TensorView& sin) {
  const auto half = static_cast<int64_t>(f.radians.size());
  std::vector<T> c(static_cast<size_t>(positions * half)), s(c.size());
  constexpr int64_t kChunk = 256;
  rt.pool.parallel_for((positions + kChunk - 1) / kChunk, [&](int64_t task, int) {
    for (int64_t p = task * kChunk; p < std::min(positions, (task + 1) * kChunk); ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) * f.radians[size_t(i)];
        c[size_t(p * half + i)] = static_cast<T>(f.magnitude * std::cos(angle));
        s[size_t(p * half + i)] = static_cast<T>(f.magnitude * std::sin(angle));
      }
    }
  });
  rt.memory.from_host(cos.data, c.data(), c.size() * sizeof(T));
  rt.memory.from_host(sin.data, s.data(), s.size() * sizeof(T));
}

}  // namespace

void RopeTable::reserve(Runtime& rt, int64_t last) {
  const int64_t have = cos_ ? cos_.view().dim(0) : 0;
  if (last < have) return;
  const int64_t positions = std::max<int64_t>({last + 1, 2 * have, 256});
  const auto half = static_cast<int64_t>(frequencies_.radians.size());
  cos_ = Tensor(dtype_, {positions, half}, rt.memory);
  sin_ = Tensor(dtype_, {positions, half}, rt.memory);
  if (dtype_ == DType::f64)
    fill<double>(rt, frequencies_, positions, cos_, sin_);
  else
    fill<float>(rt, frequencies_, positions, cos_, sin_);
}

}  // namespace hysparse
