#include "base/thread_pool.h"
#include "base/sanitizer.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace hysparse {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
      std::atomic<bool> worker_ok{true};
      pool.parallel_for(count, [&](int64_t i, int worker) {
        ++runs[static_cast<size_t>(i)];
        if (worker < 0 || worker >= threads) worker_ok = false;
      });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
      EXPECT_TRUE(worker_ok);
    }
    pool.parallel_for(-5, [](int64_t, int) { FAIL() << "a negative count ran a task"; });
  }
}

// Every worker starts on a run of its own and helps out when that is done.
TEST(ThreadPool, RunsAreSharedOutAndFinishedTogether) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> ran(static_cast<size_t>(count));
      std::atomic<bool> worker_ok{true};
      pool.parallel_runs(count, [&](int64_t i, int worker) {
        ++ran[static_cast<size_t>(i)];
        if (worker < 0 || worker >= threads) worker_ok = false;
      });
      for (const auto& r : ran) ASSERT_EQ(r.load(), 1);
      EXPECT_TRUE(worker_ok);
      std::atomic<int64_t> n{0};
      pool.parallel_for(count, [&](int64_t, int) { ++n; });  // the two kinds may alternate
      EXPECT_EQ(n, count);
    }
  }
  // A worker that is held up leaves the rest of its run to the others.
  ThreadPool pool(2);
  std::atomic<int> done{0};
  pool.parallel_runs(100, [&](int64_t i, int) {
    if (i == 0)
      while (done < 99) std::this_thread::yield();
    ++done;
  });
  EXPECT_EQ(done, 100);
}

TEST(ThreadPool, AnExceptionInARunDropsTheTasksNotYetBegun) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> ran{0};
    EXPECT_THROW(pool.parallel_runs(int64_t(1) << 50,
                                    [&](int64_t, int) {
                                      if (++ran == 10) throw std::runtime_error("stop");
                                    }),
                 std::runtime_error);
    EXPECT_LT(ran, 1000000000);
  }
}

TEST(ThreadPool, WorkersAreNeverSharedByTwoTasksAtOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  std::atomic<int> clashes{0};
  pool.parallel_for(2000, [&](int64_t, int worker) {
    if (busy[static_cast<size_t>(worker)]++ != 0) ++clashes;
    std::this_thread::yield();
    --busy[static_cast<size_t>(worker)];
  });
  EXPECT_EQ(clashes, 0);
}

TEST(ThreadPool, FirstExceptionComesOutAndThePoolGoesOn) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int64_t bad : {0, 1, 499, 999}) {
      try {
        pool.parallel_for(1000, [&](int64_t i, int) {
          if (i == bad) throw std::runtime_error("task " + std::to_string(i));
        });
        FAIL() << "no exception from task " << bad << " on " << threads << " threads";
      } catch (const std::runtime_error& e) {
        EXPECT_EQ(e.what(), "task " + std::to_string(bad));
      }
      std::atomic<int> n{0};
      pool.parallel_for(100, [&](int64_t, int) { ++n; });
      EXPECT_EQ(n, 100);
    }
    EXPECT_THROW(pool.parallel_for(1000, [](int64_t, int) { throw std::logic_error("all"); }),
                 std::logic_error);
  }
}

TEST(ThreadPool, AnExceptionDropsTheTasksNotYetBegun) {
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::atomic<int64_t> ran{0};
    EXPECT_THROW(pool.parallel_for(int64_t(1) << 50,
                                   [&](int64_t, int) {
                                     if (++ran == 10) throw std::runtime_error("stop");
                                   }),
                 std::runtime_error);
    EXPECT_LT(ran, 1000000000);
  }
}

TEST(ThreadPool, ANestedCallStaysOnItsWorker) {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    std::atomic<int> inner{0}, wrong{0};
    pool.parallel_for(50, [&](int64_t, int worker) {
      const auto self = std::this_thread::get_id();
      int64_t expected = 0;
      pool.parallel_for(20, [&](int64_t i, int w) {
        ++inner;
        if (w != worker || std::this_thread::get_id() != self || i != expected++) ++wrong;
      });
    });
    EXPECT_EQ(inner, 1000);
    EXPECT_EQ(wrong, 0);
    EXPECT_THROW(pool.parallel_for(8,
                                   [&](int64_t, int) {
                                     pool.parallel_for(
                                         3, [](int64_t, int) { throw std::runtime_error("inner"); });
                                   }),
                 std::runtime_error);
    // after that, calls from outside run in parallel numbering again
    std::atomic<int> n{0};
    pool.parallel_for(10, [&](int64_t, int) { ++n; });
    EXPECT_EQ(n, 10);
  }
}

// A worker number indexes scratch of the pool that was called: it must be that pool's own.
TEST(ThreadPool, APoolCalledFromAnothersTaskUsesItsOwnWorkers) {
  ThreadPool outer(4), inner(2);
  std::vector<std::atomic<int>> busy(2);
  std::atomic<int> total{0}, wrong{0};
  outer.parallel_for(40, [&](int64_t, int outer_worker) {
    inner.parallel_for(10, [&](int64_t, int w) {
      ++total;
      if (w < 0 || w >= 2) {
        ++wrong;
        return;
      }
      if (busy[static_cast<size_t>(w)]++ != 0) ++wrong;
      std::this_thread::yield();
      --busy[static_cast<size_t>(w)];
    });
    outer.parallel_for(2, [&](int64_t, int w) {
      if (w != outer_worker) ++wrong;
    });
  });
  EXPECT_EQ(total, 400);
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::vector<int64_t> scratch(3);  // plain: two calls at once would race on it
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.parallel_for(9, [&](int64_t i, int w) {
          scratch[static_cast<size_t>(w)] += i;
          total += i;
        });
      }
    });
  for (auto& t : callers) t.join();
  EXPECT_EQ(total, 4 * 200 * 36);
  EXPECT_EQ(scratch[0] + scratch[1] + scratch[2], total);
}

TEST(ThreadPool, ManyShortRounds) {
  ThreadPool pool(4);
  int64_t total = 0;
  for (int round = 0; round < 20000; ++round) {
    std::atomic<int64_t> sum{0};
    const int64_t count = round % 6;
    pool.parallel_for(count, [&](int64_t i, int) { sum += i + 1; });
    ASSERT_EQ(sum, count * (count + 1) / 2);
    total += sum;
  }
  EXPECT_GT(total, 0);
}

// Results must not depend on which worker ran what: each task's slot is written by that task alone.
TEST(ThreadPool, ResultsDoNotDependOnTheThreadCount) {
  const auto work = [](int threads) {
    ThreadPool pool(threads);
    std::vector<double> out(501);
    pool.parallel_for(501, [&](int64_t i, int) {
      double s = 0;
      for (int k = 1; k < 200; ++k) s += 1.0 / (static_cast<double>(i) + k);
      out[static_cast<size_t>(i)] = s;
    });
    return out;
  };
  const auto one = work(1);
  EXPECT_EQ(one, work(2));
  EXPECT_EQ(one, work(5));
}

class Affinity {  // restricts this thread, gives the mask back at the end
 public:
  Affinity() { ok_ = sched_getaffinity(0, sizeof before_, &before_) == 0; }
  ~Affinity() { sched_setaffinity(0, sizeof before_, &before_); }
  std::vector<int> cpus() const {
    std::vector<int> out;
    for (int c = 0; ok_ && c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &before_)) out.push_back(c);
    return out;
  }
  static bool restrict_to(const std::vector<int>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int c : cpus) CPU_SET(c, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0;
  }

 private:
  cpu_set_t before_{};
  bool ok_ = false;
};

TEST(AvailableCpus, FollowsTheAffinityMask) {
  const int all = available_cpus();
  EXPECT_GE(all, 1);
  {
    Affinity mask;
    const auto cpus = mask.cpus();
    ASSERT_FALSE(cpus.empty());
    EXPECT_LE(all, static_cast<int>(cpus.size()));
    ASSERT_TRUE(Affinity::restrict_to({cpus.back()}));
    EXPECT_EQ(available_cpus(), 1);
    EXPECT_EQ(ThreadPool().threads(), 1);
    if (all >= 2) {
      ASSERT_TRUE(Affinity::restrict_to({cpus.front(), cpus.back()}));
      EXPECT_EQ(available_cpus(), 2);
    }
  }
  EXPECT_EQ(available_cpus(), all);
  EXPECT_EQ(ThreadPool(0).threads(), all);
}

#if !defined(HYSPARSE_ASAN) && !defined(HYSPARSE_TSAN)  // sanitizers need more address space than this
// Where the system refuses a thread, the ones already started are joined and an Error says what happened.
TEST(ThreadPool, AThreadThatCannotStartIsAnError) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{size_t(1) << 30, size_t(1) << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    try {
      ThreadPool pool(5000);  // stacks of 8 MiB: far over 1 GiB
      _exit(4);
    } catch (const Error& e) {
      const std::string what = e.what();
      _exit(e.kind() == ErrorKind::failure && what.find("5000 threads") != std::string::npos ? 0 : 5);
    } catch (...) {
      _exit(6);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace hysparse
