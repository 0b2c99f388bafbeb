// Device memory for programs that do not link the CUDA runtime themselves.
#include "kernels/cuda/sm80/elem/launch.h"

using namespace hysparse::cuda;

extern "C" {

int hysparse_cuda_device_count(int32_t* count) {
  int n = 0;
  const cudaError_t e = cudaGetDeviceCount(&n);
  *count = e == cudaSuccess ? n : 0;
  return check_cuda(e, "device count");
}

int hysparse_cuda_allocate(size_t bytes, int32_t managed, void** out) {
  *out = nullptr;
  return check_cuda(managed ? cudaMallocManaged(out, bytes) : cudaMalloc(out, bytes), "device memory");
}

int hysparse_cuda_free(void* p) {
  return check_cuda(cudaFree(p), "device memory");
}

int hysparse_cuda_zero(void* p, size_t bytes, hysparse_stream stream) {
  return check_cuda(cudaMemsetAsync(p, 0, bytes, stream), "device memory");
}

int hysparse_cuda_copy(void* dst, const void* src, size_t bytes, hysparse_stream stream) {
  if (bytes == 0) return HYSPARSE_OK;
  cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream);
  if (e != cudaSuccess) return check_cuda(e, "copy");
  cudaPointerAttributes to{}, from{};
  e = cudaPointerGetAttributes(&to, dst);
  if (e == cudaSuccess) e = cudaPointerGetAttributes(&from, src);
  const bool host = to.type != cudaMemoryTypeDevice || from.type != cudaMemoryTypeDevice;
  if (e == cudaSuccess && host) e = cudaStreamSynchronize(stream);
  return check_cuda(e, "copy");
}

int hysparse_cuda_upload(void* dst, const void* host, size_t bytes, hysparse_stream stream) {
  if (bytes == 0) return HYSPARSE_OK;
  return check_cuda(cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, stream), "copy");
}

int hysparse_cuda_copy_on_device(void* dst, const void* src, size_t bytes, hysparse_stream stream) {
  if (bytes == 0) return HYSPARSE_OK;
  return check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
}

int hysparse_cuda_memory(size_t* free_bytes, size_t* total_bytes) {
  return check_cuda(cudaMemGetInfo(free_bytes, total_bytes), "device memory");
}

int hysparse_cuda_synchronize(hysparse_stream stream) {
  return check_cuda(cudaStreamSynchronize(stream), "waiting for the GPU");
}

}  // extern "C"
