#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hysparse {
namespace {

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
  // Tasks [next, end) that are left of a worker's run; parallel_for has one run, the first, for all.
  struct alignas(64) Run {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
    Memory then;  // what this worker reads first in the next call
  };
  std::vector<Run> runs;
  int runs_in_use = 1;
  std::atomic<uint64_t> generation{0};
  std::atomic<int> busy{0};
  std::atomic<bool> stop{false};
  std::mutex error_mutex;
  std::exception_ptr error;

  void work(int worker) {
    const Enter here(this, worker);
    for (int n = 0; n < runs_in_use; ++n) {
      Run& run = runs[static_cast<size_t>((worker + n) % runs_in_use)];
      for (int64_t i; (i = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;) {
        try {
          (*fn)(i, worker);
        } catch (...) {
          std::lock_guard lock(error_mutex);
          if (!error) error = std::current_exception();
          for (Run& r : runs) r.next.store(r.end, std::memory_order_relaxed);
        }
      }
    }
  }
  void cut(int64_t tasks, bool in_runs, std::span<const Memory> then) {
    for (size_t r = 0; r < runs.size(); ++r) runs[r].then = r < then.size() ? then[r] : Memory{};
    runs_in_use = in_runs ? count : 1;
    for (int64_t r = 0; r < runs_in_use; ++r) {
      runs[size_t(r)].next.store(tasks * r / runs_in_use, std::memory_order_relaxed);
      runs[size_t(r)].end = tasks * (r + 1) / runs_in_use;
    }
  }

  // A page at a time, until there is something better to do.
  template <class Stop>
  static void fetch(const Memory& memory, const Stop& stop) {
    constexpr int64_t kLine = 64, kPage = 4096;
    const char* p = static_cast<const char*>(memory.data);
    for (int64_t at = 0; at < memory.bytes && !stop(); at += kPage)
      for (int64_t i = at; i < std::min(memory.bytes, at + kPage); i += kLine)
        __builtin_prefetch(p + i, 0, 3);
  }

  void loop(int worker) {
    uint64_t seen = 0;
    while (true) {
      start.wait(may_spin, [&] { return stop.load() || generation.load() != seen; });
      if (stop.load()) return;
      seen = generation.load();
      work(worker);
      const Memory then = runs[size_t(worker)].then;
      if (busy.fetch_sub(1) == 1) done.wake();
      fetch(then, [&] { return generation.load(std::memory_order_relaxed) != seen; });
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
  impl_->runs = std::vector<Impl::Run>(static_cast<size_t>(impl_->count));
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
  run(count, false, fn, {});
}

void ThreadPool::parallel_runs(int64_t count, const std::function<void(int64_t, int)>& fn,
                               std::span<const Memory> next) {
  run(count, true, fn, next);
}

void ThreadPool::run(int64_t count, bool in_runs, const std::function<void(int64_t, int)>& fn,
                     std::span<const Memory> next) {
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
  impl_->cut(count, in_runs, next);
  impl_->error = nullptr;
  impl_->busy.store(static_cast<int>(impl_->threads.size()));
  impl_->generation.fetch_add(1);
  impl_->start.wake();
  impl_->work(0);
  Impl::fetch(impl_->runs[0].then, [] { return false; });
  impl_->done.wait(impl_->may_spin, [&] { return impl_->busy.load() == 0; });
  if (impl_->error) std::rethrow_exception(std::exchange(impl_->error, nullptr));
}

}  // namespace hysparse
