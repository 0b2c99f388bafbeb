// Ranks joined by stream sockets, every one with every other: the bytes below SocketComm, and the ranks' way
// to find out that one is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hysparse {

class Mesh {
 public:
  // peers[r]: a connected stream socket to rank r, owned from here on; peers[rank] is -1.
  Mesh(int rank, std::vector<int> peers);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Sends send[r] to every rank r and fills receive[r] from it, all at once; entries of this rank are left
  // alone, and empty ones are exchanged too. `what` says which operation it is: ranks that are at different
  // places of the program find out here. Error(failure) where a rank is gone or at another operation.
  void exchange(uint32_t what, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive);

 private:
  int rank_;
  std::vector<int> peers_;
  uint32_t number_ = 0;  // of the exchange
};

// Sockets between `size` ranks of this host, to be handed to processes (or threads) that are yet to begin:
// links[a][b] is rank a's to rank b, -1 where a == b. Closed on exec.
std::vector<std::vector<int>> make_local_links(int size);

}  // namespace hysparse
