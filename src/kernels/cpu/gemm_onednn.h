// Blocks of a product through oneDNN, on the calling thread alone.
#pragma once

#include <memory>

#include "kernels/cpu/gemm_kernels.h"

namespace hysparse::gemm {

// The build has oneDNN, and it has kernels for products of this dtype on this CPU.
bool onednn_available(DType dtype);
// This CPU multiplies bf16 with AMX tiles.
bool cpu_has_amx_bf16();

// c [m, n] f32, rows `ldc` apart, (+)= a [m, k] b [k, n]; a and b of one dtype. Primitives are cached by
// shape: callers keep to few shapes.
void onednn_multiply(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k, float* c, int64_t ldc,
                     bool accumulate);

// A whole product y [m, n] = x [m, k] w [n, k]^T of f32 or bf16, all of `dtype`, as oneDNN does it best: w in
// a layout of its choice, on threads of its own. The peer that benchmarks compare with. Error(failure) where
// the build has no oneDNN.
class OnednnProduct {
 public:
  OnednnProduct(DType dtype, int64_t m, int64_t n, int64_t k, const void* w, int threads);
  ~OnednnProduct();
  void run(const void* x, void* y) const;  // one call after the other

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse::gemm
