// hysparse tokenizer: train one on text files; turn text into ids and back.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "commands.h"
#include "common.h"
#include "io/files.h"
#include "io/json.h"
#include "text_model.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {
namespace {

struct TrainFlags {
  std::vector<std::string> inputs;
  std::string out;
  TokenizerTraining options;
  int threads = 0;
};

struct CodeFlags {
  std::string tokenizer, input;
  std::string text;  // encode: the text; decode: the ids
  CLI::Option* text_option = nullptr;
  bool special = false, lines = false, start = false;
};

std::string read_stdin() {
  std::string all;
  char buffer[1 << 16];
  for (ssize_t n; (n = read(STDIN_FILENO, buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure("standard input", std::strerror(errno));
    all.append(buffer, static_cast<size_t>(n));
  }
  return all;
}

std::string content(const CodeFlags& f) {
  if (f.text_option->count() > 0) return f.text;
  return f.input.empty() || f.input == "-" ? read_stdin() : read_file(f.input);
}

void print(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout) != 0)
    throw failure("standard output", std::strerror(errno));
}

void train(const TrainFlags& f) {
  if (f.out.empty()) throw expected_error("--out", "the name of a folder", "an empty one");
  ThreadPool pool(f.threads);
  train_tokenizer({f.inputs.begin(), f.inputs.end()}, f.options, f.out, pool, stderr_log());
}

void encode(const CodeFlags& f) {
  const Tokenizer tokenizer = Tokenizer::load(f.tokenizer);
  std::string out = f.lines ? "" : "[";
  bool first = true;
  const auto write = [&](const int32_t* ids, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!f.lines && !first) out += ", ";
      first = false;
      fmt::format_to(std::back_inserter(out), "{}", ids[i]);
      if (f.lines) out += '\n';
    }
    print(out);
    out.clear();
  };
  if (f.start) {
    const std::vector<int32_t> ids = tokenizer.encode_from_start(content(f), f.special);
    write(ids.data(), ids.size());
  } else {
    tokenizer.encode_to(content(f), write, f.special);
  }
  print(f.lines ? out : out + "]\n");
}

void decode(const CodeFlags& f) {
  const Tokenizer tokenizer = Tokenizer::load(f.tokenizer);
  const std::string where = f.text_option->count() > 0 ? "--ids"
                            : f.input.empty()          ? "standard input"
                                                       : f.input;
  print(tokenizer.decode(parse_ids(content(f), where), f.special));
}

void add_train_command(CLI::App& parent) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App& c = *parent.add_subcommand("train", "learn a byte-level BPE tokenizer from text files");
  c.add_option("--input", flags->inputs, "text files")->required()->expected(1, -1);
  c.add_option("--vocab-size", flags->options.vocab_size,
               "tokens: 256 bytes, 1 end-of-text, and a merge each")
      ->capture_default_str();
  c.add_option("--eos", flags->options.eos, "text of the end-of-text token")->capture_default_str();
  c.add_option("--out", flags->out, "folder for tokenizer.json and tokenizer_config.json")->required();
  c.add_option("--threads", flags->threads, "0 = all CPUs this process may use")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.footer(
      "Example: hysparse tokenizer train --input data/en/*.txt data/zh/*.txt --vocab-size 4096 --out "
      "out/tokenizer");
  c.callback([flags] { train(*flags); });
}

void add_code_command(CLI::App& parent, bool encodes) {
  auto flags = std::make_shared<CodeFlags>();
  CLI::App& c =
      *parent.add_subcommand(encodes ? "encode" : "decode",
                             encodes ? "print the ids of a text as a JSON list" : "print the text of ids");
  c.add_option("--tokenizer", flags->tokenizer, "folder with tokenizer.json, or that file")->required();
  flags->text_option =
      c.add_option(encodes ? "--text" : "--ids", flags->text,
                   encodes ? "the text itself" : "ids: \"1 2 3\", \"1,2,3\" or \"[1, 2, 3]\"");
  c.add_option("--input", flags->input, "a file with it; without either: standard input")
      ->excludes(flags->text_option);
  c.add_flag("--special", flags->special,
             encodes ? "texts of special tokens become their ids (else they are plain text)"
                     : "print special tokens too (else they are left out)");
  if (encodes) {
    c.add_flag("--start", flags->start,
               "with what the tokenizer puts before every text: usually nothing, or BOS");
    c.add_flag("--lines", flags->lines, "an id a line instead of a JSON list");
  }
  c.footer(encodes ? "Example: hysparse tokenizer encode --tokenizer out/tokenizer --text \"It is a truth\""
                   : "Example: hysparse tokenizer decode --tokenizer out/tokenizer --ids \"[72, 101, 300]\"");
  c.callback([flags, encodes] { encodes ? encode(*flags) : decode(*flags); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App& c = *app.add_subcommand("tokenizer", "train a tokenizer; encode and decode text");
  c.require_subcommand(1);
  c.footer("Example: hysparse tokenizer train --input book.txt --vocab-size 4096 --out out/tokenizer");
  add_train_command(c);
  add_code_command(c, true);
  add_code_command(c, false);
}

}  // namespace hysparse
