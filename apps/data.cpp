// hysparse data: from text files to the token files that training reads.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "common.h"
#include "train/prepare.h"

namespace hysparse {
namespace {

struct Flags {
  std::string tokenizer, out;
  std::vector<std::string> inputs;
  PrepareOptions options;
  int threads = 0;
};

// One live line on a terminal, nothing elsewhere.
class ProgressLine {
 public:
  void operator()(const PrepareProgress& p) {
    using namespace std::chrono;
    const auto now = steady_clock::now();
    if (!stderr_is_terminal() || now - last_ < milliseconds(200)) return;
    last_ = now;
    const double seconds = duration<double>(now - start_).count();
    std::fprintf(
        stderr, "\r%5.1f %%  %.1f of %.1f MB  %lld tokens  %.1f MB/s ",
        100.0 * static_cast<double>(p.bytes_done) / static_cast<double>(std::max<int64_t>(1, p.bytes_total)),
        static_cast<double>(p.bytes_done) / 1e6, static_cast<double>(p.bytes_total) / 1e6,
        static_cast<long long>(p.tokens), static_cast<double>(p.bytes_done) / 1e6 / seconds);
    open_ = true;
  }
  void finish() {
    if (open_) std::fprintf(stderr, "\r\x1b[K");
    open_ = false;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_{};
  bool open_ = false;
};

void show(const char* name, const PreparedSplit& s) {
  std::printf("%-8s %12lld tokens  %12lld bytes of text  %8lld documents\n", name,
              static_cast<long long>(s.tokens), static_cast<long long>(s.text_bytes),
              static_cast<long long>(s.documents));
}

void prepare(const Flags& f) {
  ThreadPool pool(f.threads);
  ProgressLine line;
  const Log sink = stderr_log();
  const std::atomic<bool>& stop = interrupt_flag();
  const PrepareReport report = prepare_data(
      f.tokenizer, {f.inputs.begin(), f.inputs.end()}, f.out, f.options, pool,
      [&](LogLevel level, const std::string& message) {
        line.finish();
        log(sink, level, message);
      },
      [&](const PrepareProgress& p) {
        line(p);
        if (!stop) return;
        line.finish();
        throw Error(ErrorKind::interrupted,
                    fmt::format("data prepare interrupted; {} is as it was before", f.out));
      });
  line.finish();
  show("train", report.train);
  show("holdout", report.holdout);
  if (f.options.chat)
    std::printf("answers  %12lld tokens are learned, in rows of %lld\n",
                static_cast<long long>(report.answer_tokens), static_cast<long long>(f.options.row_tokens));
}

}  // namespace

void add_data_recall(CLI::App& data);  // data_recall.cpp

void add_data(CLI::App& app) {
  CLI::App& data = *app.add_subcommand("data", "prepare text for training");
  data.require_subcommand(1);
  data.footer("Example: hysparse data prepare --tokenizer out/tokenizer --input book.txt --out out/data");
  auto flags = std::make_shared<Flags>();
  CLI::App& c = *data.add_subcommand("prepare", "encode text files into train.tokens and holdout.tokens");
  c.add_option("--tokenizer", flags->tokenizer, "folder with tokenizer.json, or that file")->required();
  c.add_option("--input", flags->inputs,
               "text files, a document each; *.jsonl files hold one {\"text\": ...} a line")
      ->required()
      ->expected(1, -1);
  c.add_option("--out", flags->out, "folder to write; an earlier one is replaced")->required();
  c.add_option("--holdout", flags->options.holdout,
               "fraction held out: whole documents where that makes 5 or more, else the tail of each")
      ->capture_default_str();
  CLI::Option* chat = c.add_flag("--chat", flags->options.chat,
                                 "conversations for instruction tuning: *.jsonl files hold one "
                                 "{\"messages\": [{\"role\", \"content\"}, ...]} a line; "
                                 "only the assistant's answers are learned");
  c.add_option("--seq-len", flags->options.row_tokens,
               "with --chat: the train.seq_len to pack whole conversations for")
      ->needs(chat);
  c.add_option("--chat-template", flags->options.chat_template,
               "with --chat: a file, plain or chatml, where the tokenizer has none or another is wanted")
      ->needs(chat);
  c.add_option("--threads", flags->threads, "0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.footer(
      "Example: hysparse data prepare --tokenizer out/tokenizer --input data/en/*.txt --out out/data\n       "
      "  hysparse data prepare --chat --seq-len 1024 "
      "--tokenizer out/run/model --input chats.jsonl --out out/chat");
  c.callback([flags] { prepare(*flags); });
  add_data_recall(data);
}

}  // namespace hysparse
