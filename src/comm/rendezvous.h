// How processes that another program started (mpirun, srun, torchrun) become ranks of one run.
#pragma once

#include <memory>
#include <string>

#include "comm/mesh.h"

namespace hysparse {

struct RankEnvironment {
  int rank = 0, size = 1;
  int local_rank = 0;                 // among those of this host
  std::string address = "127.0.0.1";  // where rank 0 listens
  int port = 29500;
};

// From RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_RANK (mpirun of Open MPI), PMI_RANK (of MPICH) or
// SLURM_PROCID (srun) and what goes with them; MASTER_ADDR and MASTER_PORT say where rank 0 listens, and may
// be left out where all ranks are on one host. Error(input) where they do not say or make no sense.
RankEnvironment read_rank_environment();

// Connects the ranks over TCP. Error(failure) where one does not come within `seconds`.
std::unique_ptr<Mesh> join_ranks(const RankEnvironment& environment, double seconds = 120);

}  // namespace hysparse
