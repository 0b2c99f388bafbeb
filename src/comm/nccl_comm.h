// Ranks with a GPU each, over NCCL. The library is opened at run time, as the driver is: a program runs
// without it and says so when asked for it.
#pragma once

#include <memory>

#include "comm/comm.h"
#include "comm/mesh.h"

namespace hysparse {

// Made by all ranks of `mesh` together, on the GPU that is current in this thread; the mesh carries the
// rendezvous and what the ranks share on the host. Operations are queued on the null stream.
// The library: $HYSPARSE_NCCL_LIBRARY, else libnccl.so.2 where the loader looks. Error(failure) says what is
// missing.
std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Mesh> mesh);

}  // namespace hysparse
