#include "kernels/cuda_ops/memory.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda_ops/library.h"

namespace hysparse {
namespace {

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(bool managed) : managed_(managed) {}
  DeviceKind device() const override { return DeviceKind::cuda; }
  void* allocate(size_t bytes) override {
    void* p = nullptr;
    const CudaLibrary& cuda = cuda_library();
    if (cuda.allocate(std::max<size_t>(bytes, 1), managed_, &p) != HYSPARSE_OK) throw no_memory(bytes);
    return p;
  }
  void release(void* p, size_t) noexcept override { cuda_library().free(p); }
  void zero(void* p, size_t bytes) override {
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.zero(p, bytes, cuda_stream()), "GPU memory");
    if (managed_) synchronize();
  }
  void from_host(void* dst, const void* host, size_t bytes) override { move(dst, host, bytes); }
  void to_host(void* host, const void* src, size_t bytes) override { move(host, src, bytes); }
  void copy(void* dst, const void* src, size_t bytes) override {
    if (managed_) return move(dst, src, bytes);
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.copy_on_device(dst, src, bytes, cuda_stream()), "GPU memory");
  }
  void* reserve(size_t bytes) override {
    void* range = nullptr;
    if (!managed_ && cuda_library().reserve(bytes, &range) != HYSPARSE_OK) range = nullptr;
    return range;
  }
  void commit(void* range, size_t from, size_t to) override {
    const CudaLibrary& cuda = cuda_library();
    if (cuda.commit(range, from, to) != HYSPARSE_OK) throw no_memory(to - from);
  }
  void release_range(void* range, size_t bytes, size_t committed) noexcept override {
    cuda_library().release_range(range, bytes, committed);
  }
  size_t available() const override {
    size_t free_bytes = 0, total = 0;
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.memory(&free_bytes, &total), "GPU memory");
    return free_bytes;
  }
  void synchronize() override {
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.synchronize(cuda_stream()), "GPU");
  }

 private:
  static Error no_memory(size_t bytes) {
    return failure("GPU memory",
                   fmt::format("could not allocate {} bytes: {}", bytes, cuda_library().last_error()),
                   "a smaller micro-batch or context, recompute layer or state_dtype bf16 need less");
  }
  static void move(void* dst, const void* src, size_t bytes) {
    HYSPARSE_CHECK(!cuda_stream(), "a copy from or to the host within a step that repeats");
    const CudaLibrary& cuda = cuda_library();
    cuda.check(cuda.copy(dst, src, bytes, cuda_stream()), "GPU memory");
  }
  bool managed_;
};

}  // namespace

Memory& cuda_memory(CudaMemoryKind kind) {
  static CudaMemory device(false), managed(true);
  return kind == CudaMemoryKind::managed ? managed : device;
}

}  // namespace hysparse
