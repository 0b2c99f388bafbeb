#include "eval/study_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "base/error.h"
#include "eval/study_report.h"
#include "eval/study_run.h"
#include "io/files.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Job {
  StudyRun run;
  pid_t pid = -1;
  int slot = 0;
  Clock::time_point began;
};

// The last line that is not empty.
std::string last_words(const fs::path& log) {
  const std::string all = file_exists(log) ? read_file(log) : "";
  const size_t end = all.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "it said nothing";
  const size_t begin = all.find_last_of('\n', end);
  return all.substr(begin == std::string::npos ? 0 : begin + 1,
                    end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

std::vector<std::string> environment_with_gpu(int gpu) {
  std::vector<std::string> out;
  for (char** e = environ; *e; ++e)
    if (gpu < 0 || std::strncmp(*e, "CUDA_VISIBLE_DEVICES=", 21) != 0) out.push_back(*e);
  if (gpu >= 0) out.push_back("CUDA_VISIBLE_DEVICES=" + std::to_string(gpu));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& t : texts) out.push_back(t.data());
  out.push_back(nullptr);
  return out;
}

pid_t start(const StudyPoolOptions& options, const StudyRun& run, int slot, const fs::path& log) {
  fs::create_directories(log.parent_path());
  std::vector<std::string> arguments = options.command;
  arguments.push_back(run.id);
  std::vector<std::string> environment = environment_with_gpu(options.gpus > 0 ? slot % options.gpus : -1);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) throw io_error(log, "open the log", errno);
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {   // system calls alone from here
    setpgid(0, 0);  // Ctrl-C reaches the study, which tells its runs
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(fd);
  if (pid < 0) throw failure("study", fmt::format("could not start a process: {}", std::strerror(errno)));
  return pid;
}

class Pool {
 public:
  Pool(const StudyPlan& plan, const fs::path& out, const StudyPoolOptions& options)
      : plan_(plan), out_(out), options_(options) {}
  ~Pool() {
    for (const Job& j : jobs_) kill(j.pid, SIGKILL);
    for (const Job& j : jobs_) waitpid(j.pid, nullptr, 0);
  }

  StudyPoolOutcome operator()() {
    look();
    for (;;) {
      if (options_.stop && *options_.stop) outcome_.interrupted = true;
      if (options_.budget_seconds > 0 && seconds_since(began_) >= options_.budget_seconds)
        outcome_.out_of_time = true;
      const bool stopping = outcome_.interrupted || outcome_.out_of_time;
      if (stopping && !told_) tell();
      if (told_ && seconds_since(*told_) > options_.grace_seconds)
        for (const Job& j : jobs_) kill(j.pid, SIGKILL);
      while (!stopping && std::ssize(jobs_) < options_.jobs && start_next()) {
      }
      if (jobs_.empty()) {
        if (left_.empty() || failed_.size() == left_.size()) outcome_.out_of_time = false;
        return outcome_;
      }
      reap();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  void look() {
    const StudySummary s = summarise_study(plan_, out_);
    left_ = s.left;
    if (!options_.arms.empty())
      std::erase_if(left_, [&](const StudyRun& r) {
        return std::count(options_.arms.begin(), options_.arms.end(), plan_.arms[r.arm].name) == 0;
      });
    done_ = s.runs_done;
    wanted_ = s.runs_wanted;
  }
  bool start_next() {
    for (const StudyRun& run : left_) {
      const auto same = [&](const Job& j) { return j.run.id == run.id; };
      if (failed_.count(run.id) || std::any_of(jobs_.begin(), jobs_.end(), same)) continue;
      std::set<int> taken;
      for (const Job& j : jobs_) taken.insert(j.slot);
      int slot = 0;
      while (taken.count(slot)) ++slot;
      jobs_.push_back({run, start(options_, run, slot, log_of(run)), slot, Clock::now()});
      return true;
    }
    return false;
  }
  void tell() {
    told_ = Clock::now();
    for (const Job& j : jobs_) kill(j.pid, SIGTERM);
  }
  void reap() {
    for (size_t i = 0; i < jobs_.size();) {
      int status = 0;
      if (waitpid(jobs_[i].pid, &status, WNOHANG) != jobs_[i].pid) {
        ++i;
        continue;
      }
      const Job job = jobs_[i];
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
      const bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      const bool saved = told_ && ((WIFEXITED(status) && WEXITSTATUS(status) == 130) || WIFSIGNALED(status));
      if (good) look();
      const auto same = [&](const StudyRun& r) { return r.id == job.run.id; };
      if (good && std::any_of(left_.begin(), left_.end(), same)) {
        failed_.insert(job.run.id);
        outcome_.errors.push_back(job.run.id + ": it ended without a result");
      } else if (good) {
        say(fmt::format("{} of {} runs: {} in {:.1f} s", done_, wanted_, job.run.id,
                        seconds_since(job.began)));
      } else if (!saved) {
        failed_.insert(job.run.id);
        const std::string why = WIFSIGNALED(status) ? fmt::format("ended by signal {} ({})", WTERMSIG(status),
                                                                  strsignal(WTERMSIG(status)))
                                                    : last_words(log_of(job.run));
        outcome_.errors.push_back(job.run.id + ": " + why);
        say("failed: " + outcome_.errors.back());
      }
    }
  }
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }
  fs::path log_of(const StudyRun& run) const { return study_run_folder(out_, run) / "log.txt"; }

  const StudyPlan& plan_;
  const fs::path out_;
  const StudyPoolOptions& options_;
  const Clock::time_point began_ = Clock::now();
  std::optional<Clock::time_point> told_;
  std::vector<StudyRun> left_;
  std::vector<Job> jobs_;
  std::set<std::string> failed_;
  int64_t done_ = 0, wanted_ = 0;
  StudyPoolOutcome outcome_;
};

}  // namespace

StudyPoolOutcome run_study_pool(const StudyPlan& plan, const fs::path& out, const StudyPoolOptions& options) {
  return Pool(plan, out, options)();
}

}  // namespace hysparse
