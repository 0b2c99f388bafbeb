// What every operation needs to call the library: views and workspaces.
#pragma once

#include "kernels/cuda_ops/library.h"
#include "kernels/ops.h"

namespace hysparse::cuda_calls {

// A TensorView as the C ABI has it. Converts to a pointer, null for an absent tensor.
class View {
 public:
  View(const TensorView& t) {  // NOLINT: meant to convert
    v_.data = t.data;
    v_.dtype = static_cast<int32_t>(t.dtype);
    v_.rank = t.rank;
    for (int i = 0; i < TensorView::kMaxRank; ++i) {
      v_.shape[i] = t.shape[size_t(i)];
      v_.stride[i] = t.stride[size_t(i)];
    }
  }
  operator hysparse_view() const { return v_.data ? &v_ : nullptr; }  // NOLINT
  const hysparse_cuda_view& value() const { return v_; }

 private:
  hysparse_cuda_view v_{};
};
static_assert(int(DType::f64) == HYSPARSE_DTYPE_F64 && int(DType::f32) == HYSPARSE_DTYPE_F32 &&
              int(DType::bf16) == HYSPARSE_DTYPE_BF16 && int(DType::i64) == HYSPARSE_DTYPE_I64 &&
              int(DType::i32) == HYSPARSE_DTYPE_I32 && int(DType::i8) == HYSPARSE_DTYPE_I8 &&
              int(DType::f8) == HYSPARSE_DTYPE_F8);

inline Arena& scratch_of(Runtime& rt) {
  HYSPARSE_CHECK(rt.scratch.memory().device() == DeviceKind::cuda,
                 "the scratch arena of a GPU call lies in host memory");
  return rt.scratch;
}

// 256-byte aligned bytes of the step's scratch.
inline void* workspace(Runtime& rt, size_t bytes) {
  auto* p = static_cast<std::byte*>(scratch_of(rt).alloc_bytes(bytes + 256));
  return p + (256 - reinterpret_cast<uintptr_t>(p) % 256) % 256;
}

// False: there is no kernel for this shape on this GPU. Other codes than "done" throw.
inline bool taken(int code, const char* what) {
  if (code == HYSPARSE_UNSUPPORTED) return false;
  cuda_library().check(code, what);
  return true;
}

}  // namespace hysparse::cuda_calls
