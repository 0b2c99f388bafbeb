#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "io/files.h"
#include "small_tokenizer.h"

namespace hysparse::test {
namespace {

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"t", "h"},       {"th", "e"},  {" ", "the"}, {"\xC3", "\xA9"},
    {"\xFF", "\xFF"}, {"\n", "\n"}, {"e", "n"},   {"en", "d"}};

std::vector<int32_t> streamed(const Tokenizer& t, std::string_view text) {
  std::vector<int32_t> out;
  t.encode_to(text, [&](const int32_t* ids, size_t n) { out.insert(out.end(), ids, ids + n); });
  return out;
}

TEST(TokenizerEncode, AnyBytesComeBack) {
  Json split = tokenizer_json(kMerges);
  split["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       Json::array({{{"type", "Digits"}, {"individual_digits", true}},
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}})}};
  Json plain = tokenizer_json(kMerges);
  plain["pre_tokenizer"]["use_regex"] = false;
  static const std::string kParts[] = {"the ",
                                       " the",
                                       "\n\n",
                                       "\xC3\xA9",
                                       "\xC3",
                                       "\xFF",
                                       "\x80",
                                       "\xF0\x9F\x99\x82",
                                       "\xF0\x9F\x99",
                                       "\xED\xA0\x80",
                                       "7",
                                       "<|end|>",
                                       "end",
                                       std::string(1, '\0'),
                                       "\xE4\xB8"};
  for (const Json& file : {tokenizer_json(kMerges), split, plain}) {
    const Tokenizer t = load(file);
    Rng rng(1);
    for (int round = 0; round < 2000; ++round) {
      std::string text;
      for (uint64_t i = rng.below(30); i > 0; --i)
        text += rng.below(4) == 0 ? std::string(1, static_cast<char>(rng.below(256)))
                                  : kParts[rng.below(std::size(kParts))];
      const std::vector<int32_t> ids = t.encode(text);
      ASSERT_EQ(t.decode(ids), text);
      ASSERT_EQ(streamed(t, text), ids);
      ASSERT_EQ(t.decode(t.encode(text, true), true), text);
    }
    std::string all;
    for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
    EXPECT_EQ(t.decode(t.encode(all)), all);
    EXPECT_TRUE(t.encode("").empty());
    EXPECT_EQ(t.decode({}), "");
  }
}

TEST(TokenizerEncode, InvalidBytesAreCutOutAndTheRestIsUntouched) {
  const Tokenizer t = load(tokenizer_json(kMerges));
  EXPECT_EQ(t.encode("the\xFFthe"), (std::vector<int32_t>{257, 0xFF, 257}));
  EXPECT_EQ(t.encode("\xC3"), std::vector<int32_t>{0xC3});
  EXPECT_EQ(t.encode("\xC3\xA9"), std::vector<int32_t>{259});
}

TEST(TokenizerEncode, SpecialTextsArePlainUnlessAskedFor) {
  const Tokenizer t = load(tokenizer_json(kMerges), {{"eos_token", "<|end|>"}});
  const int32_t eos = t.eos_id();
  const std::vector<int32_t> plain = t.encode("the<|end|>the"), special = t.encode("the<|end|>the", true);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), eos), 0);
  EXPECT_EQ(special, (std::vector<int32_t>{257, eos, 257}));
  EXPECT_EQ(t.decode(plain), "the<|end|>the");
  EXPECT_EQ(t.decode(special), "thethe");
  EXPECT_EQ(t.decode(special, true), "the<|end|>the");
  EXPECT_TRUE(t.is_special(eos));
  EXPECT_FALSE(t.is_special(257));
  EXPECT_EQ(t.find("<|end|>"), eos);
  EXPECT_EQ(t.find("the"), -1);
  EXPECT_EQ(t.token_bytes(eos), "<|end|>");
  EXPECT_EQ(t.encode("<|end|", true).back(), '|');
}

TEST(TokenizerEncode, AddedTokensAreFoundLeftmostThenLongest) {
  Json file = tokenizer_json(kMerges);
  int32_t next = 265;
  for (const char* content : {"aa", "aab", "b\n", "<|end|>x"})
    file["added_tokens"].push_back(
        {{"id", next++}, {"content", content}, {"special", false}, {"normalized", false}});
  const Tokenizer t = load(file);
  EXPECT_EQ(t.encode("aaab"), (std::vector<int32_t>{265, 'a', 'b'}));  // leftmost first
  EXPECT_EQ(t.encode("aab"), std::vector<int32_t>{266});               // then longest
  EXPECT_EQ(t.encode("xb\ny"), (std::vector<int32_t>{'x', 267, 'y'}));
  EXPECT_EQ(t.encode("<|end|>x"), std::vector<int32_t>{268});
  EXPECT_EQ(t.encode("<|end|>y", true), (std::vector<int32_t>{264, 'y'}));
  EXPECT_EQ(t.decode({265, 264, 266}), "aaaab");  // those that are not special stay
  EXPECT_EQ(t.next_cut("ab\ncd", 0), 5u);         // a token holds a line end
}

TEST(TokenizerEncode, IdsOutsideTheVocabularyAreErrors) {
  const Tokenizer t = load(tokenizer_json(kMerges));
  for (const int32_t id : {-1, 265, 1 << 30}) {
    EXPECT_HAS(error_of([&] { t.decode({id}); }), "expected a value in [0, 265), got " + std::to_string(id));
    error_of([&] { t.token_bytes(id); });
    error_of([&] { t.is_special(id); });
  }
}

TEST(TokenizerEncode, PrefixSpaceAndNfcDoWhatTheySay) {
  Json file = tokenizer_json(kMerges);
  file["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_EQ(load(file).encode("the"), std::vector<int32_t>{258});
  EXPECT_EQ(load(file).encode(" the"), std::vector<int32_t>{258});
  Json nfc = tokenizer_json(kMerges);
  nfc["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(load(nfc).encode("e\xCC\x81"), std::vector<int32_t>{259});
  EXPECT_EQ(load(nfc).decode(load(nfc).encode("\xFF"
                                              "e\xCC\x81\xFF")),
            "\xFF\xC3\xA9\xFF");
  nfc["added_tokens"].push_back(
      {{"id", 265}, {"content", "e\xCC\x81!"}, {"special", false}, {"normalized", true}});
  nfc["added_tokens"].push_back(
      {{"id", 266}, {"content", "e\xCC\x81?"}, {"special", false}, {"normalized", false}});
  const Tokenizer t = load(nfc);
  EXPECT_EQ(t.encode("\xC3\xA9!"), std::vector<int32_t>{265});
  EXPECT_EQ(t.encode("e\xCC\x81!"), std::vector<int32_t>{265});
  EXPECT_EQ(t.encode("e\xCC\x81?"), std::vector<int32_t>{266});
  EXPECT_EQ(t.encode("\xC3\xA9?"), (std::vector<int32_t>{259, '?'}));
}

TEST(TokenizerEncode, ManyThreadsAtOnce) {
  const Tokenizer t = load(tokenizer_json(kMerges));
  const std::string text =
      read_file(shipped_text("zh/caigentan.txt")) + read_file(shipped_text("zh/analects.txt"));
  const std::vector<int32_t> expected = t.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t i = 0; i < equal.size(); ++i)
    threads.emplace_back([&, i] { equal[i] = t.encode(text) == expected && streamed(t, text) == expected; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 1));
}

TEST(TokenizerEncode, TextCutWhereOfferedGivesTheSameIds) {
  Json own = tokenizer_json(kMerges);
  const Tokenizer t = load(own);
  for (const char* name : {"zh/analects.txt", "en/carroll-alice-in-wonderland.txt"}) {
    const std::string text = read_file(shipped_text(name));
    std::vector<int32_t> parts;
    int cuts = 0;
    for (std::string_view rest = text; !rest.empty(); ++cuts) {
      const size_t end = t.next_cut(rest, 100);
      for (const int32_t id : t.encode(rest.substr(0, end))) parts.push_back(id);
      rest.remove_prefix(end);
    }
    EXPECT_GT(cuts, 100) << name;
    EXPECT_EQ(parts, t.encode(text)) << name;
  }
}

}  // namespace
}  // namespace hysparse::test
