#include "kernels/cuda_ops/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/error.h"

namespace hysparse {
namespace {

std::vector<std::string> candidates() {
  if (const char* named = std::getenv("HYSPARSE_CUDA_LIBRARY")) return {named};
  std::vector<std::string> all;
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  for (const char* place : {".", "../lib", "../cuda/lib", "../../cuda/lib"}) {
    const auto path = program / place / "libhysparse_cuda.so";
    if (!none && std::filesystem::exists(path, none)) all.push_back(path.lexically_normal().string());
  }
  all.emplace_back("libhysparse_cuda.so");
  return all;
}

CudaLibrary open_library() {
  CudaLibrary library;
  void* handle = nullptr;
  std::string reason;
  for (const std::string& path : candidates()) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle) {
      library.path = path;
      break;
    }
    reason = dlerror();
  }
  if (!handle)
    throw failure("CUDA", "libhysparse_cuda.so could not be opened: " + reason,
                  "build it (./run build where nvcc is) or name it in HYSPARSE_CUDA_LIBRARY");
#define HYSPARSE_RESOLVE(name)                                                                    \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, "hysparse_cuda_" #name)); \
  if (!library.name)                                                                              \
    throw failure(library.path, "has no hysparse_cuda_" #name                                     \
                                ": it is of another version than this "                           \
                                "program");
  HYSPARSE_CUDA_FUNCTIONS(HYSPARSE_RESOLVE)
#undef HYSPARSE_RESOLVE
  return library;
}

}  // namespace

namespace {
thread_local hysparse_stream stream_of_calls = nullptr;
}
hysparse_stream cuda_stream() {
  return stream_of_calls;
}
CudaStreamScope::CudaStreamScope(hysparse_stream stream) {
  stream_of_calls = stream;
}
CudaStreamScope::~CudaStreamScope() {
  stream_of_calls = nullptr;
}

void CudaLibrary::check(int code, const char* what) const {
  if (code != HYSPARSE_OK) throw failure(what, last_error());
}

const CudaLibrary& cuda_library_alone() {
  static const CudaLibrary library = open_library();
  return library;
}

const CudaLibrary& cuda_library() {
  static const CudaLibrary& library = []() -> const CudaLibrary& {
    const CudaLibrary& opened = cuda_library_alone();
    int32_t devices = 0;
    opened.check(opened.device_count(&devices), "CUDA");
    if (devices == 0) throw failure("CUDA", "no GPU was found");
    return opened;
  }();
  return library;
}

bool cuda_available(std::string* why) {
  try {
    cuda_library();
    return true;
  } catch (const Error& e) {
    if (why) *why = e.what();
    return false;
  }
}

}  // namespace hysparse
