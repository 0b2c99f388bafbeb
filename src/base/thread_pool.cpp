#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hysparse {
namespace {

// CPUs granted by a quota/period pair, rounded up; 0 = no limit.
int quota_cpus(double quota, double period) {
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>(std::ceil(quota / period))) : 0;
}

std::string own_cgroup(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t a = line.find(':');
    const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
    if (b == std::string::npos) continue;
    const std::string names = line.substr(a + 1, b - a - 1);
    if (controller.empty() ? names.empty()
                           : ("," + names + ",").find("," + controller + ",") != std::string::npos)
      return line.substr(b + 1);
  }
  return {};
}

// The smallest limit on the way from our group to the root of the hierarchy; inside a container the
// path may not exist below the mount, then only the root is read.
template <class Read>
int smallest_up(std::string group, Read read) {
  int best = 0;
  while (true) {
    if (const int n = read(group); n > 0) best = best == 0 ? n : std::min(best, n);
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos || group == "/") return best;
    group.erase(slash);
  }
}

int cgroup_cpus() {
  const int v2 = smallest_up(own_cgroup(""), [](const std::string& group) {
    std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
    std::string quota;
    double period = 0;
    if (!(file >> quota >> period) || quota == "max") return 0;
    return quota_cpus(std::strtod(quota.c_str(), nullptr), period);
  });
  const int v1 = smallest_up(own_cgroup("cpu"), [](const std::string& group) {
    double quota = 0, period = 0;
    std::ifstream("/sys/fs/cgroup/cpu" + group + "/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu" + group + "/cpu.cfs_period_us") >> period;
    return quota_cpus(quota, period);
  });
  return v1 > 0 && v2 > 0 ? std::min(v1, v2) : std::max(v1, v2);
}

// The tasks that this thread is inside of, innermost first.
struct Inside {
  const void* pool;
  int worker;
  const Inside* outer;
};
thread_local const Inside* inside = nullptr;

class Enter {
 public:
  Enter(const void* pool, int worker) : here_{pool, worker, inside} { inside = &here_; }
  ~Enter() { inside = here_.outer; }
  Enter(const Enter&) = delete;
  Enter& operator=(const Enter&) = delete;

 private:
  Inside here_;
};

}  // namespace

int available_cpus() {
  int n = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // The mask of a machine with more CPUs than cpu_set_t holds needs a larger buffer.
  for (int size = 1024; size <= (1 << 20); size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    if (ok) n = CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (ok) break;
  }
  if (const int limit = cgroup_cpus(); limit > 0) n = std::min(n, limit);
  return std::max(1, n);
}

// A wait that first spins, since the next parallel region usually comes within microseconds (one layer's
// products follow each other) and a sleeping thread takes longer to wake, then sleeps. Whoever makes
// `ready` true calls wake() afterwards.
class SpinThenSleep {
 public:
  template <class Ready>
  void wait(bool may_spin, const Ready& ready) {
    using Clock = std::chrono::steady_clock;
    if (may_spin) {
      const auto until = Clock::now() + std::chrono::microseconds(50);
      do {
        for (int i = 0; i < 32; ++i) {
          if (ready()) return;
          pause();
        }
      } while (Clock::now() < until);
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);  // before ready() is asked: wake() either sees it or made ready() true before
    changed_.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }
  void wake() {
    if (sleepers_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }  // a sleeper between ready() and its sleep
    changed_.notify_all();
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

struct ThreadPool::Impl {
  int count = 1;
  bool may_spin = false;
  std::vector<std::thread> threads;
  std::mutex turn;  // held by the caller whose tasks run
  SpinThenSleep start, done;
  const std::function<void(int64_t, int)>* fn = nullptr;
  int64_t tasks = 0;
  std::atomic<int64_t> next{0};
  std::atomic<uint64_t> generation{0};
  std::atomic<int> busy{0};
  std::atomic<bool> stop{false};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work(int worker) {
    const Enter here(this, worker);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      try {
        (*fn)(i, worker);
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(tasks, std::memory_order_relaxed);
      }
    }
  }

  void loop(int worker) {
    uint64_t seen = 0;
    while (true) {
      start.wait(may_spin, [&] { return stop.load() || generation.load() != seen; });
      if (stop.load()) return;
      seen = generation.load();
      work(worker);
      if (busy.fetch_sub(1) == 1) done.wake();
    }
  }

  void join() {
    stop = true;
    start.wake();
    for (auto& t : threads) t.join();
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>()) {
  const int cpus = available_cpus();
  impl_->count = threads > 0 ? threads : cpus;
  impl_->may_spin = impl_->count <= cpus;  // else a spinning thread would hold a CPU that another one needs
  try {
    for (int w = 1; w < impl_->count; ++w)
      impl_->threads.emplace_back([pool = impl_.get(), w] { pool->loop(w); });
  } catch (const std::system_error& e) {
    impl_->join();
    throw failure("thread pool", fmt::format("could not start {} threads: {}", impl_->count, e.what()),
                  "ask for fewer threads");
  }
}

ThreadPool::~ThreadPool() {
  impl_->join();
}

int ThreadPool::threads() const {
  return impl_->count;
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& fn) {
  if (count <= 0) return;
  for (const Inside* at = inside; at; at = at->outer) {
    if (at->pool != impl_.get()) continue;
    for (int64_t i = 0; i < count; ++i) fn(i, at->worker);  // inside a task: stay on this worker
    return;
  }
  const std::lock_guard turn(impl_->turn);
  if (count == 1 || impl_->count == 1) {
    const Enter here(impl_.get(), 0);
    for (int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
  impl_->fn = &fn;
  impl_->tasks = count;
  impl_->next.store(0, std::memory_order_relaxed);
  impl_->error = nullptr;
  impl_->busy.store(static_cast<int>(impl_->threads.size()));
  impl_->generation.fetch_add(1);
  impl_->start.wake();
  impl_->work(0);
  impl_->done.wait(impl_->may_spin, [&] { return impl_->busy.load() == 0; });
  if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace hysparse
