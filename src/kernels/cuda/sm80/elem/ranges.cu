// Address ranges that get memory piece by piece (the driver's virtual memory functions, looked up at run
// time).
#include <cuda.h>

#include "kernels/cuda/sm80/elem/launch.h"

using namespace hysparse::cuda;

namespace {

constexpr size_t kPiece = size_t(32) << 20;

struct Driver {
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  bool whole() const { return reserve && free && create && release && map && unmap && set_access; }
};
template <class Function>
void look_up(const char* name, Function& f) {
  void* p = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t e = cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &found);
  if (e == cudaSuccess && found == cudaDriverEntryPointSuccess) f = reinterpret_cast<Function>(p);
}
const Driver& driver() {
  static const Driver all = [] {
    Driver d;
    cudaFree(nullptr);  // a context
    look_up("cuMemAddressReserve", d.reserve);
    look_up("cuMemAddressFree", d.free);
    look_up("cuMemCreate", d.create);
    look_up("cuMemRelease", d.release);
    look_up("cuMemMap", d.map);
    look_up("cuMemUnmap", d.unmap);
    look_up("cuMemSetAccess", d.set_access);
    return d;
  }();
  return all;
}

CUmemLocation here() {
  int device = 0;
  cudaGetDevice(&device);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}
int check(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return HYSPARSE_OK;
  return fail(HYSPARSE_CUDA_ERROR, std::string(what) + (r == CUDA_ERROR_OUT_OF_MEMORY
                                                            ? ": out of memory"
                                                            : ": driver error " + std::to_string(int(r))));
}

}  // namespace

extern "C" {

int hysparse_cuda_reserve(size_t bytes, void** out) {
  *out = nullptr;
  if (!driver().whole()) return fail(HYSPARSE_UNSUPPORTED, "this driver has no address ranges");
  CUdeviceptr p = 0;
  if (int e = check(driver().reserve(&p, (bytes + kPiece - 1) / kPiece * kPiece, 0, 0, 0), "address range"))
    return e;
  *out = reinterpret_cast<void*>(p);
  return HYSPARSE_OK;
}

int hysparse_cuda_commit(void* range, size_t from, size_t to) {
  if (!range || from % kPiece != 0 || to % kPiece != 0 || to < from)
    return refuse("commit", "bounds must be multiples of 32 MiB");
  const Driver& d = driver();
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = here();
  CUmemAccessDesc access{};
  access.location = here();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // In pieces, so that each can be unmapped by its address alone; a failure leaves nothing of this call.
  for (size_t at = from; at < to; at += kPiece) {
    const CUdeviceptr p = reinterpret_cast<CUdeviceptr>(range) + at;
    CUmemGenericAllocationHandle handle{};
    CUresult r = d.create(&handle, kPiece, &properties, 0);
    if (r == CUDA_SUCCESS) {
      r = d.map(p, kPiece, 0, handle, 0);
      d.release(handle);  // the mapping keeps it
      if (r == CUDA_SUCCESS && (r = d.set_access(p, kPiece, &access, 1)) != CUDA_SUCCESS) d.unmap(p, kPiece);
    }
    if (r != CUDA_SUCCESS) {
      if (at > from) d.unmap(reinterpret_cast<CUdeviceptr>(range) + from, at - from);
      return check(r, "device memory");
    }
  }
  return HYSPARSE_OK;
}

int hysparse_cuda_release_range(void* range, size_t bytes, size_t committed) {
  const Driver& d = driver();
  const auto p = reinterpret_cast<CUdeviceptr>(range);
  int code = check_cuda(cudaDeviceSynchronize(), "device memory");
  if (committed > 0)
    if (int e = check(d.unmap(p, committed), "device memory")) code = e;
  if (int e = check(d.free(p, (bytes + kPiece - 1) / kPiece * kPiece), "address range")) code = e;
  return code;
}

}  // extern "C"
