// BC-44: fixed answers, what each rule gives them.
#include <gtest/gtest.h>

#include "eval/ruler/score.h"

namespace hysparse {
namespace {

struct Case {
  std::string answer;
  double share, strict;
};

TEST(RulerScore, OneNumber) {
  const std::vector<std::string> references{"1234567"};
  const std::string question =
      "What is the special magic number for amber-anchor mentioned in the provided text?";
  for (const Case& c : std::vector<Case>{
           {"1234567", 1, 1},
           {" 1234567.", 1, 1},
           {"The special magic number for amber-anchor is 1234567, as the text says.", 1, 1},
           {"It is \"1234567\"!", 1, 1},
           {"Let me think. " + std::string(4000, '.') + " So: 1234567", 1, 1},
           {"1,234,567", 0, 1},
           {"1'234'567", 0, 1},
           {"12345678", 1, 0},
           {"91234567", 1, 0},
           {"1234567.5", 1, 0},
           {"1234567,7654321", 1, 1},
           {"a1234567", 1, 0},
           {"123456", 0, 0},
           {"", 0, 0},
           {"  \n ", 0, 0},
           {question, 0, 0},
           {"I cannot answer that.", 0, 0},
       }) {
    const ruler::Score s = ruler::score_answer(references, false, question, c.answer);
    EXPECT_EQ(s.share, c.share) << c.answer;
    EXPECT_EQ(s.strict, c.strict) << c.answer;
    EXPECT_EQ(s.empty, c.answer.find_first_not_of(" \n") == std::string::npos) << c.answer;
  }
}

TEST(RulerScore, LetterCase) {
  for (const char* answer : {"HGTVX", "hgtvx", "The variable is Hgtvx."}) {
    const ruler::Score s = ruler::score_answer({"HGTVX"}, false, "", answer);
    EXPECT_EQ(s.share, 1) << answer;
    EXPECT_EQ(s.strict, 1) << answer;
  }
  EXPECT_EQ(ruler::score_answer({"Žofie Ångström"}, false, "", "ŽOFIE ÅNGSTRÖM").share, 1);
  EXPECT_EQ(ruler::fold_case("ÄÖÜ\xff Я"), "äöü\xff я");
}

// Four values: the share that is named, in any order, never above 1.
TEST(RulerScore, ManyValues) {
  const std::vector<std::string> four{"1111111", "2222222", "3333333", "4444444"};
  for (const Case& c : std::vector<Case>{
           {"3333333, 1111111 and 4444444", 0.75, 0.75},
           {"4444444 3333333 2222222 1111111", 1, 1},
           {"4444444 3333333 2222222 1111111 5555555", 1, 1},
           {"1111111 1111111 1111111 1111111 1111111", 0.25, 0.25},
           {"11111112222222 3333333", 0.75, 0.25},
           {"", 0, 0},
       }) {
    const ruler::Score s = ruler::score_answer(four, false, "", c.answer);
    EXPECT_DOUBLE_EQ(s.share, c.share) << c.answer;
    EXPECT_DOUBLE_EQ(s.strict, c.strict) << c.answer;
    EXPECT_EQ(s.found.size(), 4u);
  }
}

TEST(RulerScore, Words) {
  for (const Case& c : std::vector<Case>{
           {"1. anchor 2. amber", 1, 1},
           {"anchorage", 1, 0},
           {"amber-anchor", 1, 0},
           {"anchor-", 1, 1},
           {"anchor, amber", 1, 1},
       })
    EXPECT_EQ(ruler::score_answer({"anchor"}, false, "", c.answer).strict, c.strict) << c.answer;
  const std::string uuid = "0a1b2c3d-1234-4567-89ab-0123456789ab";
  EXPECT_EQ(ruler::score_answer({uuid}, false, "", "it is " + uuid + ".").strict, 1);
  EXPECT_EQ(ruler::score_answer({uuid}, false, "", "it is f" + uuid + ".").strict, 0);
}

// Questions: any accepted answer; articles and punctuation count for nothing in the strict reading.
// Questions of files may be anything; their text in an answer is passed over, and the search ends.
TEST(RulerScore, QuestionsThatAreBlank) {
  for (const std::string question : {"", " ", "  ", "\n", "Question: ", "Question:  "}) {
    const ruler::Score s = ruler::score_answer({"blue"}, true, question, "  it is  blue ");
    EXPECT_EQ(s.share, 1) << '"' << question << '"';
    EXPECT_EQ(s.strict, 1) << '"' << question << '"';
  }
}

TEST(RulerScore, Questions) {
  const std::vector<std::string> accepted{"the Denver Broncos", "Broncos"};
  const std::string question = "Question: Are the Denver Broncos or the Carolina Panthers older?";
  for (const Case& c : std::vector<Case>{
           {"Denver Broncos", 1, 1},  // through the shorter one
           {"It was the DENVER Broncos, I think.", 1, 1},
           {"broncos", 1, 1},
           {"Denver  Bronco's", 0, 1},
           {"Panthers", 0, 0},
           {"", 0, 0},
           {"Are the Denver Broncos or the Carolina Panthers older?", 1, 0},
           {question, 1, 0},
           {question + " Broncos", 1, 1},
       }) {
    const ruler::Score s = ruler::score_answer(accepted, true, question, c.answer);
    EXPECT_EQ(s.share, c.share) << c.answer;
    EXPECT_EQ(s.strict, c.strict) << c.answer;
  }
  EXPECT_EQ(ruler::score_answer({"The Hague"}, true, "", "hague").strict, 1);
  EXPECT_EQ(ruler::score_answer({"The Hague"}, true, "", "hague").share, 0);
}

}  // namespace
}  // namespace hysparse
