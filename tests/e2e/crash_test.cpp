// A training run that is killed, or that the disk fails, at any moment: the last good checkpoint is intact,
// and what is resumed ends in the same bytes as a run that nothing happened to.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include <chrono>
#include <sstream>

#include "base/rng.h"
#include "e2e/support.h"

namespace hysparse {
namespace {

using namespace e2e;

class Crash : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new Folder(fast_place());
    make_small_run(*root_,
                   R"({"steps": 12, "seq_len": 32, "global_batch_size": 2, "lr": 0.003, "warmup_steps": 2,
        "decay_steps": 4, "eval_interval": 3, "eval_tokens": 64, "checkpoint_interval": 2, "log_interval": 1,
        "keep_last": 2})");
    const auto start = std::chrono::steady_clock::now();
    const Result r = run(train("whole"), shim("", 0, path("whole")));
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ASSERT_EQ(r.code, 0) << r.output;
    std::istringstream(read_text(path("report"))) >> calls_;
    ASSERT_GT(calls_, 100);
  }
  static void TearDownTestSuite() { delete root_; }

  static std::string path(const std::string& name) { return *root_ / name; }
  static std::string train(const std::string& out) {
    return "train --threads 1 --config " + path("config.json") + " --data " + path("data") + " --out " +
           path(out);
  }
  // The environment in front of the program under which its `at`-th change below `below` meets `what`.
  static std::string shim(const std::string& what, long at, const std::string& below) {
    return "env LD_PRELOAD=" HYSPARSE_TEST_FAULTS " FAULT_BELOW=" + below + " FAULT_DO=" + what +
           " FAULT_AT=" + std::to_string(at) + " FAULT_REPORT=" + path("report") + " ";
  }
  // Goes on with what is left in `out`, or begins where nothing was kept, and holds the end to the whole
  // run's.
  static void finish(const std::string& out, const std::string& when) {
    Result r = run(train(out) + " --resume");
    if (r.code == 2 && r.output.find("no training run to resume") != std::string::npos) r = run(train(out));
    ASSERT_EQ(r.code, 0) << when << "\n" << r.output;
    for (const char* file : {"checkpoints/step-00000012/model.safetensors", "model/model.safetensors",
                             "checkpoints/step-00000012/optimizer.safetensors", "model/config.json"})
      ASSERT_TRUE(read_text(path(out) + "/" + file) == read_text(path("whole") + "/" + file))
          << when << ": " << file;
    // Nothing half-written stays behind.
    for (const auto& e : fs::recursive_directory_iterator(path(out)))
      EXPECT_EQ(e.path().string().find(".tmp-"), std::string::npos) << when << ": " << e.path();
    fs::remove_all(path(out));
  }
  // Killed at its n-th change, then finished.
  static void kill_at(long n) {
    const std::string when = "killed at change " + std::to_string(n);
    const Result r = run(train("killed"), shim("kill", n, path("killed")));
    ASSERT_EQ(r.code, 128 + SIGKILL) << when << "\n" << r.output;
    finish("killed", when);
  }
  // From its n-th change on nothing works any more: an error that says so, and all is well when the disk is.
  static void fail_at(const std::string& what, long n, const std::string& message) {
    const std::string when = what + " from change " + std::to_string(n);
    const Result r = run(train("failed"), shim(what, n, path("failed")));
    // A failure that only concerns an old checkpoint's removal, or none of the calls left, need not end the
    // run.
    EXPECT_TRUE(r.code == 1 || r.code == 0) << when << "\n" << r.output;
    if (r.code == 1) {
      EXPECT_NE(r.output.find(message), std::string::npos) << when << "\n" << r.output;
      EXPECT_NE(r.output.find(path("failed")), std::string::npos) << when << "\n" << r.output;
    }
    finish("failed", when);
  }
  static void kill_after(double seconds, bool resume) {
    const std::string command =
        "exec " HYSPARSE_BINARY " " + train("timed") + (resume ? " --resume" : "") + " >/dev/null 2>&1";
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    usleep(static_cast<useconds_t>(seconds * 1e6));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  // `kills` in a row on one run, each at a random moment of what is left of it.
  static void kill_at_random_moments(int kills, uint64_t seed) {
    Rng rng(seed);
    for (int i = 0; i < kills; ++i) {
      const bool begun = fs::exists(path("timed") + "/log.jsonl");
      kill_after(rng.uniform() * seconds_, begun);
    }
    finish("timed", "killed " + std::to_string(kills) + " times");
  }
  struct Failure {
    const char *what, *message;
  };
  static constexpr Failure kFailures[] = {{"full", "No space left on device"},
                                          {"readonly", "Read-only file system"},
                                          {"denied", "Permission denied"},
                                          {"bad", "Input/output error"}};

  static Folder* root_;
  static long calls_;
  static double seconds_;
};
Folder* Crash::root_ = nullptr;
long Crash::calls_ = 0;
double Crash::seconds_ = 0;

// Power-cut order: nothing gets its final name before its bytes are on disk.
TEST_F(Crash, DataIsSyncedBeforeItIsRenamed) {
  const Result r = run(train("synced"), shim("", 0, path("synced")));
  ASSERT_EQ(r.code, 0) << r.output;
  long calls = 0;
  std::istringstream report(read_text(path("report")));
  report >> calls >> std::ws;
  EXPECT_GT(calls, 100);
  std::string unsynced;
  std::getline(report, unsynced);
  EXPECT_EQ(unsynced, "");
  fs::remove_all(path("synced"));
}

TEST_F(Crash, KilledInsideWritesItResumesToTheSameBytes) {
  Rng rng(11);
  for (int i = 0; i < 5; ++i) kill_at(1 + static_cast<long>(rng.below(static_cast<uint64_t>(calls_))));
}

TEST_F(Crash, KilledAtRandomMomentsItResumesToTheSameBytes) {
  kill_at_random_moments(3, 12);
}

TEST_F(Crash, AFailingDiskIsAnErrorThatKeepsTheLastCheckpoint) {
  Rng rng(13);
  for (const auto& [what, message] : kFailures)
    fail_at(what, 20 + static_cast<long>(rng.below(static_cast<uint64_t>(calls_ - 20))), message);
}

// What the kernel itself says, for any user: no file may grow beyond a limit that the weights pass.
TEST_F(Crash, AFileSizeLimitIsAnErrorThatKeepsTheLastCheckpoint) {
  const Result r = run(train("limited"), "/bin/sh -c 'ulimit -f 40; exec \"$0\" \"$@\"' ");
  EXPECT_EQ(r.code, 1) << r.output;
  EXPECT_NE(r.output.find("File too large"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("safetensors"), std::string::npos) << r.output;
  finish("limited", "file size limit");
}

// Prepared data is mapped while it is read; whoever cuts it short must not see a bare signal.
TEST_F(Crash, DataCutShortUnderARunIsAnError) {
  fs::copy(path("data"), path("cut"));
  const std::string command = "train --threads 1 --config " + path("config.json") + " --data " + path("cut") +
                              " --out " + path("cut-run") +
                              " --set train.steps=100000 --set train.eval_interval=0" +
                              " --set train.checkpoint_interval=0";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int log = open(path("cut.log").c_str(), O_CREAT | O_WRONLY, 0600);
    dup2(log, 1);
    dup2(log, 2);
    execl("/bin/sh", "sh", "-c", ("exec " HYSPARSE_BINARY " " + command).c_str(), nullptr);
    _exit(127);
  }
  const auto log_has = [&](const char* what) {
    return read_text(path("cut-run") + "/log.jsonl").find(what) != std::string::npos;
  };
  for (int i = 0; i < 600 && !log_has("\"kind\":\"train\""); ++i) usleep(50'000);
  ASSERT_TRUE(log_has("\"kind\":\"train\"")) << read_text(path("cut.log"));
  fs::resize_file(path("cut") + "/train.tokens", 0);
  int status = 0;
  for (int i = 0; i < 600 && waitpid(child, &status, WNOHANG) == 0; ++i) usleep(50'000);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read_text(path("cut.log")).find("cut short"), std::string::npos) << read_text(path("cut.log"));
}

class FullCrash : public Crash {};

TEST_F(FullCrash, TwentyKillsAtRandomMoments) {
  kill_at_random_moments(20, 21);
}

TEST_F(FullCrash, KilledAtEveryNinthChange) {
  for (long n = 1; n <= calls_; n += 9) kill_at(n);
}

TEST_F(FullCrash, AFailingDiskFromManyMoments) {
  for (const auto& [what, message] : kFailures)
    for (long n = 1; n <= calls_; n += calls_ / 20) fail_at(what, n, message);
}

}  // namespace
}  // namespace hysparse
