#include "comm/socket_comm.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace hysparse {
namespace {

// Which operation a message belongs to.
enum Step : uint32_t { kCombine = 1, kSpread, kAllToAll, kBroadcast, kBarrier };

constexpr int64_t kPiece = int64_t(1) << 20;  // elements that are on the way to one rank at a time

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

double wide(double x) {
  return x;
}
double wide(float x) {
  return x;
}
double wide(bf16 x) {
  return static_cast<float>(x);
}
void narrow(double sum, double& out) {
  out = sum;
}
void narrow(double sum, float& out) {
  out = static_cast<float>(sum);
}
void narrow(double sum, bf16& out) {
  out = bf16(static_cast<float>(sum));
}

// out[i] = the ranks' values at i together; from[r]: rank r's.
template <class T>
void combine_values(std::span<const std::byte* const> from, int64_t n, Reduce op, std::byte* out_bytes) {
  auto* out = reinterpret_cast<T*>(out_bytes);
  const auto at = [&](size_t r, int64_t i) { return reinterpret_cast<const T*>(from[r])[i]; };
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, int64_t>) {
      int64_t all = at(0, i);
      for (size_t r = 1; r < from.size(); ++r)
        all = op == Reduce::sum ? all + at(r, i) : std::max(all, at(r, i));
      out[i] = all;
    } else {
      double all = wide(at(0, i));
      for (size_t r = 1; r < from.size(); ++r) {
        const double x = wide(at(r, i));
        all = op == Reduce::sum ? all + x : (x > all || x != x ? x : all);
      }
      narrow(all, out[i]);
    }
  }
}

void combine_values(DType dtype, std::span<const std::byte* const> from, int64_t n, Reduce op,
                    std::byte* out) {
  switch (dtype) {
    case DType::f64:
      return combine_values<double>(from, n, op, out);
    case DType::f32:
      return combine_values<float>(from, n, op, out);
    case DType::bf16:
      return combine_values<bf16>(from, n, op, out);
    default:
      return combine_values<int64_t>(from, n, op, out);
  }
}

// A device's tensor as host memory: fetched at the start, put back at the end where asked.
class Staged {
 public:
  Staged(Memory& memory, const TensorView& x, bool fetch) : memory_(memory), x_(x) {
    if (memory.device() == DeviceKind::cpu) {
      view_ = x;
      return;
    }
    own_ = Tensor(x.dtype, {x.numel()});
    view_ = own_.view();
    if (fetch) memory.to_host(view_.data, x.data, x.bytes());
  }
  void put_back() {
    if (own_) memory_.from_host(x_.data, view_.data, x_.bytes());
  }
  std::byte* bytes() const { return static_cast<std::byte*>(view_.data); }
  const TensorView& view() const { return view_; }

 private:
  Memory& memory_;
  TensorView x_, view_;
  Tensor own_;
};

}  // namespace

SocketComm::SocketComm(std::shared_ptr<Mesh> mesh, Memory& memory) : mesh_(std::move(mesh)), memory_(memory) {
  if (memory.device() != DeviceKind::cpu) on_host_ = std::make_unique<SocketComm>(mesh_);
}

std::vector<int64_t> SocketComm::even(int64_t n) const {
  std::vector<int64_t> begin;
  for (int r = 0; r <= size(); ++r) begin.push_back(n / size() * r + std::min<int64_t>(r, n % size()));
  return begin;
}

void SocketComm::combine(const std::byte* x, DType dtype, const std::vector<int64_t>& begin, Reduce op,
                         std::byte* out) {
  const auto width = static_cast<int64_t>(size_of(dtype));
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  int64_t longest = 0;
  for (size_t r = 0; r < ranks; ++r) longest = std::max(longest, begin[r + 1] - begin[r]);
  const auto piece_of = [&](size_t r, int64_t at) {
    return std::clamp<int64_t>(begin[r + 1] - begin[r] - at, 0, kPiece);
  };
  std::vector<std::byte> arrived(ranks * static_cast<size_t>(std::min(longest, kPiece) * width));
  std::vector<ConstBytes> send(ranks);
  std::vector<Bytes> receive(ranks);
  std::vector<const std::byte*> from(ranks);
  for (int64_t at = 0; at < longest; at += kPiece) {
    const int64_t mine = piece_of(me, at);
    for (size_t r = 0; r < ranks; ++r) {
      send[r] = {x + (begin[r] + at) * width, static_cast<size_t>(piece_of(r, at) * width)};
      receive[r] = {arrived.data() + r * static_cast<size_t>(std::min(longest, kPiece) * width),
                    static_cast<size_t>(mine * width)};
      from[r] = receive[r].data();
    }
    from[me] = x + (begin[me] + at) * width;
    mesh_->exchange(kCombine, send, receive);
    combine_values(dtype, from, mine, op, out + at * width);
  }
}

void SocketComm::spread(std::byte* x, DType dtype, const std::vector<int64_t>& begin) {
  const auto width = static_cast<int64_t>(size_of(dtype));
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
  std::vector<ConstBytes> send(ranks);
  std::vector<Bytes> receive(ranks);
  const auto piece_of = [&](size_t r) {
    return Bytes(x + begin[r] * width, static_cast<size_t>((begin[r + 1] - begin[r]) * width));
  };
  for (size_t r = 0; r < ranks; ++r) {
    send[r] = piece_of(me);
    receive[r] = piece_of(r);
  }
  mesh_->exchange(kSpread, send, receive);
}

void SocketComm::all_reduce(const TensorView& x, Reduce op) {
  check_reduce(x);
  Staged staged(memory_, x, true);
  const std::vector<int64_t> begin = even(x.numel());
  const auto mine = static_cast<size_t>(begin[static_cast<size_t>(rank())]) * size_of(x.dtype);
  combine(staged.bytes(), x.dtype, begin, op, staged.bytes() + mine);
  spread(staged.bytes(), x.dtype, begin);
  staged.put_back();
}

void SocketComm::reduce_scatter(const TensorView& in, const TensorView& out) {
  check_pieces(in, out, size());
  Staged from(memory_, in, true), to(memory_, out, false);
  combine(from.bytes(), in.dtype, even(in.numel()), Reduce::sum, to.bytes());
  to.put_back();
}

void SocketComm::all_gather(const TensorView& in, const TensorView& out) {
  check_pieces(out, in, size());
  Staged to(memory_, out, false);
  std::byte* mine = to.bytes() + static_cast<size_t>(rank()) * in.bytes();
  if (memory_.device() == DeviceKind::cpu) {
    if (mine != in.data) std::memmove(mine, in.data, in.bytes());
  } else {
    memory_.to_host(mine, in.data, in.bytes());
  }
  spread(to.bytes(), out.dtype, even(out.numel()));
  to.put_back();
}

void SocketComm::all_to_all(const TensorView& in, const TensorView& out) {
  check_pieces(in, out, 1);
  HYSPARSE_CHECK(in.numel() % size() == 0, "{} cut among {} ranks", in.describe(), size());
  Staged from(memory_, in, true), to(memory_, out, false);
  const auto ranks = static_cast<size_t>(size()), me = static_cast<size_t>(rank()),
             piece = in.bytes() / ranks;
  std::vector<ConstBytes> send;
  std::vector<Bytes> receive;
  for (size_t r = 0; r < ranks; ++r) {
    send.emplace_back(from.bytes() + r * piece, piece);
    receive.emplace_back(to.bytes() + r * piece, piece);
  }
  std::memcpy(receive[me].data(), send[me].data(), piece);
  mesh_->exchange(kAllToAll, send, receive);
  to.put_back();
}

void SocketComm::broadcast(const TensorView& x, int root) {
  check_reduce(x);
  HYSPARSE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
  const bool sends = root == rank();
  Staged staged(memory_, x, sends);
  std::vector<ConstBytes> send(static_cast<size_t>(size()));
  std::vector<Bytes> receive(static_cast<size_t>(size()));
  if (sends)
    std::fill(send.begin(), send.end(), ConstBytes(staged.bytes(), x.bytes()));
  else
    receive[static_cast<size_t>(root)] = Bytes(staged.bytes(), x.bytes());
  mesh_->exchange(kBroadcast, send, receive);
  if (!sends) staged.put_back();
}

void SocketComm::barrier() {
  const auto ranks = static_cast<size_t>(size());
  mesh_->exchange(kBarrier, std::vector<ConstBytes>(ranks), std::vector<Bytes>(ranks));
}

}  // namespace hysparse
