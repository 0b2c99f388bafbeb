#include "tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/rng.h"
#include "support.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

using test::error_of;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekMain =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

PreTokenizerRules rules_of(const std::string& kind) {
  PreTokenizerRules r;
  const SplitRule gpt2{std::string(kGpt2Pattern)};
  if (kind == "own") r.splits = {{std::string(kOwnPattern)}};
  if (kind == "llama3") r.splits = {{kLlama3}};
  if (kind == "qwen2") r.splits = {{kQwen2}};
  if (kind == "gpt4o") r.splits = {{kGpt4o}};
  if (kind == "deepseek") r.splits = {{R"(\p{N}{1,3})"}, {"[一-龥぀-ゟ゠-ヿ]+"}, {kDeepSeekMain}};
  if (kind == "smollm") r.splits = {{R"(\p{N})"}};
  if (kind == "digits") r.splits = {{R"(\p{N}+)"}};
  if (kind == "string") r.splits = {{"the", true}};
  if (kind == "gpt2" || kind == "smollm" || kind == "digits" || kind == "gpt2prefix" || kind == "string")
    r.last_split = gpt2;
  r.add_prefix_space = kind == "digits" || kind == "gpt2prefix";
  return r;
}

std::vector<std::string> pieces(const PreTokenizer& pre, std::string_view text) {
  PreTokenizer::State state(pre);
  std::vector<std::string> out;
  pre.run(text, state, [&](std::string_view p) { out.emplace_back(p); });
  return out;
}

const std::vector<std::string> kTexts = {
    std::string("Hello world's  end\012\012  x", 23),
    std::string("I'LL don't '\305\277 we'Re\011go  \012", 26),
    std::string("a\012 b\015\012\015\012C  \012\012\012d", 15),
    std::string("12345 1 22, \302\275\342\205\247\331\243\331\244x9", 23),
    std::string("  lead\302\240nbsp\343\200\200wide\341\240\216mvs\302\205nel\342\200\250ls", 35),
    std::string("\344\275\240\345\245\275\357\274\214\344\270\226\347\225\214\357\274\201\012\345\272\212\345"
                "\211\215\346\230\216\346\234\210\345\205\211",
                34),
    std::string("e\314\201a\314\210 \340\244\271\340\244\277\340\244\250\340\245\215\340\244\246\340\245\200 "
                "\340\244\250\340\244\256\340\244\270\340\245\215\340\244\244\340\245\207\342\200\215",
                47),
    std::string("\360\237\231\202\360\237\221\215\360\237\217\275 !\?...--\012\"q\"", 24),
    std::string("tab\011\011x \011 y\000z\013\014.", 15),
    std::string("x.\012\012y!\012 z\341\232\200w\012\341\232\200\012q", 19),
    std::string("the other then THE", 18),
    std::string("ABCdef XMLHttp fooBar O'Neil's", 30),
};

// The lengths in bytes of the pieces that Hugging Face's tokenizers 0.23.3 makes of kTexts (an added prefix
// space counts).
const std::vector<std::pair<std::string, std::vector<std::vector<size_t>>>> kPieces = {
    {"own",
     {{5, 6, 2, 1, 4, 2, 1, 2},
      {1, 3, 4, 2, 2, 2, 3, 3, 3, 3},
      {1, 1, 2, 4, 1, 5, 1},
      {3, 2, 1, 1, 1, 2, 1, 1, 7, 2, 1, 1},
      {1, 5, 6, 7, 6, 5, 5},
      {6, 9, 4, 15},
      {6, 19, 19, 3},
      {12, 9, 2, 1},
      {3, 1, 2, 2, 2, 2, 1, 1, 1},
      {1, 3, 1, 2, 2, 4, 5, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 5, 2}}},
    {"gpt2",
     {{5, 6, 2, 1, 4, 3, 2},
      {1, 1, 2, 4, 2, 2, 2, 3, 1, 2, 1, 2, 3},
      {1, 1, 2, 3, 1, 1, 4, 1, 1},
      {5, 2, 3, 1, 10, 1, 1},
      {1, 5, 2, 4, 3, 4, 3, 3, 2, 3, 3, 2},
      {6, 3, 6, 3, 1, 15},
      {1, 2, 1, 2, 4, 3, 3, 3, 3, 3, 10, 3, 3, 6},
      {12, 8, 1, 1, 1, 1},
      {3, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 1, 1, 2, 3, 1, 4, 1, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 1, 4, 2}}},
    {"llama3",
     {{5, 6, 2, 1, 4, 2, 1, 2},
      {1, 3, 4, 2, 2, 2, 3, 3, 3, 3},
      {1, 1, 2, 4, 1, 5, 1},
      {3, 2, 1, 1, 1, 2, 1, 1, 7, 2, 1, 1},
      {1, 5, 6, 7, 6, 5, 5},
      {6, 9, 4, 15},
      {1, 3, 2, 4, 6, 6, 3, 10, 6, 6},
      {12, 9, 2, 1},
      {3, 1, 2, 2, 2, 2, 1, 1, 1},
      {1, 3, 1, 2, 2, 4, 5, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 5, 2}}},
    {"qwen2",
     {{5, 6, 2, 1, 4, 2, 1, 2},
      {1, 3, 4, 2, 2, 2, 3, 3, 3, 3},
      {1, 1, 2, 4, 1, 5, 1},
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 2, 2, 1, 1},
      {1, 5, 6, 7, 6, 5, 5},
      {6, 9, 4, 15},
      {1, 3, 2, 4, 6, 6, 3, 10, 6, 6},
      {12, 9, 2, 1},
      {3, 1, 2, 2, 2, 2, 1, 1, 1},
      {1, 3, 1, 2, 2, 4, 5, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 5, 2}}},
    {"smollm",
     {{5, 6, 2, 1, 4, 3, 2},
      {1, 1, 2, 4, 2, 2, 2, 3, 1, 2, 1, 2, 3},
      {1, 1, 2, 3, 1, 1, 4, 1, 1},
      {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 2, 2, 1, 1},
      {1, 5, 2, 4, 3, 4, 3, 3, 2, 3, 3, 2},
      {6, 3, 6, 3, 1, 15},
      {1, 2, 1, 2, 4, 3, 3, 3, 3, 3, 10, 3, 3, 6},
      {12, 8, 1, 1, 1, 1},
      {3, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 1, 1, 2, 3, 1, 4, 1, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 1, 4, 2}}},
    {"digits",
     {{6, 6, 2, 1, 4, 3, 2},
      {2, 1, 2, 4, 2, 2, 2, 3, 1, 2, 1, 2, 3},
      {2, 1, 2, 3, 1, 1, 4, 1, 1},
      {6, 1, 2, 1, 3, 2, 1, 10, 2, 2},
      {1, 5, 2, 4, 3, 4, 3, 3, 2, 3, 3, 2},
      {7, 3, 6, 3, 1, 15},
      {2, 2, 1, 2, 4, 3, 3, 3, 3, 3, 10, 3, 3, 6},
      {13, 8, 1, 1, 1, 1},
      {4, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1},
      {2, 1, 1, 1, 1, 1, 1, 2, 3, 1, 4, 1, 1},
      {4, 6, 5, 4},
      {7, 8, 7, 2, 1, 4, 2}}},
    {"gpt4o",
     {{5, 8, 1, 4, 2, 1, 2},
      {4, 6, 2, 2, 6, 3, 3},
      {1, 1, 2, 4, 1, 5, 1},
      {3, 2, 1, 1, 1, 2, 1, 1, 7, 2, 1, 1},
      {1, 5, 6, 7, 6, 5, 5},
      {6, 9, 4, 15},
      {6, 19, 19, 3},
      {12, 9, 2, 1},
      {3, 1, 2, 2, 2, 2, 1, 1, 1},
      {1, 3, 1, 2, 2, 4, 5, 1},
      {3, 6, 5, 4},
      {6, 8, 4, 3, 2, 7}}},
    {"deepseek",
     {{5, 6, 2, 1, 4, 2, 1, 2},
      {1, 3, 4, 2, 2, 2, 3, 3, 3, 3},
      {1, 1, 2, 4, 1, 5, 1},
      {3, 2, 1, 1, 1, 2, 1, 1, 7, 2, 1, 1},
      {1, 5, 6, 7, 6, 5, 5},
      {6, 3, 6, 4, 15},
      {6, 19, 19, 3},
      {12, 9, 2, 1},
      {3, 1, 2, 2, 2, 2, 1, 1, 1},
      {1, 3, 1, 2, 2, 4, 5, 1},
      {3, 6, 5, 4},
      {6, 8, 7, 2, 5, 2}}},
    {"gpt2prefix",
     {{6, 6, 2, 1, 4, 3, 2},
      {2, 1, 2, 4, 2, 2, 2, 3, 1, 2, 1, 2, 3},
      {2, 1, 2, 3, 1, 1, 4, 1, 1},
      {6, 2, 3, 1, 10, 1, 1},
      {1, 5, 2, 4, 3, 4, 3, 3, 2, 3, 3, 2},
      {7, 3, 6, 3, 1, 15},
      {2, 2, 1, 2, 4, 3, 3, 3, 3, 3, 10, 3, 3, 6},
      {13, 8, 1, 1, 1, 1},
      {4, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1},
      {2, 1, 1, 1, 1, 1, 1, 2, 3, 1, 4, 1, 1},
      {4, 6, 5, 4},
      {7, 8, 7, 2, 1, 4, 2}}},
    {"string",
     {{5, 6, 2, 1, 4, 3, 2},
      {1, 1, 2, 4, 2, 2, 2, 3, 1, 2, 1, 2, 3},
      {1, 1, 2, 3, 1, 1, 4, 1, 1},
      {5, 2, 3, 1, 10, 1, 1},
      {1, 5, 2, 4, 3, 4, 3, 3, 2, 3, 3, 2},
      {6, 3, 6, 3, 1, 15},
      {1, 2, 1, 2, 4, 3, 3, 3, 3, 3, 10, 3, 3, 6},
      {12, 8, 1, 1, 1, 1},
      {3, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 1, 1, 2, 3, 1, 4, 1, 1},
      {3, 2, 3, 1, 1, 3, 1, 4},
      {6, 8, 7, 2, 1, 4, 2}}},
};

TEST(PreTokenizer, CutsAsHuggingFaceDoes) {
  for (const auto& [kind, expected] : kPieces) {
    const PreTokenizer pre(rules_of(kind), kind);
    for (size_t i = 0; i < kTexts.size(); ++i) {
      std::vector<size_t> got;
      std::string joined;
      for (const std::string& p : pieces(pre, kTexts[i])) got.push_back(p.size()), joined += p;
      EXPECT_EQ(got, expected[i]) << kind << ": " << kTexts[i];
      if (!pre.rules().add_prefix_space) {
        EXPECT_EQ(joined, kTexts[i]);
      }
    }
  }
}

// Pieces of a random mixture of what the expressions treat apart, cut at every position that next_cut()
// offers.
TEST(PreTokenizer, CutsOfferedKeepThePieces) {
  static const std::string kParts[] = {
      "\n",  "\n",           "\n",       " ",        "\r",           "a",  "Bc",       "'s",      "7", ".",
      "!\n", "\xE4\xB8\xAD", "\xC3\xA9", "\xC2\xA0", "\xE3\x80\x80", "\t", "\xCC\x81", "\xC2\x85"};
  Rng rng(11);
  int cuts = 0;
  for (const char* kind : {"own", "gpt2", "llama3", "qwen2", "smollm"}) {
    const PreTokenizer pre(rules_of(kind), kind);
    for (int round = 0; round < 6000; ++round) {
      std::string text;
      for (int i = 0; i < 12; ++i) text += kParts[rng.below(std::size(kParts))];
      const std::vector<std::string> whole = pieces(pre, text);
      for (size_t p = pre.next_cut(text, 1); p < text.size(); p = pre.next_cut(text, p + 1)) {
        std::vector<std::string> parts = pieces(pre, text.substr(0, p));
        for (std::string& s : pieces(pre, text.substr(p))) parts.push_back(s);
        ASSERT_EQ(parts, whole) << kind << " at " << p << " of " << text;
        ++cuts;
      }
    }
  }
  EXPECT_GT(cuts, 10'000);
  const PreTokenizer unknown(rules_of("gpt4o"), "x"), prefixed(rules_of("gpt2prefix"), "x");
  EXPECT_EQ(unknown.next_cut("a\nb", 0), 3u);
  EXPECT_EQ(prefixed.next_cut("a\nb", 0), 3u);
}

// However the text looks, known expressions take linear time: a mebibyte of one kind in well under a second
// each.
TEST(PreTokenizer, HugeUniformTextsAreLinear) {
  for (const char* kind : {"own", "gpt2", "llama3", "gpt4o", "deepseek"}) {
    const PreTokenizer pre(rules_of(kind), kind);
    for (const std::string& unit : std::vector<std::string>{" ", "a", "\n", "1", ".", "A", "' ", " \n",
                                                            "\xE4\xB8\xAD", std::string(1, '\0')}) {
      std::string text;
      while (text.size() < (1u << 20)) text += unit;
      text += "x";
      const auto start = std::chrono::steady_clock::now();
      std::string joined;
      for (const std::string& p : pieces(pre, text)) joined += p;
      EXPECT_EQ(joined, text);
      EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20)
          << kind << unit;
    }
  }
}

TEST(Regex, BacktrackingWithoutEndIsAnErrorNotAHang) {
  PreTokenizerRules rules;
  rules.splits = {{"(a+)+$"}};
  const PreTokenizer pre(rules, "tokenizer.json");
  const std::string message = error_of([&] { pieces(pre, std::string(40, 'a') + "b"); });
  EXPECT_HAS(message, "tokenizer.json");
  EXPECT_HAS(message, "match limit");
}

TEST(Regex, WhiteSpaceIsUnicodesAndNothingElse) {
  const Regex space(R"(\s)", false, "x"), other(R"([^\s])", false, "x"), solid(R"(\S)", false, "x");
  for (uint32_t c = 1; c < 0x3100; ++c) {
    std::string text;
    append_utf8(text, c);
    const bool expected = (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
                          (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
                          c == 0x205F || c == 0x3000;
    size_t b = 0, e = 0;
    EXPECT_EQ(Regex::Matcher(space).next(text, 0, b, e), expected) << c;
    EXPECT_EQ(Regex::Matcher(other).next(text, 0, b, e), !expected) << c;
    EXPECT_EQ(Regex::Matcher(solid).next(text, 0, b, e), !expected) << c;
  }
}

TEST(Regex, WhatMeansSomethingElseElsewhereIsRefusedByName) {
  for (const char* pattern :
       {R"(\w+)", R"(\bx)", R"(\h)", R"([\S])", "[a[b]]", "[a&&b]", "(?m:.)", R"(\p{N}{1,3}+)"})
    EXPECT_HAS(error_of([&] { Regex(pattern, false, "file: field"); }), "file: field: the expression uses")
        << pattern;
  EXPECT_HAS(error_of([&] { Regex("(", false, "file: field"); }), "bad regular expression");
  EXPECT_HAS(error_of([&] { Regex("[a", false, "file: field"); }), "bad regular expression");
  for (const char* pattern :
       {R"(\p{L}++)", "[]a]", "[^]a]", R"([\[\]])", "(?i:x)", "(?=x)", "(?<!x)y", "(?:a|b){2,3}"})
    EXPECT_NO_THROW(Regex(pattern, false, "x")) << pattern;
}

TEST(Regex, EmptyMatchesAreNoMatches) {
  PreTokenizerRules rules;
  rules.splits = {{"x*"}};
  const PreTokenizer pre(rules, "t");
  EXPECT_EQ(pieces(pre, "axxb"), (std::vector<std::string>{"a", "xx", "b"}));
  EXPECT_TRUE(pieces(pre, "").empty());
}

}  // namespace
}  // namespace hysparse
