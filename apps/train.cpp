// hysparse train: from a run file and prepared data to checkpoints and a model directory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "common.h"
#include "io/json_fields.h"
#include "ranks.h"
#include "train/loop.h"
#include "train/run_config.h"
#include "train/run_folder.h"
#include "train_progress.h"

namespace hysparse {
namespace {

struct Flags {
  std::string config, data, out, from;
  bool resume = false;
  std::vector<std::string> sets;
  DeviceFlags device;
  RankFlags ranks;
  CLI::Option* dtype = nullptr;
};

// The keys of the run file with types and defaults, for --help.
template <class T>
std::string key_table(const std::string& prefix) {
  std::string out;
  for (const FieldInfo& f : list_fields<T>()) {
    const std::string value = f.default_value.empty() ? "\"\"" : f.default_value;
    out += fmt::format("  {:<28} {} [{}]\n", fmt::format("{}{}={}", prefix, f.name, value), f.help, f.type);
  }
  return out;
}

// One process's part of the run.
void run_rank(const TrainRequest& base, const RankContext& rank) {
  CommandMachine machine(rank.device);
  const Runtime& m = machine.runtime();
  const std::unique_ptr<Comm> comm = rank.make_comm(m.memory);
  ProgressPrinter printer(stderr_is_terminal(), base.config.train.log_interval);
  const Log sink = stderr_log();
  const auto say = [&](LogLevel level, const std::string& message) {
    printer.finish();
    log(sink, level, message);
  };
  Runtime rt{
      m.pool, m.scratch, m.ops, m.memory, rank.is_root() ? Log(say) : Log(), comm ? *comm : self_comm()};
  rt.batch_invariant = false;
  if (rt.comm.size() > 1)
    log(rt.log, LogLevel::info, fmt::format("{} ranks over {}", rt.comm.size(), rt.comm.name()));
  TrainRequest request = base;
  request.stop = &interrupt_flag();
  request.progress = [&](const TrainProgress& p) { printer(p); };
  request.sample = sample_text;
  const TrainResult result = train(rt, request);
  printer.finish();
  if (!rank.is_root()) return;
  std::fprintf(stderr, "%s\n",
               fmt::format("{} {} steps, {} tokens in {}",
                           result.finished ? "trained" : "stopped by the time limit after", result.steps,
                           with_commas(result.tokens), clock_text(result.seconds))
                   .c_str());
  if (!result.evals.empty())
    std::printf("held-out: %.4f nats/token, %.4f bits/byte\n", result.evals.back().nats_per_token,
                result.evals.back().bits_per_byte);
  std::printf("model: %s\n", (request.out / "model").c_str());
}

void run(const Flags& flags) {
  if (flags.out.empty()) throw expected_error("--out", "the name of a folder", "an empty one");
  TrainRequest request;
  DeviceFlags device = flags.device;
  std::vector<std::string> sets = flags.sets;
  if (flags.dtype->count() > 0)
    sets.push_back("train.dtype=" + device.dtype);  // the flag wins over train.dtype
  request.config = load_run_config(flags.config, sets, stderr_log());
  device.dtype = std::string(enum_name(request.config.train.dtype));
  check_run_folder(flags.out);
  request.data = flags.data;
  request.out = flags.out;
  request.resume = flags.resume;
  request.from = flags.from;
  run_ranks(flags.ranks, device, "checkpoints that were saved are whole: --resume continues",
            [&](const RankContext& rank) { run_rank(request, rank); });
}

}  // namespace

void add_train(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c =
      *app.add_subcommand("train", "train a model on prepared data; continue a run; start a new stage");
  c.add_option("--config", flags->config, "run file (JSON): the model's keys, settings under train and data")
      ->required();
  c.add_option("--data", flags->data, "folder that `hysparse data prepare` wrote")->required();
  c.add_option("--out", flags->out, "folder of the run: log.jsonl, tensorboard/, checkpoints/, model/")
      ->required();
  CLI::Option* resume = c.add_flag("--resume", flags->resume, "continue the run in --out, bit for bit");
  c.add_option("--from", flags->from, "start a new stage from this model directory's weights alone")
      ->excludes(resume);
  c.add_option("--set", flags->sets, "key=value over the run file; may be given again and again");
  add_device_flags(c, flags->device);
  add_rank_flags(c, flags->ranks);
  flags->dtype = c.get_option("--dtype");
  c.footer(
      "Keys of the run file (beside those of config.json), with their defaults:\n" +
      key_table<TrainConfig>("train.") + key_table<DataConfig>("data.") +
      "\nThe progress line shows the mean loss of about the last 20 steps; log.jsonl and TensorBoard hold "
      "each logged "
      "step's own.\nExample: hysparse train --config configs/demo.json --data out/data --out out/run --set "
      "train.lr=1e-3");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
