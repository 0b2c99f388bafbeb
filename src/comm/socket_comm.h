// Ranks over the stream sockets of a Mesh. Sums are made in f64 in the order of ranks and rounded once: every
// rank gets the same bits, whoever came first. Tensors of a device go through the host.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "comm/mesh.h"

namespace hysparse {

class SocketComm final : public Comm {
 public:
  explicit SocketComm(std::shared_ptr<Mesh> mesh, Memory& memory = host_memory());

  std::string name() const override { return "sockets"; }
  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  void all_reduce(const TensorView& x, Reduce op) override;
  void reduce_scatter(const TensorView& in, const TensorView& out) override;
  void all_gather(const TensorView& in, const TensorView& out) override;
  void all_to_all(const TensorView& in, const TensorView& out) override;
  void broadcast(const TensorView& x, int root) override;
  void barrier() override;
  Comm& host() override { return on_host_ ? *on_host_ : static_cast<Comm&>(*this); }

 private:
  // Of elements [begin[r], begin[r + 1]) of every rank's `x` rank r makes the sum, at `out`.
  void combine(const std::byte* x, DType dtype, const std::vector<int64_t>& begin, Reduce op, std::byte* out);
  // Elements [begin[r], begin[r + 1]) of x, which rank r has, to all, in place.
  void spread(std::byte* x, DType dtype, const std::vector<int64_t>& begin);
  std::vector<int64_t> even(int64_t n) const;  // n elements cut among the ranks

  std::shared_ptr<Mesh> mesh_;
  Memory& memory_;
  std::unique_ptr<SocketComm> on_host_;  // where memory_ is a device's
};

}  // namespace hysparse
