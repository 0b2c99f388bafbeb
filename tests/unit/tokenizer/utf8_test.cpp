#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"

namespace hysparse {
namespace {

constexpr const char* kMark = "\xEF\xBF\xBD";  // U+FFFD

// Feeds the pieces and flushes; counts the pushes that came back with something.
std::string stream(const std::vector<std::string>& pieces) {
  Utf8Stream s;
  std::string out;
  for (const std::string& p : pieces) out += s.push(p);
  return out + s.flush();
}

TEST(Utf8, EveryCodePointIsReadBack) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_step(text, 0);
    ASSERT_EQ(step.kind, Utf8Kind::valid) << c;
    ASSERT_EQ(step.length, text.size()) << c;
    ASSERT_EQ(step.code_point, c);
    for (size_t n = 1; n < text.size(); ++n)
      ASSERT_EQ(utf8_step(text.substr(0, n), 0).kind, Utf8Kind::incomplete) << c;
  }
}

TEST(Utf8, BadFormsAreMaximalSubparts) {
  const std::vector<std::pair<std::string, size_t>> bad = {
      {"\x80", 1},         {"\xC0\xAF", 1},         {"\xC1\x81", 1},         {"\xE0\x80\x80", 1},
      {"\xED\xA0\x80", 1}, {"\xF0\x80\x80\x80", 1}, {"\xF4\x90\x80\x80", 1}, {"\xF5\x80", 1},
      {"\xFF", 1},         {"\xE2\x82z", 2},        {"\xF0\x9F\x98z", 3},    {"\xC3z", 1}};
  for (const auto& [text, length] : bad) {
    const Utf8Step step = utf8_step(text, 0);
    EXPECT_EQ(step.kind, Utf8Kind::invalid) << text;
    EXPECT_EQ(step.length, length) << text;
    EXPECT_EQ(utf8_valid_end(text, 0), 0u);
  }
  EXPECT_EQ(utf8_valid_end("abcdefgh\xC3\xA9ij\xFFk", 0), 12u);
}

// BC-18: characters in two tokens, in four, an accented letter, a Hangul syllable, a run of single bytes.
TEST(Utf8Stream, NeverSplitsACharacterHoweverItArrives) {
  const std::string text = "a\xF0\x9F\x99\x82\xC3\xA9\xEC\x9D\x84z\xE4\xB8\xAD";
  for (size_t step = 1; step <= text.size(); ++step) {
    Utf8Stream s;
    std::string out;
    for (size_t at = 0; at < text.size(); at += step) {
      const std::string got = s.push(text.substr(at, step));
      EXPECT_EQ(utf8_valid_end(got, 0), got.size());
      EXPECT_EQ(got.find(kMark), std::string::npos);
      out += got;
    }
    EXPECT_EQ(s.flush(), "");
    EXPECT_EQ(out, text);
  }
  Utf8Stream s;
  EXPECT_EQ(s.push("\xF0\x9F"), "");
  EXPECT_EQ(s.push("\x99\x82"), "\xF0\x9F\x99\x82");
  EXPECT_EQ(s.push(std::string(1, '\0')), std::string(1, '\0'));
}

TEST(Utf8Stream, InvalidBytesAreReplacedAtOnceAndNeverStall) {
  Utf8Stream s;
  EXPECT_EQ(s.push("\xFF"), kMark);
  EXPECT_EQ(s.push("A"), "A");
  EXPECT_EQ(s.push("\xE2\x82"), "");
  EXPECT_EQ(s.push("A"), std::string(kMark) + "A");  // can no longer become a character
  std::string out;
  for (int i = 0; i < 200; ++i) {
    const std::string got = s.push("\x80");
    EXPECT_EQ(got, kMark);
    out += got;
  }
  EXPECT_EQ(out.size(), 600u);
  EXPECT_EQ(s.flush(), "");
  EXPECT_EQ(s.push("\xF0\x9F\x99"), "");
  EXPECT_EQ(s.flush(), kMark);
  EXPECT_EQ(s.flush(), "");
}

TEST(Utf8Stream, PiecesDoNotChangeTheResult) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      static const std::string kParts[] = {
          "\xF0\x9F\x99\x82", "\xC3\xA9", "a", "\xE4\xB8\xAD", "\xFF", "\x80", "\xE4"};
      bytes += kParts[rng.below(7)].substr(0, 1 + rng.below(4));
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < bytes.size();) {
      pieces.push_back(bytes.substr(at, 1 + rng.below(3)));
      at += pieces.back().size();
    }
    const std::string whole = stream({bytes});
    EXPECT_EQ(stream(pieces), whole);
    EXPECT_EQ(utf8_valid_end(whole, 0), whole.size());
  }
}

TEST(ByteAlphabet, IsABijectionOntoPrintableCharacters) {
  std::string all, back;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_TRUE(from_alphabet(to_alphabet(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_alphabet(" A\n"),
            "\xC4\xA0"
            "A\xC4\x8A");  // as GPT-2 writes them
  EXPECT_FALSE(from_alphabet(" ", back));
  EXPECT_EQ(back, all);
}

TEST(Nfc, ComposesOrdersAndKeepsWhatIsNotUtf8) {
  EXPECT_EQ(to_nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(to_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"), "\xED\x95\x9C");  // Hangul jamo
  EXPECT_EQ(to_nfc("\xE2\x84\xAB"), "\xC3\x85");                              // Angstrom sign
  EXPECT_EQ(to_nfc("a\xCC\x81\xCC\xA7"), to_nfc("a\xCC\xA7\xCC\x81"));        // marks of two classes
  EXPECT_EQ(to_nfc("\xEF\xA4\x80"), "\xE8\xB1\x88");                          // a compatibility ideograph
  EXPECT_EQ(to_nfc("\xFF"
                   "e\xCC\x81\xCC"),
            "\xFF\xC3\xA9\xCC");
  EXPECT_EQ(to_nfc(std::string("\0x", 2)), std::string("\0x", 2));
  EXPECT_TRUE(surely_nfc("plain \xC3\xA9 \xE4\xB8\xAD"));
  EXPECT_FALSE(surely_nfc("e\xCC\x81"));
}

// Sorting by swaps would take minutes.
TEST(Nfc, ALongRunOfMarksIsNotQuadratic) {
  std::string text = "a";
  for (int i = 0; i < 100'000; ++i) text += "\xCC\x81\xCC\xA7";  // acute, cedilla
  const std::string nfc = to_nfc(text);
  EXPECT_EQ(nfc.substr(0, 6), "\xC3\xA1\xCC\xA7\xCC\xA7");  // one acute joins the letter, cedillas go first
  EXPECT_EQ(nfc.substr(nfc.size() - 4), "\xCC\x81\xCC\x81");
  EXPECT_EQ(nfc.size(), text.size() - 1);
}

}  // namespace
}  // namespace hysparse
