#include "comm/nccl_comm.h"

#include <dlfcn.h>

#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "comm/socket_comm.h"

namespace hysparse {
namespace {

// NCCL's C ABI, as far as it is called here: the same since version 2.10.
struct UniqueId {
  char bytes[128];
};
using Handle = struct NcclCommunicator*;
using Stream = void*;
enum Type : int { kInt64 = 4, kFloat32 = 7, kFloat64 = 8, kBFloat16 = 9 };
enum Operation : int { kSum = 0, kMax = 2 };

struct Library {
  int (*GetVersion)(int*) = nullptr;
  int (*GetUniqueId)(UniqueId*) = nullptr;
  int (*CommInitRank)(Handle*, int, UniqueId, int) = nullptr;
  int (*CommDestroy)(Handle) = nullptr;
  int (*CommAbort)(Handle) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  int (*AllReduce)(const void*, void*, size_t, int, int, Handle, Stream) = nullptr;
  int (*ReduceScatter)(const void*, void*, size_t, int, int, Handle, Stream) = nullptr;
  int (*AllGather)(const void*, void*, size_t, int, Handle, Stream) = nullptr;
  int (*Broadcast)(const void*, void*, size_t, int, int, Handle, Stream) = nullptr;
  int (*Send)(const void*, size_t, int, int, Handle, Stream) = nullptr;
  int (*Recv)(void*, size_t, int, int, Handle, Stream) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;

  void check(int code, const char* what) const {
    if (code != 0)
      throw failure("NCCL", fmt::format("{}: {}", what, GetErrorString(code)), "NCCL_DEBUG=WARN says more");
  }
};

Library open_library() {
  const char* named = std::getenv("HYSPARSE_NCCL_LIBRARY");
  const char* path = named ? named : "libnccl.so.2";
  void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw failure("NCCL", fmt::format("{} could not be opened: {}", path, dlerror()),
                  "install NCCL (Debian or NVIDIA: libnccl2; Python: nvidia-nccl-cu13) or name the file in "
                  "HYSPARSE_NCCL_LIBRARY; --comm sockets does without it, slowly");
  Library library;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (!function)
      throw failure("NCCL", fmt::format("{} has no {}: NCCL 2.10 or later is needed", path, name));
  };
#define HYSPARSE_RESOLVE(name) resolve(library.name, "nccl" #name)
  HYSPARSE_RESOLVE(GetVersion);
  HYSPARSE_RESOLVE(GetUniqueId);
  HYSPARSE_RESOLVE(CommInitRank);
  HYSPARSE_RESOLVE(CommDestroy);
  HYSPARSE_RESOLVE(CommAbort);
  HYSPARSE_RESOLVE(GetErrorString);
  HYSPARSE_RESOLVE(AllReduce);
  HYSPARSE_RESOLVE(ReduceScatter);
  HYSPARSE_RESOLVE(AllGather);
  HYSPARSE_RESOLVE(Broadcast);
  HYSPARSE_RESOLVE(Send);
  HYSPARSE_RESOLVE(Recv);
  HYSPARSE_RESOLVE(GroupStart);
  HYSPARSE_RESOLVE(GroupEnd);
#undef HYSPARSE_RESOLVE
  return library;
}

Type type_of(DType t) {
  switch (t) {
    case DType::f64:
      return kFloat64;
    case DType::f32:
      return kFloat32;
    case DType::bf16:
      return kBFloat16;
    default:
      return kInt64;
  }
}

size_t count(const TensorView& x) {
  return static_cast<size_t>(x.numel());
}

class NcclComm final : public Comm {
 public:
  explicit NcclComm(std::shared_ptr<Mesh> mesh) : host_(std::move(mesh)), nccl_(open_library()) {
    nccl_.check(nccl_.GetVersion(&version_), "version");
    UniqueId id{};
    if (rank() == 0) nccl_.check(nccl_.GetUniqueId(&id), "rendezvous");
    host_.broadcast(TensorView(&id, DType::i64, {sizeof id / sizeof(int64_t)}), 0);
    nccl_.check(nccl_.CommInitRank(&comm_, size(), id, rank()), "start");
  }
  // Where an error is on its way another rank may be gone, and destroying would wait for it.
  ~NcclComm() override {
    if (!comm_) return;
    if (std::uncaught_exceptions() > 0)
      nccl_.CommAbort(comm_);
    else
      nccl_.CommDestroy(comm_);
  }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  std::string name() const override {
    return fmt::format("NCCL {}.{}.{}", version_ / 10000, version_ / 100 % 100, version_ % 100);
  }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  void all_reduce(const TensorView& x, Reduce op) override {
    check_reduce(x);
    nccl_.check(nccl_.AllReduce(x.data, x.data, count(x), type_of(x.dtype), op == Reduce::sum ? kSum : kMax,
                                comm_, nullptr),
                "all-reduce");
  }
  void reduce_scatter(const TensorView& in, const TensorView& out) override {
    check_pieces(in, out, size());
    nccl_.check(nccl_.ReduceScatter(in.data, out.data, count(out), type_of(in.dtype), kSum, comm_, nullptr),
                "reduce-scatter");
  }
  void all_gather(const TensorView& in, const TensorView& out) override {
    check_pieces(out, in, size());
    nccl_.check(nccl_.AllGather(in.data, out.data, count(in), type_of(in.dtype), comm_, nullptr),
                "all-gather");
  }
  void all_to_all(const TensorView& in, const TensorView& out) override {
    check_pieces(in, out, 1);
    HYSPARSE_CHECK(in.numel() % size() == 0, "{} cut among {} ranks", in.describe(), size());
    const size_t piece = count(in) / static_cast<size_t>(size()), bytes = piece * size_of(in.dtype);
    nccl_.check(nccl_.GroupStart(), "all-to-all");
    for (int r = 0; r < size(); ++r) {
      const size_t at = static_cast<size_t>(r) * bytes;
      nccl_.check(nccl_.Send(static_cast<const std::byte*>(in.data) + at, piece, type_of(in.dtype), r, comm_,
                             nullptr),
                  "all-to-all");
      nccl_.check(
          nccl_.Recv(static_cast<std::byte*>(out.data) + at, piece, type_of(in.dtype), r, comm_, nullptr),
          "all-to-all");
    }
    nccl_.check(nccl_.GroupEnd(), "all-to-all");
  }
  void broadcast(const TensorView& x, int root) override {
    check_reduce(x);
    HYSPARSE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
    nccl_.check(nccl_.Broadcast(x.data, x.data, count(x), type_of(x.dtype), root, comm_, nullptr),
                "broadcast");
  }
  void barrier() override { host_.barrier(); }
  Comm& host() override { return host_; }

 private:
  SocketComm host_;
  Library nccl_;
  int version_ = 0;
  Handle comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Mesh> mesh) {
  return std::make_unique<NcclComm>(std::move(mesh));
}

}  // namespace hysparse
