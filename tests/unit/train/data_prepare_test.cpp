#include <fmt/format.h>

#include <algorithm>

#include "base/rng.h"
#include "data_support.h"
#include "tokenizer/tokenizer.h"
#include "train/prepare.h"

namespace hysparse::test_data {
namespace {

namespace fs = std::filesystem;

// A folder with a small tokenizer in tok/ (512 tokens of English) and room for inputs.
class DataPrepare : public ::testing::Test {
 protected:
  DataPrepare() {
    std::string text;
    for (int i = 0; i < 50; ++i)
      text += "It is a truth universally acknowledged, that a single man in possession of a good fortune\n";
    write(dir / "seed.txt", text);
    ThreadPool pool(1);
    TokenizerTraining options;
    options.vocab_size = 300;
    train_tokenizer({dir / "seed.txt"}, options, dir / "tok", pool, {});
  }

  PrepareReport prepare(const std::vector<fs::path>& inputs, double holdout, int threads = 1,
                        const std::string& out = "out") {
    ThreadPool pool(threads);
    PrepareOptions options;
    options.holdout = holdout;
    return prepare_data(
        dir / "tok", inputs, dir / out, options, pool,
        [&](LogLevel, const std::string& m) { log += m + "\n"; },
        [&](const PrepareProgress& p) { last = p; });
  }
  // The texts of a split's documents.
  std::vector<std::string> texts(const std::string& split, const std::string& out = "out") {
    const TokenData data(dir / out, split);
    const Tokenizer tokenizer = Tokenizer::load(dir / out);  // the copy is enough
    EXPECT_EQ(data.tokenizer_fingerprint(), tokenizer.fingerprint());
    std::vector<std::string> all;
    std::vector<int32_t> ids;
    int64_t bytes = 0;
    for (int64_t i = 0; i < data.tokens(); ++i) {
      if (data.at(i) != data.eos_id()) {
        ids.push_back(data.at(i));
        continue;
      }
      all.push_back(tokenizer.decode(ids));
      EXPECT_EQ(tokenizer.encode(all.back()), ids);  // as encoded in one piece
      bytes += static_cast<int64_t>(all.back().size());
      ids.clear();
    }
    EXPECT_TRUE(ids.empty());  // EOS ends every document
    EXPECT_EQ(bytes, data.bytes_of_text());
    EXPECT_EQ(static_cast<int64_t>(all.size()), data.documents());
    return all;
  }

  TempDir dir;
  std::string log;
  PrepareProgress last{};
};

TEST_F(DataPrepare, AFileIsADocumentAndSoIsALineOfJson) {
  write(dir / "a.txt", "first document\nof two lines\n");
  write(dir / "b.jsonl",
        "{\"text\": \"second\"}\n\n  \n{\"id\": 3, \"text\": \"third "
        "\\u4e2d\\n<|endoftext|>\"}\r\n{\"text\": \"\"}");
  write(dir / "c.bin", std::string("\xFF\0\xC3 fourth", 10));
  write(dir / "d.txt", "");
  const PrepareReport r = prepare({dir / "a.txt", dir / "b.jsonl", dir / "c.bin", dir / "d.txt"}, 0);
  EXPECT_EQ(texts("train"), (std::vector<std::string>{"first document\nof two lines\n", "second",
                                                      "third \xE4\xB8\xAD\n<|endoftext|>",
                                                      std::string("\xFF\0\xC3 fourth", 10)}));
  EXPECT_EQ(r.train.documents, 4);
  EXPECT_EQ(r.empty_documents, 2);
  EXPECT_SAYS(log, "d.txt: empty, skipped");
  EXPECT_FALSE(TokenData::has(dir / "out", "holdout"));
  EXPECT_EQ(r.holdout.tokens, 0);
  EXPECT_EQ(last.bytes_done, last.bytes_total);
  EXPECT_EQ(last.tokens, r.train.tokens);
}

// A document is what a model reads from its beginning: BOS where the tokenizer asks for it, before each one,
// also before a tail that is held out and before one that is encoded in pieces.
TEST_F(DataPrepare, DocumentsBeginWithBosWhereTheTokenizerAsksForIt) {
  write(dir / "tok/tokenizer_config.json",
        R"({"eos_token": "<|endoftext|>", "bos_token": "z", "add_bos_token": true})");
  const Tokenizer tokenizer = Tokenizer::load(dir / "tok");
  ASSERT_EQ(tokenizer.start_ids(), tokenizer.encode("z"));
  std::string longer;
  while (longer.size() < (size_t(3) << 20)) longer += "a man in possession of a good fortune\n";
  write(dir / "a.txt", longer);
  write(dir / "b.jsonl", "{\"text\": \"second one\"}\n{\"text\": \"third\"}\n");
  prepare({dir / "a.txt", dir / "b.jsonl"}, 0.01, 2);
  for (const std::string split : {"train", "holdout"}) {
    const TokenData data(dir / "out", split);
    int64_t starts = 0;
    for (int64_t i = 0; i < data.tokens(); ++i) {
      const bool start = data.at(i) == tokenizer.start_ids()[0];
      starts += start;
      ASSERT_EQ(start, i == 0 || data.at(i - 1) == data.eos_id()) << split << " " << i;
    }
    EXPECT_EQ(starts, data.documents());
  }
  const TokenData data(dir / "out", "train");
  EXPECT_EQ(data.documents(), 3);
}

TEST_F(DataPrepare, FewDocumentsLoseTheirTails) {
  std::string a, b;
  for (int i = 0; i < 1000; ++i) a += fmt::format("line {} of a man\n", i);
  b = std::string(2000, 'x') + "\xE4\xB8\xAD" +
      std::string(30, 'y');  // no line end; the cut falls into a character
  write(dir / "a.txt", a), write(dir / "b.txt", b), write(dir / "c.txt", "tiny");
  const PrepareReport r = prepare({dir / "a.txt", dir / "b.txt", dir / "c.txt"}, 0.0155);
  const std::vector<std::string> train = texts("train"), held = texts("holdout");
  ASSERT_EQ(train.size(), 3u);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(train[0] + held[0], a);
  EXPECT_EQ(train[1] + held[1], b);
  EXPECT_EQ(train[2], "tiny");
  EXPECT_EQ(train[0].back(), '\n');
  EXPECT_NEAR(static_cast<double>(held[0].size()), 0.0155 * static_cast<double>(a.size()), 20);
  EXPECT_EQ(held[1], std::string(30, 'y'));
  EXPECT_EQ(r.train.text_bytes + r.holdout.text_bytes, static_cast<int64_t>(a.size() + b.size() + 4));
  EXPECT_SAYS(read(dir / "out/meta.json"), "tail of each document");
}

TEST_F(DataPrepare, OfManyDocumentsWholeOnesAreHeldOut) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += fmt::format("{{\"text\": \"document {}\"}}\n", i);
  write(dir / "a.jsonl", lines);
  const PrepareReport r = prepare({dir / "a.jsonl"}, 0.05);
  EXPECT_EQ(r.holdout.documents, 20);
  EXPECT_EQ(r.train.documents, 380);
  std::vector<std::string> all = texts("train"), held = texts("holdout");
  EXPECT_EQ(held.front(), "document 19");
  EXPECT_EQ(held.back(), "document 399");
  all.insert(all.end(), held.begin(), held.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), 400u);
  EXPECT_SAYS(read(dir / "out/meta.json"), "whole documents");
}

// Texts over the size of a task are cut where it cannot be seen; threads change nothing.
TEST_F(DataPrepare, LongDocumentsAndThreads) {
  std::string a, b;
  Rng rng(8);
  while (a.size() < 5'000'000)
    a += fmt::format("Paragraph {} of it.{}A", rng.below(1000), rng.below(3) == 0 ? "\n\n" : "\n");
  while (b.size() < 2'500'000) b += "nowhere to cut but a good fortune ";
  write(dir / "a.txt", a), write(dir / "b.txt", b);
  prepare({dir / "a.txt", dir / "b.txt"}, 0.02, 1, "one");
  prepare({dir / "a.txt", dir / "b.txt"}, 0.02, 3, "three");
  for (const char* name : {"train.tokens", "holdout.tokens", "meta.json", "tokenizer.json"})
    EXPECT_EQ(read(dir / "one" / name), read(dir / "three" / name)) << name;
  EXPECT_EQ(texts("train", "one")[0] + texts("holdout", "one")[0], a);
  EXPECT_EQ(last.bytes_done, last.bytes_total);
}

TEST_F(DataPrepare, BadLinesAreNamed) {
  const auto with = [&](const std::string& content) {
    write(dir / "bad.jsonl", content);
    return error_of([&] { prepare({dir / "bad.jsonl"}, 0); });
  };
  EXPECT_SAYS(with("{\"text\": \"a\"}\n{\"text\": \n"), "bad.jsonl:2: not valid JSON");
  EXPECT_SAYS(with("{\"text\": \"a\"}\n\n{\"txt\": \"a\"}\n"), "bad.jsonl:3: no \"text\"");
  EXPECT_SAYS(with("[1]\n"), "bad.jsonl:1: expected an object");
  EXPECT_SAYS(with("{\"text\": 5}\n"), "bad.jsonl:1: text: expected a text, got number");
  EXPECT_SAYS(with("{\"text\": \"\xFF\"}\n"), "bad.jsonl:1");
  EXPECT_SAYS(with("{\"text\": \"a\"} {\"text\": \"b\"}\n"), "bad.jsonl:1");
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST_F(DataPrepare, NothingToTrainOnIsAnErrorAndTheOldDataStays) {
  write(dir / "a.txt", "some text"), write(dir / "e.txt", ""), write(dir / "e.jsonl", "{\"text\": \"\"}\n");
  prepare({dir / "a.txt"}, 0);
  EXPECT_SAYS(error_of([&] { prepare({dir / "e.txt", dir / "e.jsonl"}, 0.02); }), "hold no text");
  EXPECT_EQ(texts("train"), std::vector<std::string>{"some text"});
  EXPECT_SAYS(error_of([&] { prepare({dir / "a.txt", dir / "./a.txt"}, 0); }), "given twice");
  EXPECT_SAYS(error_of([&] { prepare({}, 0); }), "no input files");
  EXPECT_SAYS(error_of([&] { prepare({dir / "absent"}, 0); }), "absent");
  for (const double f : {-0.1, 0.6, std::nan("")})
    EXPECT_SAYS(error_of([&] { prepare({dir / "a.txt"}, f); }), "--holdout: expected a fraction in [0, 0.5]");
  prepare({dir / "a.txt"}, 0.02);
  EXPECT_SAYS(log, "nothing is held out");
}

TEST_F(DataPrepare, ATokenizerWithoutEosIsAnError) {
  write(dir / "a.txt", "some text");
  fs::remove(dir / "tok/tokenizer_config.json");
  EXPECT_SAYS(error_of([&] { prepare({dir / "a.txt"}, 0); }), "names no end-of-text token");
}

TEST_F(DataPrepare, AFolderOfOtherThingsIsNotReplaced) {
  write(dir / "a.txt", "some text");
  write(dir / "out/thesis.doc", "years of work");
  error_of([&] { prepare({dir / "a.txt"}, 0); });
  EXPECT_EQ(read(dir / "out/thesis.doc"), "years of work");
}

}  // namespace
}  // namespace hysparse::test_data
