#include "comm/mesh.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hysparse {
namespace {

// In front of every message.
struct Header {
  uint32_t number, what;
  uint64_t bytes;
};

// One direction of one peer: a header, then the payload.
struct Transfer {
  Header header{};
  std::byte* payload = nullptr;
  size_t bytes = 0, done = 0;  // header included
  bool active = false;
  bool finished() const { return !active || done == sizeof header + bytes; }
  // What is to be moved next, and how much of it.
  std::span<std::byte> next() {
    auto* head = reinterpret_cast<std::byte*>(&header);
    if (done < sizeof header) return {head + done, sizeof header - done};
    return {payload + (done - sizeof header), bytes - (done - sizeof header)};
  }
};

Error gone(int peer) {
  return failure(fmt::format("rank {}", peer), "is gone: its process ended or its connection broke");
}

}  // namespace

Mesh::Mesh(int rank, std::vector<int> peers) : rank_(rank), peers_(std::move(peers)) {}

Mesh::~Mesh() {
  for (const int fd : peers_)
    if (fd >= 0) close(fd);
}

void Mesh::exchange(uint32_t what, std::span<const std::span<const std::byte>> send_pieces,
                    std::span<const std::span<std::byte>> receive_pieces) {
  const size_t n = peers_.size();
  HYSPARSE_CHECK(send_pieces.size() == n && receive_pieces.size() == n,
                 "an exchange of {} ranks with {} and {} pieces", n, send_pieces.size(),
                 receive_pieces.size());
  ++number_;
  std::vector<Transfer> out(n), in(n);
  for (size_t r = 0; r < n; ++r) {
    if (static_cast<int>(r) == rank_) continue;
    out[r] = {{number_, what, send_pieces[r].size()},
              const_cast<std::byte*>(send_pieces[r].data()),
              send_pieces[r].size(),
              0,
              true};
    in[r] = {{}, receive_pieces[r].data(), receive_pieces[r].size(), 0, true};
  }
  std::vector<pollfd> polls(n);
  while (true) {
    bool waiting = false;
    for (size_t r = 0; r < n; ++r) {
      const bool sending = !out[r].finished(), receiving = !in[r].finished();
      polls[r] = {sending || receiving ? peers_[r] : -1,
                  static_cast<short>((sending ? POLLOUT : 0) | (receiving ? POLLIN : 0)), 0};
      waiting |= sending || receiving;
    }
    if (!waiting) return;
    if (poll(polls.data(), n, -1) < 0) {
      if (errno == EINTR) continue;
      throw failure("ranks", fmt::format("could not wait for the others: {}", std::strerror(errno)));
    }
    for (size_t r = 0; r < n; ++r) {
      const int peer = static_cast<int>(r);
      while ((polls[r].revents & (POLLIN | POLLHUP | POLLERR)) && !in[r].finished()) {
        const std::span<std::byte> next = in[r].next();
        const ssize_t got = recv(peers_[r], next.data(), next.size(), MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (got <= 0) throw gone(peer);
        in[r].done += static_cast<size_t>(got);
        const Header& h = in[r].header;
        if (in[r].done == sizeof h && (h.number != number_ || h.what != what || h.bytes != in[r].bytes))
          throw failure(
              fmt::format("rank {}", peer),
              fmt::format("is not where rank {} is: it sends {} bytes of operation {} (its {}th), {} of {} "
                          "({}th) were due",
                          rank_, h.bytes, h.what, h.number, in[r].bytes, what, number_),
              "all ranks need the same program, config and data");
      }
      while ((polls[r].revents & POLLOUT) && !out[r].finished()) {
        const std::span<std::byte> next = out[r].next();
        const ssize_t sent = send(peers_[r], next.data(), next.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (sent < 0) throw gone(peer);
        out[r].done += static_cast<size_t>(sent);
      }
    }
  }
}

std::vector<std::vector<int>> make_local_links(int size) {
  HYSPARSE_CHECK(size >= 1, "{} ranks", size);
  const auto n = static_cast<size_t>(size);
  std::vector<std::vector<int>> links(n, std::vector<int>(n, -1));
  for (size_t a = 0; a < n; ++a)
    for (size_t b = a + 1; b < n; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        const int error = errno;
        for (const auto& row : links)
          for (const int fd : row)
            if (fd >= 0) close(fd);
        throw failure("ranks", fmt::format("could not connect {} processes: {}", size, std::strerror(error)),
                      "ulimit -n raises the number of open files");
      }
      for (const int fd : pair) {
        const int bytes = 4 << 20;  // fewer turns of the loop; the kernel gives what it allows
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
      }
      links[a][b] = pair[0];
      links[b][a] = pair[1];
    }
  return links;
}

}  // namespace hysparse
