#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "io/files.h"
#include "support.h"
#include "tokenizer/bpe_trainer.h"
#include "tokenizer/tokenizer.h"

namespace hysparse::test {
namespace {

// The definition, counting everything anew for each merge.
TrainedBpe by_definition(const std::vector<CountedWord>& words, const std::vector<std::string>& reserved,
                         size_t vocab) {
  TrainedBpe out = train_bpe({}, reserved, 0);  // reserved tokens and bytes
  std::map<std::string, int32_t> id_of;
  for (size_t i = reserved.size(); i < out.tokens.size(); ++i) id_of[out.tokens[i]] = static_cast<int32_t>(i);
  std::vector<std::vector<int32_t>> split;
  for (const CountedWord& w : words) {
    split.emplace_back();
    for (const char c : w.bytes) split.back().push_back(id_of.at(std::string(1, c)));
  }
  std::vector<std::pair<int32_t, int32_t>> barred;
  while (out.tokens.size() < vocab) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (size_t w = 0; w < split.size(); ++w)
      for (size_t i = 0; i + 1 < split[w].size(); ++i)
        counts[{split[w][i], split[w][i + 1]}] += words[w].count;
    std::pair<int32_t, int32_t> best{-1, -1};
    int64_t most = 0;
    for (const auto& [pair, n] : counts)  // ascending, so the first of equals is the smallest
      if (n > most && std::find(barred.begin(), barred.end(), pair) == barred.end()) best = pair, most = n;
    if (most == 0) break;
    const std::string joined =
        out.tokens[static_cast<size_t>(best.first)] + out.tokens[static_cast<size_t>(best.second)];
    if (std::find(reserved.begin(), reserved.end(), joined) != reserved.end()) {
      barred.push_back(best);
      continue;
    }
    if (id_of.emplace(joined, static_cast<int32_t>(out.tokens.size())).second) out.tokens.push_back(joined);
    const int32_t result = id_of.at(joined);
    const bool again = std::any_of(out.merges.begin(), out.merges.end(), [&](const BpeMerge& m) {
      return m.left == best.first && m.right == best.second;
    });
    if (!again) out.merges.push_back({best.first, best.second, result});
    for (auto& s : split)
      for (size_t i = 0; i + 1 < s.size(); ++i)
        if (s[i] == best.first && s[i + 1] == best.second) {
          s[i] = result;
          s.erase(s.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
  }
  return out;
}

TEST(BpeTrainer, EqualsTheDefinition) {
  Rng rng(4);
  for (int round = 0; round < 60; ++round) {
    std::vector<CountedWord> words;
    const uint64_t letters = 1 + rng.below(4);
    std::map<std::string, bool> seen;
    for (uint64_t n = 1 + rng.below(25); n > 0; --n) {
      std::string w;
      for (uint64_t i = 1 + rng.below(14); i > 0; --i)
        w.push_back(static_cast<char>('a' + rng.below(letters)));
      if (seen.emplace(w, true).second) words.push_back({w, static_cast<int64_t>(1 + rng.below(5))});
    }
    const size_t vocab = 258 + rng.below(60);
    const std::vector<std::string> reserved = {"<e>", "ab"};  // "ab" must not be built out of text
    const TrainedBpe got = train_bpe(words, reserved, vocab), want = by_definition(words, reserved, vocab);
    ASSERT_EQ(got.tokens, want.tokens) << round;
    ASSERT_EQ(got.merges.size(), want.merges.size()) << round;
    for (size_t i = 0; i < got.merges.size(); ++i) {
      ASSERT_EQ(got.merges[i].left, want.merges[i].left) << round << " " << i;
      ASSERT_EQ(got.merges[i].right, want.merges[i].right) << round << " " << i;
      ASSERT_EQ(got.merges[i].result, want.merges[i].result) << round << " " << i;
    }
    EXPECT_EQ(std::count(got.tokens.begin() + 2, got.tokens.end(), "ab"), 0);
  }
}

struct Trained {
  TempDir dir;
  std::string log;
  Tokenizer train(const std::vector<std::filesystem::path>& inputs, int64_t vocab, int threads = 1) {
    ThreadPool pool(threads);
    TokenizerTraining options;
    options.vocab_size = vocab;
    train_tokenizer(inputs, options, dir / "tok", pool,
                    [&](LogLevel, const std::string& m) { log += m + "\n"; });
    return Tokenizer::load(dir / "tok");
  }
};

uint64_t hash_ids(const std::vector<int32_t>& ids) {  // FNV-1a over 32-bit words
  uint64_t h = 0xcbf29ce484222325ull;
  for (const int32_t id : ids) h = (h ^ static_cast<uint32_t>(id)) * 0x100000001b3ull;
  return h;
}

// Trained on the shipped text by both; the figures are what Hugging Face's tokenizers 0.23.3 gives for the
// file that its own BpeTrainer learns (the same merges) and for ours.
TEST(TokenizerTraining, ShippedTextGivesTheMergesAndIdsOfHuggingFace) {
  std::vector<std::filesystem::path> inputs;
  for (const char* dir : {"en", "zh"})
    for (const auto& e : std::filesystem::directory_iterator(shipped_text(dir))) inputs.push_back(e.path());
  Trained t;
  const Tokenizer tokenizer = t.train(inputs, 4096, 2);
  EXPECT_EQ(tokenizer.vocab_size(), 4096);
  EXPECT_EQ(tokenizer.eos_id(), 0);
  struct Expected {
    const char* name;
    size_t ids;
    uint64_t hash;
  };
  for (const Expected& e : {
           Expected{"en/austen-emma.txt", 223699, 0xf6ab08b8457c45d3ull},
           Expected{"en/melville-moby-dick.txt", 362876, 0xd5fa6edd1eacb0f7ull},
           Expected{"zh/luxun-call-to-arms.txt", 75016, 0x9ff7d38c96ea3d6full},
           Expected{"zh/tang-300.txt", 36917, 0xfe750318c3ad57eeull},
       }) {
    const std::string text = read_file(shipped_text(e.name));
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(ids.size(), e.ids) << e.name;
    EXPECT_EQ(hash_ids(ids), e.hash) << e.name;
    EXPECT_EQ(tokenizer.decode(ids), text) << e.name;
  }
}

TEST(TokenizerTraining, ThreadsAndInputOrderChangeNothing) {
  const std::vector<std::filesystem::path> a = {shipped_text("zh/luxun-call-to-arms.txt"),
                                                shipped_text("en/carroll-alice-in-wonderland.txt")};
  Trained one, three;
  one.train(a, 700, 1);
  three.train({a[1], a[0]}, 700, 3);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(read_file(one.dir / "tok" / name), read_file(three.dir / "tok" / name));
}

TEST(TokenizerTraining, StopsEarlyAndSaysSo) {
  Trained t;
  write(t.dir / "in.txt", "low low lower lowest");
  const Tokenizer tokenizer = t.train({t.dir / "in.txt"}, 1000);
  EXPECT_LT(tokenizer.vocab_size(), 300);
  EXPECT_HAS(t.log, fmt::format("stopped at {} of 1000 tokens", tokenizer.vocab_size()));
  EXPECT_EQ(tokenizer.encode("low lowest").size(), 2u);
}

TEST(TokenizerTraining, SizesThatCannotBeAreErrors) {
  Trained t;
  write(t.dir / "in.txt", "low low lower lowest");
  EXPECT_HAS(error_of([&] { t.train({t.dir / "in.txt"}, 256); }),
             "expected 257 (256 bytes + 1 special token) to");
  EXPECT_HAS(error_of([&] { t.train({t.dir / "in.txt"}, -5); }), "got -5");
  EXPECT_FALSE(std::filesystem::exists(t.dir / "tok"));
  EXPECT_EQ(t.train({t.dir / "in.txt"}, 257).encode("low").size(), 3u);  // no merge at all
}

TEST(TokenizerTraining, OddFiles) {
  Trained t;
  write(t.dir / "empty", "");
  EXPECT_HAS(error_of([&] { t.train({t.dir / "empty"}, 300); }), "hold no text");
  EXPECT_HAS(error_of([&] { t.train({}, 300); }), "no input files");
  EXPECT_HAS(error_of([&] { t.train({t.dir / "absent"}, 300); }), "absent");
  EXPECT_HAS(error_of([&] { t.train({t.dir.path()}, 300); }), t.dir.path().string());

  std::string bytes;
  Rng rng(9);
  for (int i = 0; i < 20'000; ++i) bytes.push_back(static_cast<char>(rng.below(256)));
  write(t.dir / "binary", bytes + std::string("\0\0\0", 3));
  write(t.dir / "line", std::string(3 << 20, 'x') + std::string(1 << 20, 'y'));  // one huge word
  const Tokenizer tokenizer = t.train({t.dir / "empty", t.dir / "binary", t.dir / "line"}, 300);
  EXPECT_HAS(t.log, "empty: empty, skipped");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
  EXPECT_LT(tokenizer.encode(std::string(1024, 'x')).size(), 10u);
}

TEST(TokenizerTraining, TheEndOfTextInTheTextStaysText) {
  Trained t;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "eot eot ";
  write(t.dir / "in.txt", text);
  ThreadPool pool(1);
  TokenizerTraining options;
  options.vocab_size = 300;
  options.eos = "eot";
  train_tokenizer({t.dir / "in.txt"}, options, t.dir / "tok", pool, {});
  const Tokenizer tokenizer = Tokenizer::load(t.dir / "tok");
  const std::vector<int32_t> ids = tokenizer.encode("eot eot");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.eos_id()), 0);
  EXPECT_EQ(tokenizer.encode("eot", true), std::vector<int32_t>{tokenizer.eos_id()});
  options.eos = "";
  error_of([&] { train_tokenizer({t.dir / "in.txt"}, options, t.dir / "tok", pool, {}); });
}

TEST(TokenizerTraining, AnExistingFolderKeepsItsOtherFiles) {
  Trained t;
  write(t.dir / "in.txt", "some text");
  write(t.dir / "tok/model.safetensors", "weights");
  // Of nothing that we know: refused, untouched.
  EXPECT_NE(error_of([&] { t.train({t.dir / "in.txt"}, 258); }).find("neither a tokenizer nor a model"),
            std::string::npos);
  write(t.dir / "tok/config.json", "{}");
  t.train({t.dir / "in.txt"}, 258);
  EXPECT_EQ(read_file(t.dir / "tok/model.safetensors"), "weights");
}

}  // namespace
}  // namespace hysparse::test
