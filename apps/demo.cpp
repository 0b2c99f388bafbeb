// hysparse demo: from the shipped text to a model that speaks, in minutes, and what its cache saves.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "common.h"
#include "demo_report.h"
#include "io/files.h"
#include "model/plan.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train_progress.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Flags {
  std::string config = "configs/demo.json", text = "data", out = "out/demo";
  std::vector<std::string> prompts = {"It is a truth universally acknowledged, that", "子曰："};
  std::vector<std::string> sets;
  double holdout = 0.03;
  int threads = 0;
  bool compare = false;
};

double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// The demo is made in a folder beside --out and takes its place when it is whole: a second demo replaces the
// first, one that fails or is interrupted changes nothing.
class Stage {
 public:
  explicit Stage(const fs::path& out) : out_(out.has_filename() ? out : out.parent_path()) {
    if (file_exists(out_) &&
        !(fs::is_directory(out_) && (fs::is_empty(out_) || file_exists(out_ / "demo.json"))))
      throw input_error(out_.string(), "exists and is not an earlier demo, so it is not replaced",
                        "choose another --out");
    std::error_code error;
    const fs::path parent = fs::absolute(out_).parent_path();
    fs::create_directories(parent, error);
    if (error) throw io_error(parent, "create the folder", error.value());
    const std::string prefix = "." + out_.filename().string() + ".new-";
    for (const auto& e : fs::directory_iterator(parent)) {  // of demos that were killed
      const std::string name = e.path().filename().string();
      if (name.rfind(prefix, 0) != 0) continue;
      const int pid = std::atoi(name.c_str() + prefix.size());
      if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) fs::remove_all(e.path(), error);
    }
    path_ = parent / (prefix + std::to_string(getpid()));
    fs::create_directories(path_, error);
    if (error) throw io_error(path_, "create the folder", error.value());
  }
  ~Stage() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  const fs::path& path() const { return path_; }
  void publish() {
    if (!file_exists(out_)) {
      fs::rename(path_, out_);
      path_.clear();
      return;
    }
    // Both at once where the file system can; what was there is then at path_ and goes with it.
    if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, out_.c_str(), RENAME_EXCHANGE) == 0) return;
    const fs::path aside = path_.string() + ".old";
    fs::rename(out_, aside);
    fs::rename(path_, out_);
    path_ = aside;
  }

 private:
  fs::path out_, path_;
};

std::vector<fs::path> text_files(const fs::path& folder) {
  if (!fs::is_directory(folder))
    throw expected_error(folder.string(), "a folder of .txt files", "none",
                         "run from the repository's root, or give --data-dir");
  std::vector<fs::path> files;
  for (const auto& e : fs::recursive_directory_iterator(folder))
    if (e.path().extension() == ".txt" || e.path().extension() == ".jsonl") files.push_back(e.path());
  if (files.empty()) throw expected_error(folder.string(), ".txt or .jsonl files", "none");
  std::sort(files.begin(), files.end());
  return files;
}

void say(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

class Demo {
 public:
  explicit Demo(const Flags& flags)
      : flags_(flags),
        files_(text_files(flags.text)),
        config_(load_run_config(flags.config, flags.sets)),
        machine_([&] {
          DeviceFlags device;
          device.threads = flags.threads;
          device.dtype = std::string(enum_name(config_.train.dtype));
          return device;
        }()),
        stage_(flags.out) {}

  void run() {
    const Clock::time_point start = Clock::now();
    report_.config = config_;
    report_.out = fs::path(flags_.out).lexically_normal().string();
    report_.threads = machine_.runtime().pool.threads();
    report_.kernels = machine_.runtime().ops.name();
    prepare();
    train_model(AttentionKind::hysparse, stage_.path(), report_.out);
    speak();
    if (flags_.compare) train_model(AttentionKind::full, stage_.path() / "full", report_.out + "/full");
    measure();
    suggest();
    report_.total_seconds = seconds_since(start);
    write_file_atomic(stage_.path() / "demo.json", demo_json(report_));
    stage_.publish();
    conclude();
  }

 private:
  void prepare() {
    Runtime& rt = machine_.runtime();
    for (const fs::path& f : files_) {
      report_.files.push_back(f.string());
      report_.text_bytes += static_cast<int64_t>(fs::file_size(f));
    }
    Clock::time_point t = Clock::now();
    train_tokenizer(files_, {.vocab_size = config_.model.vocab_size}, stage_.path() / "tokenizer", rt.pool,
                    rt.log);
    report_.vocab_size = Tokenizer::load(stage_.path() / "tokenizer").vocab_size();
    report_.tokenizer_seconds = seconds_since(t);
    say(fmt::format("tokenizer: {} ids from {:.1f} MB of text in {} files ({:.1f} s)", report_.vocab_size,
                    static_cast<double>(report_.text_bytes) / 1e6, files_.size(), report_.tokenizer_seconds));
    t = Clock::now();
    report_.data = prepare_data(stage_.path() / "tokenizer", files_, stage_.path() / "data",
                                {.holdout = flags_.holdout}, rt.pool, rt.log);
    report_.prepare_seconds = seconds_since(t);
    say(fmt::format("data: {} training tokens, {} held out ({:.1f} s)",
                    with_commas(report_.data.train.tokens), with_commas(report_.data.holdout.tokens),
                    report_.prepare_seconds));
  }

  void train_model(AttentionKind kind, const fs::path& out, const std::string& shown_as) {
    TrainRequest request;
    request.config = config_;
    if (config_.model.kind() != kind) request.config.model = twin(config_.model, kind);
    request.data = stage_.path() / "data";
    request.out = out;
    request.stop = &interrupt_flag();
    ProgressPrinter printer(stderr_is_terminal(), config_.train.log_interval);
    request.progress = [&](const TrainProgress& p) { printer(p); };
    const std::string name(enum_name(kind));
    say(fmt::format("training the {} model: {} layers, {} steps of {} tokens, {} threads, {}", name,
                    config_.model.num_hidden_layers, config_.train.steps,
                    with_commas(config_.train.tokens_per_step()), report_.threads, report_.kernels));
    const TrainResult result = train(machine_.runtime(), request);
    printer.finish();
    report_.train_seconds += result.seconds;
    report_.models.push_back({name, shown_as + "/model", result});
    say(fmt::format("{} model: {:.2f} M parameters, {} tokens in {}", name,
                    static_cast<double>(result.parameters) / 1e6, with_commas(result.tokens),
                    clock_text(result.seconds)));
  }

  // The trained model, loaded again from what a user will load.
  void speak() {
    const RunConfig saved = load_run_config(stage_.path() / "model");
    const LayerPlan plan = build_layer_plan(saved.model);
    Weights weights(saved.model, plan, {machine_.compute(), false});
    load_master_weights(stage_.path() / "model", weights);
    weights.pack(machine_.runtime());
    Model model(saved.model, weights);
    const Tokenizer tokenizer = Tokenizer::load(stage_.path() / "model");
    for (const std::string& prompt : flags_.prompts) {
      report_.samples.push_back(
          {prompt, sample_text(machine_.runtime(), model, tokenizer, prompt, config_.train.sample_tokens)});
      std::printf("\n%s%s\n", prompt.c_str(), report_.samples.back().text.c_str());
    }
    std::fflush(stdout);
  }

  void measure() {
    const std::vector<int64_t> contexts = {1024, 4096, 32768};
    report_.kv = measure_kv(twin(config_.model, AttentionKind::hysparse), machine_.compute(), contexts);
    report_.kv_full = measure_kv(twin(config_.model, AttentionKind::full), machine_.compute(), contexts);
  }

  void suggest() {
    const std::string model = report_.models[0].model;
    report_.commands = {
        fmt::format("build/bin/hysparse generate --model {} --prompt \"Call me\"", model),
        fmt::format("build/bin/hysparse generate --model {} --interactive", model),
        fmt::format(
            "build/bin/hysparse perplexity --model {} --input data/en/carroll-alice-in-wonderland.txt",
            model),
        fmt::format("build/bin/hysparse inspect {}", model),
        fmt::format(
            "build/bin/hysparse train --config {} --data {}/data --out out/next --set train.steps=2000",
            flags_.config, report_.out)};
  }

  void conclude() const {
    std::printf("\nKV cache of this model, bytes of real cache objects (%s):\n%s\n",
                std::string(enum_name(config_.train.dtype)).c_str(), kv_table(report_).c_str());
    std::printf("%s\n", curve_text(report_).c_str());
    std::printf(
        "everything is in %s: model/ (takes part in every command), data/, tokenizer/, log.jsonl, "
        "tensorboard/, demo.json\n",
        report_.out.c_str());
    std::printf("took %s. Try next:\n", clock_text(report_.total_seconds).c_str());
    for (const std::string& c : report_.commands) std::printf("  %s\n", c.c_str());
  }

  const Flags& flags_;
  const std::vector<fs::path> files_;
  const RunConfig config_;
  CommandMachine machine_;
  Stage stage_;
  DemoReport report_;
};

void run(const Flags& flags) {
  try {
    Demo(flags).run();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted) throw;
    throw Error(ErrorKind::interrupted, fmt::format("demo interrupted; {} is as it was before", flags.out));
  }
}

}  // namespace

void add_demo(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *app.add_subcommand(
      "demo", "train a small model on the shipped text, speak, show what its cache saves");
  c.add_option("--out", flags->out,
               "folder of the demo; an earlier demo there is replaced when the new one is done")
      ->capture_default_str();
  c.add_option("--data-dir", flags->text, "folder of .txt (one document a file) or .jsonl files")
      ->capture_default_str();
  c.add_option("--config", flags->config, "run file of the model and its training")->capture_default_str();
  c.add_option("--prompt", flags->prompts, "texts to continue at the end")->capture_default_str();
  c.add_option("--holdout", flags->holdout, "share of the text that is held out")
      ->check(CLI::Range(0.001, 0.5))
      ->capture_default_str();
  c.add_option("--threads", flags->threads, "worker threads; 0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.add_option("--set", flags->sets, "key=value over the run file; may be given again and again");
  c.add_flag("--compare", flags->compare, "train the full-attention twin too and show both curves");
  c.footer("Example: hysparse demo --compare --out out/demo");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
