// The computation back ends that tests run on.
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "kernels/ref/ref.h"

namespace hysparse::tests {

// Owns what a Runtime points to: ref for f64, cpu for f32 and bf16.
struct Backend {
  explicit Backend(DType compute, int threads = 1)
      : compute(compute),
        pool(threads),
        rt{pool, scratch, compute == DType::f64 ? ref_ops() : cpu_ops(), host_memory()} {}
  DType compute;
  ThreadPool pool;
  Arena scratch;
  Runtime rt;
};

// Unit round-off of a dtype.
inline double epsilon(DType t) {
  return t == DType::f64 ? 0x1p-52 : t == DType::f32 ? 0x1p-23 : 0x1p-8;
}

inline double load(const TensorView& t, int64_t offset) {
  switch (t.dtype) {
    case DType::f64:
      return t.as<double>()[offset];
    case DType::f32:
      return double(t.as<float>()[offset]);
    default:
      return double(float(t.as<bf16>()[offset]));
  }
}
inline void store(const TensorView& t, int64_t offset, double x) {
  switch (t.dtype) {
    case DType::f64:
      t.as<double>()[offset] = x;
      break;
    case DType::f32:
      t.as<float>()[offset] = float(x);
      break;
    default:
      t.as<bf16>()[offset] = bf16(float(x));
  }
}

}  // namespace hysparse::tests
