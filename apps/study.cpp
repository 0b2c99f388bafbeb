// hysparse study: a declared comparison of architectures, from one file to one report.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/limits.h"
#include "commands.h"
#include "common.h"
#include "eval/study_pool.h"
#include "eval/study_report.h"
#include "eval/study_run.h"
#include "io/files.h"
#include "io/json.h"
#include "text_model.h"

namespace hysparse {
namespace {

struct Flags {
  std::string file, out, budget, run;
  std::vector<std::string> arms;
  int jobs = 1, gpus = 0;
  bool report = false;
  DeviceFlags device;
  CLI::Option* dtype = nullptr;
};

// "90", "90s", "8m", "1.5h" in seconds; "" is 0.
double seconds_of(const std::string& text) {
  if (text.empty()) return 0;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || factor == 0 || !(value > 0) || value * factor > 1e9)
    throw expected_error("--budget", "a time such as 90s, 8m or 1.5h", quote_text(text));
  return value * factor;
}

std::string own_path() {
  std::string path(4096, '\0');
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size());
  if (n <= 0) throw failure("/proc/self/exe", "could not be read: where this program lies is not known");
  path.resize(static_cast<size_t>(n));
  return path;
}

void set_dtype(StudyPlan& plan, const std::string& dtype) {
  TrainDType t = TrainDType::f32;
  bool known = false;
  for (const auto& [value, name] : EnumNames<TrainDType>::list())
    if (name == dtype) t = value, known = true;
  if (!known) throw expected_error("--dtype", "f32, bf16 or f64", quote_text(dtype));
  for (auto& of_size : plan.configs)
    for (auto& of_arm : of_size)
      for (RunConfig& c : of_arm) c.train.dtype = t;
}

StudyRun find_run(const StudyPlan& plan, const std::string& id) {
  std::vector<std::string> ids;
  for (const StudyRun& r : plan.search_runs()) {
    if (r.id == id) return r;
    ids.push_back(r.id);
  }
  for (size_t s = 0; s < plan.sizes.size(); ++s)
    for (size_t a = 0; a < plan.arms.size(); ++a)
      for (const double lr : plan.learning_rates)
        for (const int64_t seed : plan.seeds) {
          const StudyRun r = plan.make_run(s, a, lr, seed, false);
          if (r.id == id) return r;
          ids.push_back(r.id);
        }
  const std::string near = nearest_name(id, ids);
  throw input_error("--run", "the study has no run " + quote_text(id),
                    near.empty() ? "" : "did you mean " + near + "?");
}

// What the runs of an --out belong to: its folder must not hold anything else.
void check_folder(const std::filesystem::path& out) {
  if (!file_exists(out)) return;
  if (!std::filesystem::is_directory(out))
    throw input_error(out.string(), "is a file, expected a folder for the study");
  if (!file_exists(out / "runs") && !file_exists(out / "data") && !std::filesystem::is_empty(out))
    throw input_error(out.string(), "holds something else than a study", "name a folder of its own");
}

void run_one(const Flags& f, const StudyPlan& plan) {
  const StudyRun run = find_run(plan, f.run);
  DeviceFlags device = f.device;
  device.dtype = std::string(enum_name(plan.configs[run.size][run.arm][0].train.dtype));
  CommandMachine machine(device);
  Runtime& rt = machine.runtime();
  rt.log = warnings_only(rt.log);
  rt.batch_invariant = false;
  write_study_data(plan, f.out, rt.pool);
  const StudyResult r = run_study_run(rt, plan, run, f.out, &interrupt_flag());
  for (size_t e = 0; e < plan.evaluations.size(); ++e)
    std::printf("%s: %s %.4f\n", run.id.c_str(), plan.evaluations[e].name.c_str(), r.scores[e].accuracy);
}

void write_report(const Flags& f, const StudyPlan& plan, const StudySummary& s) {
  const std::filesystem::path out = f.out;
  write_file_atomic(out / "report.json", study_json(plan, s));
  write_file_atomic(out / "report.md", study_markdown(plan, s));
  write_file_atomic(out / "report.html", study_html(plan, s));
  for (const StudyClaimResult& c : s.claims)
    std::printf("%-14s %s\n", std::string(name_of(c.verdict)).c_str(), c.claim.c_str());
  std::printf("report: %s, .html, .json\n", (out / "report.md").c_str());
}

StudyPoolOutcome run_all(const Flags& f, const StudyPlan& plan) {
  StudyPoolOptions o;
  o.budget_seconds = seconds_of(f.budget);
  const std::atomic<bool>& stop = interrupt_flag();
  const auto start = std::chrono::steady_clock::now();
  {
    ThreadPool pool(f.device.threads);
    write_study_data(plan, f.out, pool);
  }
  if (o.budget_seconds > 0) {
    o.budget_seconds -= std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    o.budget_seconds = std::max(o.budget_seconds, 0.001);
  }
  const int threads = f.device.threads > 0        ? f.device.threads
                      : f.device.device == "cuda" ? 1
                                                  : std::max(1, available_cpus() / f.jobs);
  o.command = {own_path(),      "study",     f.file,
               "--out",         f.out,       "--device",
               f.device.device, "--threads", std::to_string(threads)};
  if (f.device.deterministic) o.command.push_back("--deterministic");
  if (f.dtype->count() > 0) o.command.insert(o.command.end(), {"--dtype", f.device.dtype});
  o.command.push_back("--run");
  o.arms = f.arms;
  o.jobs = f.jobs;
  o.gpus = f.gpus;
  o.stop = &stop;
  o.say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  return run_study_pool(plan, f.out, o);
}

void run(const Flags& flags) {
  Flags f = flags;
  if (f.out.empty()) throw expected_error("--out", "the name of a folder", "an empty one");
  if (f.gpus > 0) f.device.device = "cuda";
  StudyPlan plan = load_study(f.file);
  if (f.dtype->count() > 0) set_dtype(plan, f.device.dtype);
  if (!f.run.empty()) return run_one(f, plan);
  check_folder(f.out);
  for (const std::string& arm : f.arms)
    if (std::none_of(plan.arms.begin(), plan.arms.end(), [&](const StudyArm& a) { return a.name == arm; }))
      throw input_error("--arms", fmt::format("the study has no arm {}", quote_text(arm)));
  seconds_of(f.budget);
  if (f.report && !file_exists(std::filesystem::path(f.out) / "runs"))
    throw input_error(f.out, "holds no study to report on", "leave --report out to make its runs");
  StudyPoolOutcome outcome;
  if (!f.report) outcome = run_all(f, plan);
  const StudySummary summary = summarise_study(plan, f.out);
  write_report(f, plan, summary);
  const int64_t left = summary.runs_wanted - summary.runs_done;
  if (left > 0)
    std::fprintf(
        stderr, "%s\n",
        fmt::format("{} of {} runs are left{}; the same command goes on where this one stopped", left,
                    summary.runs_wanted, summary.left.empty() ? "" : ", next " + summary.left[0].id)
            .c_str());
  if (!outcome.errors.empty())
    throw failure("study",
                  fmt::format("{} runs failed, the first: {}", outcome.errors.size(), outcome.errors[0]),
                  "runs/*/log.txt have all of what they said; the same command tries again");
  if (outcome.interrupted) throw Error(ErrorKind::interrupted, "interrupted: what was done is saved");
}

}  // namespace

void add_study(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand(
      "study", "compare architectures as a file declares: arms x seeds, trained and measured, one report");
  c.add_option("file", flags->file, "the study (JSON, docs/study-howto.md)")->required();
  c.add_option("--out", flags->out, "folder of the study: runs/, data/, report.md, .html and .json")
      ->required();
  c.add_option("--jobs", flags->jobs, "runs side by side, a process each")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  c.add_option("--gpus", flags->gpus, "spread the runs over so many GPUs; implies --device cuda")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  c.add_option("--budget", flags->budget,
               "stop after so long (90s, 8m, 1.5h): runs under way save, and the same command goes on");
  c.add_option("--arms", flags->arms, "make runs of these arms alone for now (a,b,c); the report is of all")
      ->delimiter(',');
  CLI::Option* report =
      c.add_flag("--report", flags->report, "only write the report of what is done, make no runs");
  c.add_option("--run", flags->run, "make this one run in this process (what --jobs starts)")
      ->excludes(report);
  add_device_flags(c, flags->device);
  flags->dtype = c.get_option("--dtype");
  c.footer("Example: hysparse study examples/study/tiny.json --out out/tiny --jobs 2 --budget 8m");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
