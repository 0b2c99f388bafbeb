// Ranks as threads of one process, over the sockets that processes would have.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/socket_comm.h"

namespace hysparse::tests {

// Runs body(comm of rank r) on a thread a rank; the error of the lowest rank that had one is thrown at the
// end.
inline void with_meshes(int ranks, const std::function<void(std::shared_ptr<Mesh>)>& body) {
  std::vector<std::vector<int>> links = make_local_links(ranks);
  std::exception_ptr first;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      const auto mesh =
          std::make_shared<Mesh>(r, links[static_cast<size_t>(r)]);  // others wait until it goes
      try {
        body(mesh);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}
inline void with_ranks(int ranks, const std::function<void(Comm&)>& body) {
  with_meshes(ranks, [&](std::shared_ptr<Mesh> mesh) {
    SocketComm comm(std::move(mesh));
    body(comm);
  });
}

}  // namespace hysparse::tests
