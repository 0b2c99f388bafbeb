// Several processes that train together, as a user starts, stops and loses them.
#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "e2e/support.h"

namespace hysparse {
namespace {

using namespace e2e;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

class Ranks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = new Folder(fast_place());
    make_small_run(*root_,
                   R"({"steps": 8, "seq_len": 32, "global_batch_size": 4, "lr": 0.003, "warmup_steps": 2,
        "decay_steps": 4, "eval_interval": 4, "eval_tokens": 64, "checkpoint_interval": 4, "log_interval": 1,
        "keep_last": 2})");
  }
  static void TearDownTestSuite() { delete root_; }
  static std::string path(const std::string& name) { return *root_ / name; }
  static std::string train(const std::string& out, const std::string& more) {
    return "train --threads 1 --config " + path("config.json") + " --data " + path("data") + " --out " +
           path(out) + " " + more;
  }
  static std::vector<double> losses(const std::string& out) {
    std::vector<double> found;
    std::istringstream log(read_text(path(out) + "/log.jsonl"));
    for (std::string line; std::getline(log, line);) {
      const size_t at = line.find("\"loss\":");
      if (line.find("\"kind\":\"train\"") != std::string::npos && at != std::string::npos)
        found.push_back(std::stod(line.substr(at + 7)));
    }
    return found;
  }
  static void expect_close(const std::string& a, const std::string& b) {
    const std::vector<double> x = losses(a), y = losses(b);
    ASSERT_EQ(x.size(), 8u);
    ASSERT_EQ(y.size(), 8u);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(x[i], y[i], 1e-3 * x[i]) << i;
  }

  // A run that goes on until something happens to it.
  class Long {
   public:
    Long(const std::string& out, const std::string& more) : out_(out) {
      const std::string command = train(
          out,
          "--set train.steps=1000000 --set train.checkpoint_interval=20 --set train.eval_interval=0 " + more);
      pid_ = fork();
      EXPECT_GE(pid_, 0);
      if (pid_ == 0) {
        const int log = open(path(out + ".txt").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
        dup2(log, 1);
        dup2(log, 2);
        execl("/bin/sh", "sh", "-c", ("exec " HYSPARSE_BINARY " " + command).c_str(), nullptr);
        _exit(127);
      }
      for (int i = 0; i < 1200 && !fs::exists(path(out) + "/checkpoints/step-00000020"); ++i) usleep(50'000);
      EXPECT_TRUE(fs::exists(path(out) + "/model/config.json")) << said();
    }
    ~Long() {
      if (running_) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }
    std::vector<pid_t> ranks() const {
      std::istringstream in(read_text(fmt_path()));
      std::vector<pid_t> found;
      for (pid_t p; in >> p;) found.push_back(p);
      return found;
    }
    int wait() {
      int status = 0;
      for (int i = 0; i < 800 && running_; ++i) {
        if (waitpid(pid_, &status, WNOHANG) == pid_)
          running_ = false;
        else
          usleep(50'000);
      }
      EXPECT_FALSE(running_) << "still there: " << said();
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    std::string said() const { return read_text(path(out_ + ".txt")); }
    int64_t last_step() const {
      int64_t last = -1;
      for (const auto& e : fs::directory_iterator(path(out_) + "/checkpoints")) {
        const std::string name = e.path().filename();
        if (name.starts_with("step-")) last = std::max<int64_t>(last, std::stoll(name.substr(5)));
      }
      return last;
    }

   private:
    std::string fmt_path() const {
      return "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children";
    }
    std::string out_;
    pid_t pid_ = -1;
    bool running_ = true;
  };
  static bool is_running(pid_t p) {
    const std::string stat = read_text("/proc/" + std::to_string(p) + "/stat");
    return !stat.empty() && stat.find(") Z ") == std::string::npos;
  }
  static void expect_all_gone(const std::vector<pid_t>& ranks) {
    for (const pid_t p : ranks) {
      for (int i = 0; i < 200 && is_running(p); ++i) usleep(50'000);
      EXPECT_FALSE(is_running(p)) << p;
    }
  }
  // The last checkpoint is whole, and another number of ranks goes on from it.
  static void expect_goes_on(const std::string& out, int64_t step, const std::string& ranks) {
    const std::string more = std::to_string(step + 2);
    const Result r = run(train(out, "--resume --ranks " + ranks + " --set train.steps=" + more +
                                        " --set train.checkpoint_interval=0 --set train.eval_interval=0"));
    EXPECT_EQ(r.code, 0) << r.output;
    EXPECT_NE(r.output.find("trained " + more + " steps"), std::string::npos) << r.output;
  }

  static Folder* root_;
};
Folder* Ranks::root_ = nullptr;

TEST_F(Ranks, TwoAreOneToRoundingWithOneLog) {
  expect_ok(train("one", ""));
  const Result two = run(train("two", "--ranks 2"));
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_NE(two.output.find("2 ranks over sockets"), std::string::npos) << two.output;
  for (const char* once : {"trained 8 steps, 1,024 tokens", "held-out: ", "model: "}) {
    const size_t at = two.output.find(once);
    EXPECT_NE(at, std::string::npos) << once << "\n" << two.output;
    EXPECT_EQ(two.output.find(once, at + 1), std::string::npos) << once << " twice\n" << two.output;
  }
  expect_close("one", "two");
  expect_ok(train("four", "--ranks 4"));
  expect_close("one", "four");
  expect_ok("generate --model " + path("four") + "/model --prompt quick --max-new-tokens 4");
}

// As mpirun, srun and torchrun do it: each rank is a process of its own that the environment tells who it is.
TEST_F(Ranks, RanksThatOthersStarted) {
  expect_ok(train("alone", ""));
  const std::string port = "MASTER_PORT=" + std::to_string(20000 + getpid() % 10000) + " ";
  Result results[2];
  std::thread other([&] {
    results[1] =
        run(train("env", "--ranks env"),
            "env " + port + "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 ");
  });
  results[0] =
      run(train("env", "--ranks env"),
          "env " + port + "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 ");
  other.join();
  EXPECT_EQ(results[0].code, 0) << results[0].output;
  EXPECT_EQ(results[1].code, 0) << results[1].output;
  EXPECT_EQ(results[1].output.find("trained"), std::string::npos) << results[1].output;
  expect_close("alone", "env");
}

TEST_F(Ranks, AKilledRankStopsAllWithOneErrorAndAWholeCheckpoint) {
  Long run("killed", "--ranks 3");
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 3u);
  const auto start = Clock::now();
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_LT(seconds_since(start), 30);
  const std::string said = run.said();
  EXPECT_NE(said.find("error: rank 1 of 3: process " + std::to_string(ranks[1]) +
                      " was ended by signal 9 (Killed)"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("--resume continues"), std::string::npos) << said;
  EXPECT_EQ(said.find("error:", said.find("error:") + 1), std::string::npos) << said;
  expect_all_gone(ranks);
  expect_goes_on("killed", run.last_step(), "1");
}

// One that neither ends nor answers is ended with the others.
TEST_F(Ranks, ARankThatHangsDoesNotKeepTheOthers) {
  Long run("hung", "--ranks 3");
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[2], SIGSTOP);
  const auto start = Clock::now();
  kill(ranks[0], SIGKILL);
  EXPECT_EQ(run.wait(), 1);
  EXPECT_LT(seconds_since(start), 30);
  EXPECT_NE(run.said().find("rank 0 of 3"), std::string::npos) << run.said();
  expect_all_gone(ranks);
}

TEST_F(Ranks, CtrlCSavesOnce) {
  Long run("stopped", "--ranks 2");
  const std::vector<pid_t> ranks = run.ranks();
  // A terminal tells the whole group.
  kill(run.pid(), SIGINT);
  for (const pid_t p : ranks) kill(p, SIGINT);
  EXPECT_EQ(run.wait(), 130);
  const std::string said = run.said();
  const int64_t step = run.last_step();
  EXPECT_NE(said.find("interrupted: step " + std::to_string(step) + " of 1000000 is saved"),
            std::string::npos)
      << said;
  EXPECT_EQ(said.find("interrupted", said.find("interrupted") + 11), std::string::npos) << said;
  expect_goes_on("stopped", step, "4");
}

TEST_F(Ranks, ALauncherThatIsKilledLeavesNothingRunning) {
  Long run("orphaned", "--ranks 2");
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  kill(run.pid(), SIGKILL);
  EXPECT_EQ(run.wait(), 128 + SIGKILL);
  expect_all_gone(ranks);
  expect_goes_on("orphaned", run.last_step(), "2");
}

TEST_F(Ranks, WhatIsAskedForWronglyIsRefused) {
  expect_bad(train("x", "--ranks 0"), "--ranks: expected a whole number from 1 to 256, or env");
  expect_bad(train("x", "--ranks two"), "--ranks: expected a whole number");
  expect_bad(train("x", "--ranks 5"), "at least a row for each of 5 ranks, got 4");
  expect_bad(train("x", "--ranks 2 --comm nccl"), "--comm: nccl is for --device cuda");
  expect_bad(train("x", "--ranks 2 --gpus 2"), "--gpus");
  expect_bad(train("x", "--ranks env"), "does not say which rank",
             "env -u RANK -u WORLD_SIZE -u SLURM_PROCID -u OMPI_COMM_WORLD_RANK -u PMI_RANK ");
  expect_bad("bench decode --ranks 2", "several ranks train, and do nothing else together");
  const Result r = run("bench train --threads 1 --ranks 2 --repeat 1 --config " + path("config.json"));
  EXPECT_EQ(r.code, 0) << r.output;
  EXPECT_NE(r.output.find("ranks=2 over=sockets"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace hysparse
