// Training a tokenizer: count pieces on all threads, learn merges, write Hugging Face's files.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "io/files.h"
#include "io/json.h"
#include "io/json_value.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunkBytes = size_t(1) << 20;
// Longer pieces (a file of one line of base64) are counted in parts: every merge walks each of its words.
constexpr size_t kMaxWordBytes = 1024;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
using Counts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

void count(Counts& counts, std::string_view piece) {
  while (!piece.empty()) {
    size_t n = std::min(piece.size(), kMaxWordBytes);
    if (n < piece.size())
      while (n > kMaxWordBytes - 4 && (static_cast<uint8_t>(piece[n]) & 0xC0) == 0x80) --n;
    const std::string_view part = piece.substr(0, n);
    if (const auto it = counts.find(part); it != counts.end())
      ++it->second;
    else
      counts.emplace(part, 1);
    piece.remove_prefix(n);
  }
}

void count_text(const PreTokenizer& pre, PreTokenizer::State& state, std::string_view text, Counts& counts) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_valid_end(text, at);
    if (end > at) pre.run(text.substr(at, end - at), state, [&](std::string_view p) { count(counts, p); });
    at = end;
    if (at < text.size()) {
      const size_t bad = utf8_step(text, at).length;
      count(counts, text.substr(at, bad));
      at += bad;
    }
  }
}

std::vector<CountedWord> count_words(const std::vector<fs::path>& inputs, const PreTokenizer& pre,
                                     ThreadPool& pool, const Log& log) {
  std::vector<MappedFile> files;
  std::vector<std::string_view> chunks;
  size_t bytes = 0;
  for (const fs::path& path : inputs) {
    files.emplace_back(path);
    const auto span = files.back().bytes();
    const std::string_view text(reinterpret_cast<const char*>(span.data()), span.size());
    if (text.empty()) hysparse::log(log, LogLevel::warning, path.string() + ": empty, skipped");
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.size() - at <= kChunkBytes ? text.size() : pre.next_cut(text, at + kChunkBytes);
      chunks.push_back(text.substr(at, end - at));
      at = end;
    }
    bytes += text.size();
  }
  if (bytes == 0)
    throw input_error("tokenizer training", fmt::format("the {} input files hold no text", inputs.size()));

  std::vector<Counts> counts(static_cast<size_t>(pool.threads()));
  pool.parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t i, int worker) {
    PreTokenizer::State state(pre);
    count_text(pre, state, chunks[static_cast<size_t>(i)], counts[static_cast<size_t>(worker)]);
  });
  Counts& all = counts[0];
  for (size_t w = 1; w < counts.size(); ++w)
    for (auto& [word, n] : counts[w]) all[word] += n;
  std::vector<CountedWord> words;
  words.reserve(all.size());
  for (auto& [word, n] : all) words.push_back({word, n});
  // The order of a hash table is nobody's business.
  std::sort(words.begin(), words.end(),
            [](const CountedWord& a, const CountedWord& b) { return a.bytes < b.bytes; });
  hysparse::log(log, LogLevel::info,
                fmt::format("{} bytes of text, {} different pieces", bytes, words.size()));
  return words;
}

Json added_token(const std::string& content) {
  Json t;
  t["content"] = content;
  for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) t[key] = false;
  t["special"] = true;
  return t;
}

Json tokenizer_json(const TrainedBpe& bpe, const std::string& eos) {
  Json added = Json::object({{"id", 0}});
  added.update(added_token(eos));
  Json split = Json::object({{"type", "Split"}});
  split["pattern"]["Regex"] = kOwnPattern;
  split["behavior"] = "Isolated";
  split["invert"] = false;
  const auto byte_level = [](bool regex) {
    Json b = Json::object({{"type", "ByteLevel"}});
    b["add_prefix_space"] = false;
    b["trim_offsets"] = true;
    b["use_regex"] = regex;
    return b;
  };

  std::vector<std::string> written;  // the tokens in the byte alphabet
  for (const std::string& t : bpe.tokens) written.push_back(written.empty() ? t : to_alphabet(t));
  Json vocab = Json::object();
  auto& members = static_cast<Json::object_t::Container&>(vocab.get_ref<Json::object_t&>());
  for (size_t id = 0; id < written.size(); ++id) members.emplace_back(written[id], id);
  Json merges = Json::array();
  for (const BpeMerge& m : bpe.merges)
    merges.push_back(written[static_cast<size_t>(m.left)] + " " + written[static_cast<size_t>(m.right)]);

  Json model = Json::object({{"type", "BPE"}});
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"})
    model[key] = nullptr;
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) model[key] = false;
  model["vocab"] = std::move(vocab);
  model["merges"] = std::move(merges);

  Json file = Json::object({{"version", "1.0"}});
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = Json::array({added});
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = Json::object({{"type", "Sequence"}});
  file["pre_tokenizer"]["pretokenizers"] = Json::array({split, byte_level(false)});
  file["post_processor"] = nullptr;
  file["decoder"] = byte_level(true);
  file["model"] = std::move(model);
  return file;
}

Json tokenizer_config(const std::string& eos) {
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["added_tokens_decoder"]["0"] = added_token(eos);
  config["bos_token"] = nullptr;
  config["eos_token"] = eos;
  config["unk_token"] = nullptr;
  config["clean_up_tokenization_spaces"] = false;
  return config;
}

// Says now what would go wrong after minutes of training; makes the folders above `out`.
void check_output(const fs::path& out) {
  if (out.empty())
    throw expected_error("tokenizer training", "the name of a folder to write", "an empty one");
  if (!file_exists(out)) {
    std::error_code error;  // what is wrong with it, the file's error says
    const fs::path target = out.has_filename() ? out : out.parent_path();
    fs::create_directories(fs::absolute(target).parent_path(), error);
    const AtomicFile writable(target);
    return;
  }
  if (!fs::is_directory(out)) throw input_error(out.string(), "is a file, expected a folder to write");
  if (!fs::is_empty(out) && !file_exists(out / "tokenizer.json") && !file_exists(out / "config.json"))
    throw input_error(out.string(), "holds files, but neither a tokenizer nor a model",
                      "choose another folder or empty this one");
  const AtomicFile writable(out / "tokenizer.json");
}

}  // namespace

void train_tokenizer(const std::vector<fs::path>& inputs, const TokenizerTraining& options,
                     const fs::path& out, ThreadPool& pool, const Log& log) {
  if (inputs.empty()) throw input_error("tokenizer training", "no input files");
  if (options.eos.empty() || utf8_valid_end(options.eos, 0) != options.eos.size())
    throw expected_error("eos", "a non-empty UTF-8 text", quote_text(options.eos));
  if (options.eos.size() == 1)
    throw expected_error("eos", "a text of several bytes", quote_text(options.eos),
                         "single bytes are tokens already");
  constexpr int64_t kLeast = 256 + 1, kMost = int64_t(1) << 24;
  if (options.vocab_size < kLeast || options.vocab_size > kMost)
    throw expected_error("vocabulary size",
                         fmt::format("{} (256 bytes + 1 special token) to {}", kLeast, kMost),
                         std::to_string(options.vocab_size));
  check_output(out);
  PreTokenizerRules rules;
  rules.splits.push_back({std::string(kOwnPattern)});
  const PreTokenizer pre(std::move(rules), "the trainer's pre-tokenizer");
  const std::vector<CountedWord> words = count_words(inputs, pre, pool, log);
  const TrainedBpe bpe = train_bpe(words, {options.eos}, static_cast<size_t>(options.vocab_size));
  if (static_cast<int64_t>(bpe.tokens.size()) < options.vocab_size)
    hysparse::log(log, LogLevel::warning,
                  fmt::format("stopped at {} of {} tokens: every piece of the text is one token now",
                              bpe.tokens.size(), options.vocab_size));

  const std::string tokenizer = dump_json(tokenizer_json(bpe, options.eos)),
                    config = dump_json(tokenizer_config(options.eos));
  const auto write = [&](const fs::path& dir) {
    write_file_atomic(dir / "tokenizer_config.json", config);
    write_file_atomic(dir / "tokenizer.json", tokenizer);
  };
  if (file_exists(out)) {
    write(out);  // beside whatever else is there
  } else {
    std::error_code error;  // what is wrong with it, publish_directory() says
    fs::create_directories(fs::absolute(out).parent_path(), error);
    publish_directory(out, write);
  }
  hysparse::log(log, LogLevel::info,
                fmt::format("{}: {} tokens, {} merges", out.string(), bpe.tokens.size(), bpe.merges.size()));
}

}  // namespace hysparse
