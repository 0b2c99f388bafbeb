#include "engine/generate.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"
#include "stub.h"
#include "tokenizer/utf8.h"

namespace hysparse {
namespace {

using tests::Reply;
using tests::say;
using tests::Stub;

bool valid_utf8(const std::string& s) {
  return utf8_valid_end(s, 0) == s.size();
}

void expect(const Reply& r, const std::string& text, FinishReason reason, size_t tokens) {
  EXPECT_EQ(r.text, text);
  EXPECT_EQ(r.streamed, text);
  EXPECT_EQ(enum_name(r.reason), enum_name(reason));
  EXPECT_EQ(r.tokens, tokens);
}

TEST(Stops, NothingOfTheStopStringLeaks) {
  const std::vector<std::string> said{"ABC", "DEF", "G", "HI", "J", "more"};
  const Reply r = say(said, {"DEFGHIJ"});
  expect(r, "ABC", FinishReason::stop, 5);
  EXPECT_EQ(r.pieces, std::vector<std::string>{"ABC"});
}

TEST(Stops, ANearMissIsReleasedWhole) {
  expect(say({"ABC", "DEF", "G", "HI", "K"}, {"DEFGHIJ"}), "ABCDEFGHIK", FinishReason::length, 5);
  expect(say({"ABC", "DEF", ""}, {"DEFGHIJ"}), "ABCDEF", FinishReason::eos, 3);
  expect(say({"ABC", "DEF", "G"}, {"DEFGHIJ"}), "ABCDEFG", FinishReason::length, 3);
  // A near miss in which another try begins.
  expect(say({"AA", "A", "B", "x"}, {"AAB"}), "A", FinishReason::stop, 3);
  expect(say({"ab", "ab", "ac", "x"}, {"abac"}), "ab", FinishReason::stop, 3);
}

TEST(Stops, SeveralStops) {
  // One a prefix of the other: the shorter is complete first.
  expect(say({"x", "END", "ING", "y"}, {"ENDING", "END"}), "x", FinishReason::stop, 2);
  expect(say({"x", "E", "N", "D", "ING", "y"}, {"END", "ENDING"}), "x", FinishReason::stop, 4);
  // One inside the other: the first to be complete wins, however the text is cut.
  for (const auto& said : {std::vector<std::string>{"ABCDE"}, {"A", "B", "C", "D", "E"}, {"ABC", "DE"}})
    EXPECT_EQ(say(said, {"BCDE", "CD"}).text, "AB");
  // Two that end together: from the start of the longer.
  expect(say({"A", "BCD", "E"}, {"CD", "BCD"}), "A", FinishReason::stop, 2);
}

TEST(Stops, InsideTheFirstTokenAndAcrossLetters) {
  expect(say({"aSTOPb", "c"}, {"STOP"}), "a", FinishReason::stop, 1);
  expect(say({"STOP", "c"}, {"STOP"}), "", FinishReason::stop, 1);
  const std::string emoji = "\xF0\x9F\x98\x80";
  expect(say({"hi " + emoji.substr(0, 2), emoji.substr(2) + "\n", "\nrest"}, {"\n\n"}), "hi " + emoji,
         FinishReason::stop, 3);
  expect(say({"x", emoji.substr(0, 1), emoji.substr(1, 1), emoji.substr(2), "y"}, {emoji}), "x",
         FinishReason::stop, 5 - 1);
  // A character that only begins like the stop's is not held for ever.
  const std::string other = "\xF0\x9F\x98\x81";
  expect(say({other, "y"}, {emoji}), other + "y", FinishReason::length, 2);
}

TEST(Stops, AStopIsNotTheEndToken) {
  const Reply r = say({"a", "STOP", "", "b"}, {"STOP"});
  expect(r, "a", FinishReason::stop, 2);
}

// However a text is cut into tokens: the joined pieces are the text up to the first stop, and no piece shows
// a part of it.
TEST(Stops, AnyCutGivesTheSameText) {
  Rng rng(5);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (uint64_t i = 0, n = 1 + rng.below(24); i < n; ++i) text += char('a' + rng.below(3));
    std::vector<std::string> stops;
    for (uint64_t i = 0, n = 1 + rng.below(3); i < n; ++i) {
      stops.emplace_back();
      for (uint64_t k = 0, m = 1 + rng.below(5); k < m; ++k) stops.back() += char('a' + rng.below(3));
    }
    // By definition: the stop whose end comes first, the longest of those.
    std::string truth = text;
    bool hit = false;
    for (size_t end = 1; end <= text.size() && !hit; ++end)
      for (const std::string& s : stops)
        if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) {
          hit = true;
          if (end - s.size() < truth.size()) truth = text.substr(0, end - s.size());
        }
    std::vector<std::string> said;
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + rng.below(4);
      said.push_back(text.substr(i, n));
      i += n;
    }
    const Reply r = say(said, stops);
    ASSERT_EQ(r.text, truth) << text;
    ASSERT_EQ(r.streamed, truth);
    ASSERT_EQ(r.reason == FinishReason::stop, hit);
  }
}

TEST(Stops, BadOnesAreRefused) {
  EXPECT_THROW(TextStream({""}), Error);
  EXPECT_THROW(TextStream({"ok", "\xff"}), Error);
  EXPECT_THROW(TextStream({"\xF0\x9F"}), Error);
  EXPECT_NO_THROW(TextStream({"\xF0\x9F\x98\x80", "\xC3\xA9", "\xED\x95\x9C"}));
}

TEST(Utf8, ValidTextComesWholeAndWithoutMarks) {
  const std::string emoji = "\xF0\x9F\x98\x80", e_acute = "\xC3\xA9", hangul = "\xED\x95\x9C",
                    mark = "\xEF\xBF\xBD";
  const auto bytes = [](const std::string& s) {
    std::vector<std::string> out;
    for (const char c : s) out.emplace_back(1, c);
    return out;
  };
  for (const std::string& letter : {emoji, e_acute, hangul}) {
    for (size_t cut = 1; cut < letter.size(); ++cut) {
      const Reply r = say({"a", letter.substr(0, cut), letter.substr(cut), "b"}, {});
      expect(r, "a" + letter + "b", FinishReason::length, 4);
      for (const std::string& piece : r.pieces) EXPECT_TRUE(valid_utf8(piece)) << piece;
    }
    expect(say(bytes(letter), {}), letter, FinishReason::length, letter.size());
  }
  const std::string run = "x" + emoji + hangul + e_acute + "y" + emoji;  // a byte-fallback run
  const Reply r = say(bytes(run), {});
  EXPECT_EQ(r.streamed, run);
  for (const std::string& piece : r.pieces) EXPECT_EQ(piece.find(mark), std::string::npos);
}

TEST(Utf8, InvalidBytesCannotStallTheStream) {
  const std::string mark = "\xEF\xBF\xBD";
  const Reply one = say({"\xff", "abc", "d"}, {});
  EXPECT_EQ(one.streamed, mark + "abcd");
  ASSERT_GE(one.pieces.size(), 2u);
  EXPECT_EQ(one.pieces[0] + one.pieces[1], mark + "abc");
  // A lead byte whose follower does not come is given up as soon as something else does.
  const Reply lead = say({"\xE4", "b", "c"}, {});
  EXPECT_EQ(lead.streamed, mark + "bc");
  const Reply many = say(std::vector<std::string>(200, "\x80"), {});
  EXPECT_EQ(many.pieces.size(), 200u);
  const Reply cut = say({"a", "\xF0\x9F"}, {});
  EXPECT_EQ(cut.text.substr(0, 1), "a");
  EXPECT_TRUE(valid_utf8(cut.text));
  EXPECT_NE(cut.text.find(mark), std::string::npos);
  EXPECT_EQ(cut.streamed, cut.text);
}

TEST(Generate, EveryEndTokenEnds) {
  for (const int64_t eos : {3, 5}) {
    Stub stub({1, int32_t(eos), 7});
    GenerateOptions o;
    o.sampling.temperature = 0;
    o.eos = {3, 5};
    const Generation g = generate(stub, {1, 2}, Stub::kVocab, o);
    EXPECT_EQ(g.reason, FinishReason::eos);
    EXPECT_EQ(g.tokens, (std::vector<int32_t>{1, int32_t(eos)}));
    EXPECT_EQ(g.prompt_tokens, 2);
  }
}

TEST(Generate, NeverPassesTheContext) {
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = 400;
  const auto run = [&](int64_t prompt) {
    Stub stub({1, 2, 3}, 512);
    return generate(stub, std::vector<int32_t>(size_t(prompt), 1), Stub::kVocab, o);
  };
  for (const int64_t prompt : {500, 511, 512}) {
    const Generation g = run(prompt);
    EXPECT_EQ(prompt + int64_t(g.tokens.size()), 512);
    EXPECT_EQ(g.reason, FinishReason::length);
  }
  EXPECT_EQ(run(100).tokens.size(), 400u);
  try {
    run(513);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::input);
    EXPECT_NE(std::string(e.what()).find("513"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("512"), std::string::npos);
  }
  o.max_new_tokens = -1;
  EXPECT_EQ(run(10).tokens.size(), 502u);
  o.max_new_tokens = 0;
  EXPECT_EQ(run(10).tokens.size(), 0u);
}

TEST(Generate, CancelEndsAtTheNextToken) {
  std::atomic<bool> cancel{false};
  Stub stub({1, 2, 3});
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.cancel = &cancel;
  int seen = 0;
  o.on_token = [&](int32_t) { cancel = ++seen == 4; };
  const Generation g = generate(stub, {1}, Stub::kVocab, o);
  EXPECT_EQ(g.reason, FinishReason::cancelled);
  EXPECT_EQ(g.tokens.size(), 4u);
}

TEST(Generate, IdsThatTheTokenizerLacksAreNeverDrawn) {
  for (const double temperature : {0.0, 1.0}) {
    Stub stub({5, 200, 128});  // the likeliest ids, two of them only the model knows
    GenerateOptions o;
    o.sampling.temperature = temperature;
    o.tokenizer_vocab = 128;
    o.max_new_tokens = 30;
    const Generation g = generate(stub, {200, 1}, Stub::kVocab, o);
    ASSERT_EQ(g.tokens.size(), 30u);
    for (const int32_t t : g.tokens) EXPECT_LT(t, 128);
    EXPECT_EQ(g.tokens[0], 5);
  }
}

// A caller's own loop, with the prompt read in parts, is the same answer as generate().
TEST(Generate, StepByStepIsTheSameAnswer) {
  Stub whole({1, 2, 3}),
      parts({9, 9, 1, 2, 3, 1, 2, 3, 1});  // two parts before the last give logits nobody draws from
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_new_tokens = 7;
  const std::vector<int32_t> prompt(250, 5);
  const Generation want = generate(whole, prompt, Stub::kVocab, o);
  o.prompt_step = 100;
  int drawn = 0;
  o.on_token = [&](int32_t) { ++drawn; };
  Generator g(parts, prompt, Stub::kVocab, o);
  for (const int64_t length : {100, 200, 250}) {
    EXPECT_TRUE(g.step());
    EXPECT_EQ(parts.length(), length);
    EXPECT_EQ(drawn, 0);
  }
  for (int i = 1; i < 7; ++i) {
    EXPECT_TRUE(g.step());
    EXPECT_EQ(drawn, i);
    EXPECT_EQ(parts.decoded, i - 1);  // a token is read when the next one is wanted
  }
  EXPECT_FALSE(g.step());
  EXPECT_FALSE(g.step());
  EXPECT_EQ(g.result().tokens, want.tokens);
  EXPECT_EQ(g.result().reason, FinishReason::length);
  EXPECT_EQ(g.result().prompt_tokens, 250);
}

TEST(Generate, CancelEndsBetweenPartsOfThePrompt) {
  std::atomic<bool> cancel{false};
  Stub stub({1});
  GenerateOptions o;
  o.prompt_step = 100;
  o.cancel = &cancel;
  Generator g(stub, std::vector<int32_t>(250, 5), Stub::kVocab, o);
  EXPECT_TRUE(g.step());
  cancel = true;
  EXPECT_FALSE(g.step());
  EXPECT_EQ(g.result().reason, FinishReason::cancelled);
  EXPECT_TRUE(g.result().tokens.empty());
}

TEST(Generate, TheLastTokenCostsNoForward) {
  Stub stub({1, 2, 3});
  GenerateOptions o;
  o.max_new_tokens = 5;
  generate(stub, {1}, Stub::kVocab, o);
  EXPECT_EQ(stub.decoded, 4);
}

}  // namespace
}  // namespace hysparse
