#include "comm/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int whole_number(const char* name, int low, int high) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    throw expected_error(fmt::format("environment variable {}", name),
                         fmt::format("a whole number from {} to {}", low, high),
                         text.empty() ? "nothing" : "\"" + text + "\"");
  return value;
}

// Who tells: its names for the facts; `all_here` compares as text: equal where all ranks are on one host.
struct Launcher {
  const char *rank, *size, *local_rank;
  const char* all_here[2];
};
constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", {"LOCAL_WORLD_SIZE", "WORLD_SIZE"}},
    {"OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"}},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", {"MPI_LOCALNRANKS", "PMI_SIZE"}},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", {"SLURM_NNODES", nullptr}},
};

// A file descriptor that is closed with its owner.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&bytes); }
  void set_port(int port) {
    // At the same place in both families.
    reinterpret_cast<sockaddr_in*>(&bytes)->sin_port = htons(static_cast<uint16_t>(port));
  }
  int port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port); }
};

Address resolve(const RankEnvironment& e) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(e.address.c_str(), nullptr, &hints, &found);
  if (error != 0)
    throw input_error("MASTER_ADDR", fmt::format("\"{}\" is no host: {}", e.address, gai_strerror(error)));
  Address a;
  std::memcpy(&a.bytes, found->ai_addr, found->ai_addrlen);
  a.length = found->ai_addrlen;
  freeaddrinfo(found);
  a.set_port(e.port);
  return a;
}

bool is_loopback(const Address& a) {
  if (a.bytes.ss_family == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&a.bytes)->sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&a.bytes)->sin6_addr);
}

// `like` on every interface, unless it is this host alone.
Address any_interface(const Address& like) {
  if (is_loopback(like)) return like;
  Address a = like;
  if (a.bytes.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(&a.bytes)->sin_addr.s_addr = htonl(INADDR_ANY);
  else
    reinterpret_cast<sockaddr_in6*>(&a.bytes)->sin6_addr = in6addr_any;
  return a;
}

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}
  int left_ms() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
  }
  bool over() const { return left_ms() == 0; }

 private:
  Clock::time_point end_;
};

// Small messages go at once; a host that vanishes is noticed within half a minute.
void tune(int fd) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 25'000);
}

Fd listen_at(Address a, const std::string& hint) {
  Fd fd(socket(a.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (!fd || bind(fd.get(), a.raw(), a.length) != 0 || listen(fd.get(), SOMAXCONN) != 0)
    throw failure("ranks", fmt::format("could not listen at port {}: {}", a.port(), std::strerror(errno)),
                  hint);
  return fd;
}

// Again and again until somebody listens there.
Fd connect_to(Address a, const Deadline& deadline, const std::string& whom) {
  while (true) {
    Fd fd(socket(a.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd && connect(fd.get(), a.raw(), a.length) == 0) {
      tune(fd.get());
      return fd;
    }
    const int error = errno;
    if (deadline.over())
      throw failure("ranks", fmt::format("{} could not be reached: {}", whom, std::strerror(error)),
                    "MASTER_ADDR and MASTER_PORT say where rank 0 listens; all ranks must be started");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool wait_for(int fd, short what, const Deadline& deadline) {
  pollfd p{fd, what, 0};
  while (true) {
    const int n = poll(&p, 1, deadline.left_ms());
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

bool read_all(int fd, void* data, size_t bytes, const Deadline& deadline) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    if (!wait_for(fd, POLLIN, deadline)) return false;
    const ssize_t n = recv(fd, at, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}
bool write_all(int fd, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

constexpr uint32_t kMagic = 0x52505348;  // "HSPR"

struct Hello {
  uint32_t magic = kMagic;
  int32_t rank = 0, size = 0, port = 0;  // where this rank listens
};

// Connections of the ranks that are still missing in `peers`, with what they said.
std::vector<Hello> accept_ranks(const Fd& listener, const RankEnvironment& e, int first,
                                std::vector<int>& peers, const Deadline& deadline) {
  std::vector<Hello> hellos(static_cast<size_t>(e.size));
  for (int missing = e.size - first; missing > 0;) {
    if (!wait_for(listener.get(), POLLIN, deadline)) {
      std::string names;
      for (int r = first; r < e.size; ++r)
        if (peers[static_cast<size_t>(r)] < 0) names += (names.empty() ? "" : ", ") + std::to_string(r);
      throw failure("ranks", fmt::format("of {} ranks these did not come: {}", e.size, names),
                    "all ranks must be started, and reach MASTER_ADDR and MASTER_PORT");
    }
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    // Whatever else knocks at this port is not ours.
    if (!fd || !read_all(fd.get(), &hello, sizeof hello, Deadline(10)) || hello.magic != kMagic) continue;
    if (hello.size != e.size || hello.rank < first || hello.rank >= e.size ||
        peers[static_cast<size_t>(hello.rank)] >= 0)
      throw failure("ranks",
                    fmt::format("rank {} of {} came where ranks {} to {} of {} were awaited, each once",
                                hello.rank, hello.size, first, e.size - 1, e.size),
                    "two runs at one MASTER_PORT?");
    tune(fd.get());
    hellos[static_cast<size_t>(hello.rank)] = hello;
    peers[static_cast<size_t>(hello.rank)] = fd.release();
    --missing;
  }
  return hellos;
}

}  // namespace

RankEnvironment read_rank_environment() {
  for (const Launcher& l : kLaunchers) {
    if (!std::getenv(l.rank) || !std::getenv(l.size)) continue;
    RankEnvironment e;
    e.size = whole_number(l.size, 1, 1 << 16);
    e.rank = whole_number(l.rank, 0, e.size - 1);
    if (std::getenv(l.local_rank)) e.local_rank = whole_number(l.local_rank, 0, e.size - 1);
    const std::string here = variable(l.all_here[0]);
    const bool one_host = e.size == 1 || (l.all_here[1] ? here == variable(l.all_here[1]) : here == "1");
    if (std::getenv("SLURM_JOB_ID") && l.all_here[1] == nullptr)
      e.port = 15000 + whole_number("SLURM_JOB_ID", 0, INT32_MAX) % 10000;  // jobs that share a host
    if (std::getenv("MASTER_PORT")) e.port = whole_number("MASTER_PORT", 1, 65535);
    if (const std::string address = variable("MASTER_ADDR"); !address.empty())
      e.address = address;
    else if (!one_host)
      throw input_error("environment variable MASTER_ADDR", "is missing",
                        "with ranks on several hosts it names the host of rank 0");
    return e;
  }
  throw input_error(
      "environment", "does not say which rank this process is",
      "start it by mpirun, srun or torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

std::unique_ptr<Mesh> join_ranks(const RankEnvironment& e, double seconds) {
  const auto n = static_cast<size_t>(e.size);
  // Owned here until all is well.
  struct Peers {
    std::vector<int> fds;
    ~Peers() {
      for (const int fd : fds)
        if (fd >= 0) close(fd);
    }
  } peers{std::vector<int>(n, -1)};
  if (e.size == 1) return std::make_unique<Mesh>(0, std::move(peers.fds));
  const Deadline deadline(seconds);
  const Address root = resolve(e);
  const std::string busy = fmt::format("is another run at port {}? MASTER_PORT chooses another", e.port);
  const auto lost = [](int rank) {
    return failure(fmt::format("rank {}", rank), "left while the ranks came together");
  };
  // Everybody tells rank 0 where it listens; rank 0 tells everybody; each connects to those below it.
  std::vector<Address> places(n);
  if (e.rank == 0) {
    const Fd listener = listen_at(any_interface(root), busy);
    const std::vector<Hello> hellos = accept_ranks(listener, e, 1, peers.fds, deadline);
    for (size_t r = 1; r < n; ++r) {
      places[r].length = sizeof places[r].bytes;
      if (getpeername(peers.fds[r], places[r].raw(), &places[r].length) != 0) throw lost(static_cast<int>(r));
      places[r].set_port(hellos[r].port);
    }
    for (size_t r = 1; r < n; ++r)
      if (!write_all(peers.fds[r], places.data(), n * sizeof(Address))) throw lost(static_cast<int>(r));
  } else {
    Address own = any_interface(root);
    own.set_port(0);
    const Fd listener = listen_at(own, "");
    if (getsockname(listener.get(), own.raw(), &own.length) != 0) throw lost(e.rank);
    const Hello hello{kMagic, e.rank, e.size, own.port()};
    const auto join = [&](const Address& at, int rank) {
      Fd fd = connect_to(
          at, deadline, fmt::format("rank {} at {}:{}", rank, rank == 0 ? e.address : "its host", at.port()));
      if (!write_all(fd.get(), &hello, sizeof hello)) throw lost(rank);
      peers.fds[static_cast<size_t>(rank)] = fd.release();
    };
    join(root, 0);
    if (!read_all(peers.fds[0], places.data(), n * sizeof(Address), deadline)) throw lost(0);
    for (int r = 1; r < e.rank; ++r) join(places[static_cast<size_t>(r)], r);
    accept_ranks(listener, e, e.rank + 1, peers.fds, deadline);
  }
  return std::make_unique<Mesh>(e.rank, std::move(peers.fds));
}

}  // namespace hysparse
