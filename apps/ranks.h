// Several processes that work on one command: started here (--gpus N, --ranks N) or by mpirun, srun or
// torchrun
// (--ranks env).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh.h"
#include "common.h"

namespace hysparse {

struct RankFlags {
  std::string ranks = "1";    // a number, or "env"
  int gpus = 0;               // 0: not given
  std::string comm = "auto";  // nccl | sockets
};
void add_rank_flags(CLI::App& command, RankFlags& flags);

// How many processes --gpus or --ranks ask for here; 1 with --ranks env.
int local_ranks(const RankFlags& flags);

// One of the processes: its device flags (its GPU is chosen, its threads are its share of the CPUs), and how
// to make what it shares with the others.
class RankContext {
 public:
  RankContext(DeviceFlags flags, std::string comm, std::shared_ptr<Mesh> mesh)
      : device(std::move(flags)), comm_(std::move(comm)), mesh_(std::move(mesh)) {}
  DeviceFlags device;
  int rank() const { return mesh_ ? mesh_->rank() : 0; }
  int size() const { return mesh_ ? mesh_->size() : 1; }
  bool is_root() const { return rank() == 0; }
  // For tensors in `memory`; null where there is one process (self_comm()).
  std::unique_ptr<Comm> make_comm(Memory& memory) const;

 private:
  std::string comm_;
  std::shared_ptr<Mesh> mesh_;
};

// Runs `body` in every process and returns when all have; with one process, in this one. Call it before
// anything starts a thread or a GPU. Processes other than rank 0 write nothing to stdout. One that fails or
// is killed ends all the others within seconds, and its error is thrown here; `hint` is added where it could
// not speak for itself.
void run_ranks(const RankFlags& flags, const DeviceFlags& device, const std::string& hint,
               const std::function<void(const RankContext&)>& body);

}  // namespace hysparse
