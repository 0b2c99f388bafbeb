// hysparse data recall: rows of made look-up tasks for training.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "common.h"
#include "eval/recall_data.h"
#include "recall_flags.h"

namespace hysparse {
namespace {

struct Flags {
  RecallFlags task;
  std::string out;
  int64_t rows = 65536, held_out = 256, seed = 1;
  int threads = 0;
};

void run(const Flags& f) {
  const RecallTask task = f.task.task();
  ThreadPool pool(f.threads);
  write_recall_data(f.out, {{task, 1}}, f.rows, f.held_out, static_cast<uint64_t>(f.seed), pool,
                    "data recall");
  std::printf(
      "%s: %lld rows to train on, %lld held out; train with --set train.seq_len=%lld --set vocab_size=%lld\n",
      describe(task).c_str(), static_cast<long long>(f.rows), static_cast<long long>(f.held_out),
      static_cast<long long>(task.length), static_cast<long long>(recall::kVocabulary));
}

}  // namespace

void add_data_recall(CLI::App& data) {
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *data.add_subcommand("recall",
                                     "rows of a made look-up task (MQAR, copy, phonebook, chain, walk, "
                                     "paragraph), of which the answers are learned");
  add_recall_flags(c, flags->task);
  c.add_option("--rows", flags->rows, "rows to train on")
      ->check(CLI::Range(int64_t(1), int64_t(1) << 32))
      ->capture_default_str();
  c.add_option("--held-out-rows", flags->held_out, "rows of the held-out part")
      ->check(CLI::Range(int64_t(1), int64_t(1) << 32))
      ->capture_default_str();
  c.add_option("--seed", flags->seed, "of the rows")->capture_default_str();
  c.add_option("--out", flags->out, "folder to write; an earlier one is replaced")->required();
  c.add_option("--threads", flags->threads, "0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.footer("Example: hysparse data recall --task walk --hops 1,2 --length 64 --out out/walk");
  c.callback([flags] { run(*flags); });
}

}  // namespace hysparse
