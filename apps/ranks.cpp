#include "ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <optional>
#include <vector>

#include "base/error.h"
#include "comm/nccl_comm.h"
#include "comm/rendezvous.h"
#include "comm/socket_comm.h"

namespace hysparse {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 256;
constexpr double kGraceSeconds = 8;  // between a rank's failure and the end of those that do not notice

// Makes GPU number `local_rank`, of those this process may use, the only one that it sees: whatever thread of
// it touches the GPU touches that one.
void choose_gpu(int local_rank, bool alone_is_fine) {
  const char* set = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> names;
  if (set) {
    std::string_view rest = set;
    while (!rest.empty()) {
      const size_t comma = rest.find(',');
      names.emplace_back(rest.substr(0, comma));
      rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    }
    if (names.size() == 1 && alone_is_fine) return;  // the launcher chose
    if (static_cast<size_t>(local_rank) >= names.size())
      throw input_error("CUDA_VISIBLE_DEVICES", fmt::format("shows {} GPUs, and rank {} needs one of its own",
                                                            names.size(), local_rank));
  }
  setenv("CUDA_VISIBLE_DEVICES",
         set ? names[static_cast<size_t>(local_rank)].c_str() : std::to_string(local_rank).c_str(), 1);
}

// What a rank that fails tells its launcher, in the order of failures.
struct Report {
  int32_t rank = 0;
  ErrorKind kind = ErrorKind::failure;
  std::string text;
};
class Reports {
 public:
  Reports() {
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends_) != 0)
      throw failure("ranks", fmt::format("could not start: {}", std::strerror(errno)));
  }
  ~Reports() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;

  int fd() const { return ends_[0]; }
  void send(int rank, ErrorKind kind, std::string_view text) const {
    std::string message(2 * sizeof(int32_t), '\0');
    const int32_t head[] = {rank, static_cast<int32_t>(kind)};
    std::memcpy(message.data(), head, sizeof head);
    message += text.substr(0, 32768);
    [[maybe_unused]] const ssize_t n = ::send(ends_[1], message.data(), message.size(), MSG_NOSIGNAL);
  }
  std::optional<Report> receive() const {
    std::string message(65536, '\0');
    const ssize_t n = recv(ends_[0], message.data(), message.size(), MSG_DONTWAIT);
    int32_t head[2];
    if (n < static_cast<ssize_t>(sizeof head)) return std::nullopt;
    std::memcpy(head, message.data(), sizeof head);
    return Report{head[0], static_cast<ErrorKind>(head[1]),
                  message.substr(sizeof head, static_cast<size_t>(n) - sizeof head)};
  }

 private:
  int ends_[2];
};

// Requests to stop that came to the launcher, which hands them on.
volatile std::sig_atomic_t requests = 0;
void on_request(int) {
  requests = requests + 1;
}

// SIGINT and SIGTERM wait while processes are being started.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &before_);
  }
  ~HeldSignals() { release(); }
  void release() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// The body of one process, to its end.
[[noreturn]] void run_child(const RankContext& context, pid_t parent, const Reports& reports,
                            HeldSignals& held, const std::function<void(const RankContext&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // a launcher that is killed stops its ranks as Ctrl-C does
  if (getppid() != parent) _exit(1);
  interrupt_flag();
  held.release();
  if (!context.is_root()) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
  }
  int code = 0;
  const auto fail = [&](ErrorKind kind, const char* text) {
    reports.send(context.rank(), kind, text);
    code = Error(kind, "").exit_code();
  };
  try {
    body(context);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) || !std::cout.flush())
      throw failure("standard output", std::strerror(errno));
  } catch (const Error& e) {
    fail(e.kind(), e.what());
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::failure, "out of memory");
  } catch (const std::exception& e) {
    fail(ErrorKind::failure, e.what());
  }
  _exit(code);
}

struct Child {
  pid_t pid = -1;
  bool running = true, killed = false;  // killed: by us
  int status = 0;
  bool failed() const { return !running && status != 0; }
  bool by_signal() const { return failed() && WIFSIGNALED(status) && !killed; }
};

// Waits for all; after the first failure those that do not end by themselves are ended.
std::vector<Report> supervise(std::vector<Child>& children, const Reports& reports) {
  std::vector<Report> said;
  std::optional<Clock::time_point> first_failure;
  std::sig_atomic_t handed_on = 0;
  const auto each_running = [&](const auto& fn) {
    for (Child& c : children)
      if (c.running) fn(c);
  };
  bool any = true;
  while (any) {
    pollfd p{reports.fd(), POLLIN, 0};
    poll(&p, 1, 50);
    for (; handed_on < requests; ++handed_on) each_running([](Child& c) { kill(c.pid, SIGTERM); });
    while (std::optional<Report> r = reports.receive()) said.push_back(std::move(*r));
    any = false;
    each_running([&](Child& c) {
      if (waitpid(c.pid, &c.status, WNOHANG) == c.pid) c.running = false;
      any |= c.running;
      if (c.failed() && !first_failure) first_failure = Clock::now();
    });
    // A rank that leaves after an interruption has waited for the others to save.
    if (first_failure && std::chrono::duration<double>(Clock::now() - *first_failure).count() > kGraceSeconds)
      each_running([](Child& c) {
        c.killed = true;
        kill(c.pid, SIGKILL);
      });
  }
  while (std::optional<Report> r = reports.receive()) said.push_back(std::move(*r));
  return said;
}

// The one error of a run: of the rank that failed by itself, not of those that then missed it.
void throw_first_error(const std::vector<Child>& children, const std::vector<Report>& said,
                       const std::string& hint) {
  const int n = static_cast<int>(children.size());
  for (int r = 0; r < n; ++r) {
    const Child& c = children[static_cast<size_t>(r)];
    if (!c.by_signal()) continue;
    const int signal = WTERMSIG(c.status);
    throw failure(fmt::format("rank {} of {}", r, n),
                  fmt::format("process {} was ended by signal {} ({}); all ranks were stopped", c.pid, signal,
                              strsignal(signal)),
                  hint);
  }
  if (!said.empty()) {
    const Report& first = said.front();
    const bool all_say_so = std::any_of(said.begin(), said.end(), [&](const Report& r) {
      return r.rank == 0 && r.text == first.text && r.kind == first.kind;
    });
    throw Error(first.kind,
                all_say_so ? first.text : fmt::format("rank {} of {}: {}", first.rank, n, first.text));
  }
  for (int r = 0; r < n; ++r) {
    const Child& c = children[static_cast<size_t>(r)];
    if (!c.failed() || c.killed) continue;
    const int code = WEXITSTATUS(c.status);
    if (code == 130) throw Error(ErrorKind::interrupted, "interrupted");
    throw failure(fmt::format("rank {} of {}", r, n),
                  fmt::format("process {} ended with exit code {}; all ranks were stopped", c.pid, code),
                  hint);
  }
}

void launch(int n, const RankFlags& flags, const DeviceFlags& device, const std::string& hint,
            const std::function<void(const RankContext&)>& body) {
  DeviceFlags own = device;
  if (own.threads == 0) own.threads = std::max(1, available_cpus() / n);
  const std::vector<std::vector<int>> links = make_local_links(n);
  const auto close_links = [&](int but) {
    for (int r = 0; r < n; ++r)
      for (const int fd : links[static_cast<size_t>(r)])
        if (r != but && fd >= 0) close(fd);
  };
  const Reports reports;
  std::vector<Child> children;
  std::fflush(nullptr);
  HeldSignals held;
  const pid_t parent = getpid();
  for (int r = 0; r < n; ++r) {
    const pid_t pid = fork();
    if (pid == 0) {
      close_links(r);
      try {
        if (own.device == "cuda") choose_gpu(r, false);
      } catch (const Error& e) {
        reports.send(r, e.kind(), e.what());
        _exit(e.exit_code());
      }
      run_child({own, flags.comm, std::make_shared<Mesh>(r, links[static_cast<size_t>(r)])}, parent, reports,
                held, body);
    }
    if (pid < 0) {
      const int error = errno;
      for (const Child& c : children) kill(c.pid, SIGKILL);
      for (const Child& c : children) waitpid(c.pid, nullptr, 0);
      close_links(-1);
      throw failure("ranks", fmt::format("could not start {} processes: {}", n, std::strerror(error)));
    }
    children.push_back({pid});
  }
  close_links(-1);
  struct sigaction action {};
  action.sa_handler = on_request;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  held.release();
  const std::vector<Report> said = supervise(children, reports);
  throw_first_error(children, said, hint);
}

}  // namespace

void add_rank_flags(CLI::App& command, RankFlags& flags) {
  CLI::Option* gpus =
      command
          .add_option("--gpus", flags.gpus,
                      "data parallel on so many GPUs of this machine, a process each; implies --device cuda")
          ->check(CLI::Range(1, kMaxRanks));
  command
      .add_option("--ranks", flags.ranks,
                  "the same on --device: so many processes; env: this process is one of those that mpirun, "
                  "srun or torchrun started")
      ->excludes(gpus)
      ->capture_default_str();
  command.add_option("--comm", flags.comm, "how ranks talk: nccl, sockets, or auto (nccl between GPUs)")
      ->check(CLI::IsMember({"auto", "nccl", "sockets"}))
      ->capture_default_str();
}

int local_ranks(const RankFlags& flags) {
  if (flags.gpus > 0) return flags.gpus;
  if (flags.ranks == "env") return 1;
  int n = 0;
  const auto [end, error] = std::from_chars(flags.ranks.data(), flags.ranks.data() + flags.ranks.size(), n);
  if (error != std::errc() || end != flags.ranks.data() + flags.ranks.size() || n < 1 || n > kMaxRanks)
    throw expected_error("--ranks", fmt::format("a whole number from 1 to {}, or env", kMaxRanks),
                         "\"" + flags.ranks + "\"");
  return n;
}

std::unique_ptr<Comm> RankContext::make_comm(Memory& memory) const {
  if (!mesh_) return nullptr;
  const bool on_gpu = memory.device() == DeviceKind::cuda;
  if (comm_ == "nccl" && !on_gpu) throw input_error("--comm", "nccl is for --device cuda", "leave it out");
  if (on_gpu && comm_ != "sockets") return make_nccl_comm(mesh_);
  return std::make_unique<SocketComm>(mesh_, memory);
}

void run_ranks(const RankFlags& flags, const DeviceFlags& device, const std::string& hint,
               const std::function<void(const RankContext&)>& body) {
  DeviceFlags own = device;
  if (flags.gpus > 0) own.device = "cuda";
  const int n = local_ranks(flags);
  if (flags.gpus == 0 && flags.ranks == "env") {
    const RankEnvironment environment = read_rank_environment();
    if (own.device == "cuda") choose_gpu(environment.local_rank, true);
    body({own, flags.comm, join_ranks(environment)});
  } else if (n == 1) {
    body({own, flags.comm, nullptr});
  } else {
    launch(n, flags, own, hint, body);
  }
}

}  // namespace hysparse
