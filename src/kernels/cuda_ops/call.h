// What every operation needs to call the library: views, host arrays brought to the device, workspaces.
#pragma once

#include <cstring>
#include <vector>

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
              int(DType::i32) == HYSPARSE_DTYPE_I32);

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

// Several host arrays in one copy: add() them all, send(), then at() gives their device addresses.
class Upload {
 public:
  template <class T>
  size_t add(const T* host, size_t count) {
    const size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + count * sizeof(T));
    if (count > 0) std::memcpy(bytes_.data() + at, host, count * sizeof(T));
    return at;
  }
  template <class T>
  size_t add(const std::vector<T>& host) {
    return add(host.data(), host.size());
  }
  void send(Runtime& rt) {
    device_ = static_cast<std::byte*>(workspace(rt, bytes_.size() + 16));
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.copy(device_, bytes_.data(), bytes_.size(), nullptr), "GPU memory");
  }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(device_ + offset);
  }

 private:
  std::vector<std::byte> bytes_;
  std::byte* device_ = nullptr;
};

// The tables of a ragged batch.
struct BatchTables {
  BatchTables(Upload& up, const RaggedBatch& batch) : tokens_(batch.tokens()), sequences_(batch.sequences()) {
    std::vector<int32_t> sequence, position;
    for (int64_t s = 0; s < batch.sequences(); ++s)
      for (int64_t i = 0; i < batch.q_len(s); ++i) {
        sequence.push_back(static_cast<int32_t>(s));
        position.push_back(static_cast<int32_t>(batch.past_len[size_t(s)] + i));
      }
    sequence_ = up.add(sequence);
    position_ = up.add(position);
    cu_q_ = up.add(batch.cu_q);
    past_ = up.add(batch.past_len);
  }
  hysparse_cuda_rows_of_batch on_device(const Upload& up) const {
    return {sequences_,
            tokens_,
            up.at<int32_t>(sequence_),
            up.at<int32_t>(position_),
            up.at<int64_t>(cu_q_),
            up.at<int64_t>(past_)};
  }

 private:
  int64_t tokens_, sequences_;
  size_t sequence_ = 0, position_ = 0, cu_q_ = 0, past_ = 0;
};

}  // namespace hysparse::cuda_calls
