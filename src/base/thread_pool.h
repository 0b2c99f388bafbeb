// A fixed set of worker threads and one primitive: run `count` independent tasks.
// Which thread runs a task never changes what the task computes, so results do not depend on the thread
// count as long as the caller cuts its work by shape alone (never by `threads()`).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace hysparse {

// CPUs this process may use: the smallest of hardware, affinity mask and cgroup (v1, v2) CPU quota; >= 1.
int available_cpus();

class ThreadPool {
 public:
  // threads == 0: available_cpus(). The calling thread works too, so 1 starts no thread.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls fn(task, worker) for task in [0, count), worker in [0, threads()). Tasks are handed out in order,
  // one at a time. Returns when all are done; the first exception is rethrown here and the tasks not yet
  // begun are dropped. A call from inside a task of this pool runs serially on that worker; calls from
  // several threads take turns.
  void parallel_for(int64_t count, const std::function<void(int64_t task, int worker)>& fn);

  // The same for tasks that read memory one behind the other (rows of weights): every worker begins with a
  // run of neighbours of its own, in order, and then takes what is left of the others' runs.
  // next: empty, or for every worker what it will read first in the next such call: fetched towards its
  // caches while it waits. A hint; nothing is read.
  struct Memory {
    const void* data = nullptr;
    int64_t bytes = 0;
  };
  void parallel_runs(int64_t count, const std::function<void(int64_t task, int worker)>& fn,
                     std::span<const Memory> next = {});

 private:
  void run(int64_t count, bool in_runs, const std::function<void(int64_t, int)>& fn,
           std::span<const Memory> next);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hysparse
