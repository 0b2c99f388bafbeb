// What several processes (ranks) do together. Every rank calls the same operations in the same order with the
// same shapes and dtypes; an operation returns when this rank's part of it is done (on a GPU: queued in the
// order of the null stream, as every kernel is).
//
//   self_comm()   one process; every operation is a copy or nothing
//   SocketComm    processes over stream sockets, on one host or several (comm/socket_comm.h)
//   NcclComm      one GPU a process, NCCL opened at run time (comm/nccl_comm.h)
//
// Tensors are contiguous f64, f32, bf16 or i64, in the memory that the Comm was made for. A rank that is gone
// is Error(failure) in all others.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tensor/tensor.h"

namespace hysparse {

enum class Reduce : uint8_t { sum, max };

class Comm {
 public:
  virtual ~Comm() = default;
  virtual std::string name() const = 0;  // "self", "sockets", "NCCL 2.27.3"
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x of every rank together, in place. Sums of bf16 are rounded once over sockets; NCCL may round on the
  // way.
  virtual void all_reduce(const TensorView& x, Reduce op) = 0;
  // in [size * n] -> out [n]: the sum over the ranks of piece `rank` of `in`. out may be that very piece.
  virtual void reduce_scatter(const TensorView& in, const TensorView& out) = 0;
  // in [n] -> out [size * n], in the order of ranks. in may be piece `rank` of out.
  virtual void all_gather(const TensorView& in, const TensorView& out) = 0;
  // in [size * n] -> out [size * n]: piece r goes to rank r, which finds it at the sender's place. No overlap
  // (alone in the world: in is out).
  virtual void all_to_all(const TensorView& in, const TensorView& out) = 0;
  virtual void broadcast(const TensorView& x, int root) = 0;
  virtual void barrier() = 0;

  // The same ranks for tensors in host memory.
  virtual Comm& host() = 0;

  // Small facts on the host that all ranks then share.
  void all_reduce_values(std::span<double> values, Reduce op = Reduce::sum);
  bool any(bool here);  // whether it is so on any rank
};

// One process.
Comm& self_comm();

// Throws Error where a call's tensors do not fit together; what every Comm asks first.
void check_reduce(const TensorView& x);
void check_pieces(const TensorView& whole, const TensorView& piece, int size);

}  // namespace hysparse
