#include "eval/recall_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"

namespace hysparse {
namespace {

using namespace recall;

RecallTask task(RecallKind kind, int64_t length, int64_t queries = 4) {
  RecallTask t;
  t.task = kind;
  t.length = length;
  t.queries = queries;
  return t;
}
RecallTask walk(int64_t length, std::vector<int64_t> hops, int64_t pairs = 0, int64_t chains = 1) {
  RecallTask t = task(RecallKind::walk, length);
  t.hops = std::move(hops);
  t.pairs = pairs;
  t.chains = chains;
  return t;
}
RecallTask paragraphs(int64_t length, std::vector<int64_t> hops, int64_t pairs, int64_t chains) {
  RecallTask t = walk(length, std::move(hops), pairs, chains);
  t.task = RecallKind::paragraph;
  return t;
}

bool is_label(int32_t id) {
  return id >= kLabel && id < kLabel + kMaxLabels;
}
bool is_question(int32_t id) {
  return id >= kHop && id < kHop + kMaxHops;
}
bool is_filler(int32_t id) {
  return id >= kFiller && id < kFiller + kFillers;
}

// Reads a row with nothing but its tokens: what the body says, and for each question the answer that follows
// from it. Knows the formats of recall_task.h and nothing of how rows are made.
struct Read {
  std::map<std::vector<int32_t>, std::vector<int32_t>> facts;  // key -> value
  std::map<std::vector<int32_t>, int64_t> place;               // key -> last token of its unit
  struct Asked {
    int64_t hops;
    std::vector<int32_t> key, said, answer;
    int64_t first;                // position of the first answer token
    std::vector<int64_t> places;  // of the facts used
  };
  std::vector<Asked> questions;
  int64_t fillers = 0;
};
Read read_row(RecallKind kind, bool labelled, const std::vector<int32_t>& tokens) {
  Read r;
  const size_t key_tokens = kind == RecallKind::phonebook || labelled ? 2 : 1;
  const size_t value_tokens = kind == RecallKind::phonebook ? 4 : 1;
  size_t at = 0;
  while (at < tokens.size() && !is_question(tokens[at])) {
    if (is_filler(tokens[at])) {
      ++at, ++r.fillers;
      continue;
    }
    const std::vector<int32_t> key(tokens.begin() + long(at), tokens.begin() + long(at + key_tokens));
    at += key_tokens;
    EXPECT_FALSE(r.facts.count(key)) << "two facts of one key";
    r.facts[key] = {tokens.begin() + long(at), tokens.begin() + long(at + value_tokens)};
    at += value_tokens;
    r.place[key] = int64_t(at) - 1;
  }
  while (at < tokens.size()) {
    EXPECT_TRUE(is_question(tokens[at]));
    Read::Asked q;
    q.hops = tokens[at++] - kHop + 1;
    q.key.assign(tokens.begin() + long(at), tokens.begin() + long(at + key_tokens));
    at += key_tokens;
    q.first = int64_t(at);
    q.said.assign(tokens.begin() + long(at), tokens.begin() + long(at + value_tokens));
    at += value_tokens;
    std::vector<int32_t> key = q.key;
    for (int64_t h = 0; h < q.hops; ++h) {
      if (!r.facts.count(key)) {
        ADD_FAILURE() << "a question leads to an unknown key at hop " << h + 1;
        break;
      }
      q.answer = r.facts[key];
      q.places.push_back(r.place[key]);
      key.back() = q.answer.back();
    }
    r.questions.push_back(q);
  }
  return r;
}

std::vector<RecallTask> all_tasks() {
  std::vector<RecallTask> out;
  for (const int64_t length : {40, 64, 256}) {
    out.push_back(task(RecallKind::mqar, length));
    out.push_back(task(RecallKind::phonebook, length, 2));
    RecallTask chain = task(RecallKind::chain, length, 3);
    chain.hops = {1, 2, 3};
    chain.chains = 3;
    out.push_back(chain);
    out.push_back(walk(length, {1}));
    out.push_back(walk(length, {1, 2, 3}, 8));
    out.push_back(walk(length, {2}, 6, 2));
    out.push_back(paragraphs(length, {1, 2}, 6, 2));
  }
  out.push_back(paragraphs(256, {1, 2, 3}, 48, 12));
  out.push_back(walk(256, {4, 8}, 60, 4));
  return out;
}

TEST(RecallTask, AnIndependentReaderFindsEveryAnswer) {
  for (const RecallTask& t : all_tasks()) {
    SCOPED_TRACE(describe(t));
    validate_recall_task(t, "test");
    const bool labelled = t.task == RecallKind::walk && t.chains > 1;
    for (uint64_t i = 0; i < 50; ++i) {
      const RecallRow row = make_recall_row(t, 7, i);
      ASSERT_EQ(std::ssize(row.tokens), t.length);
      const Read r = read_row(t.task, labelled, row.tokens);
      EXPECT_EQ(std::ssize(r.facts), recall_pairs(t));
      ASSERT_EQ(std::ssize(r.questions), t.queries);
      size_t answer = 0;
      std::set<std::vector<int32_t>> keys;
      for (const Read::Asked& q : r.questions) {
        EXPECT_EQ(q.said, q.answer);
        EXPECT_TRUE(std::count(t.hops.begin(), t.hops.end(), q.hops));
        if (t.task != RecallKind::chain) {
          EXPECT_TRUE(keys.insert(q.key).second) << "asked twice";
        }
        for (size_t k = 0; k < q.said.size(); ++k, ++answer) {
          EXPECT_EQ(row.answers[answer].at, q.first + int64_t(k));
          EXPECT_EQ(row.answers[answer].hops, q.hops);
          EXPECT_EQ(row.answers[answer].gold, q.places);
        }
      }
      EXPECT_EQ(answer, row.answers.size());
    }
  }
}

TEST(RecallTask, CopyRepeatsItsText) {
  for (const int64_t length : {3, 16, 63, 64}) {
    const RecallTask t = task(RecallKind::copy, length);
    const RecallRow row = make_recall_row(t, 1, 2);
    ASSERT_EQ(std::ssize(row.tokens), length);
    const auto separator = std::find(row.tokens.begin(), row.tokens.end(), kSeparator);
    const std::vector<int32_t> copy(separator + 1, row.tokens.end());
    const std::vector<int32_t> text(separator - std::ssize(copy), separator);
    EXPECT_EQ(copy, text);
    ASSERT_EQ(row.answers.size(), copy.size());
    for (const RecallAnswer& a : row.answers)
      EXPECT_EQ(row.tokens[size_t(a.at)], row.tokens[size_t(a.gold[0])]);
  }
}

TEST(RecallTask, ChainsDefineBeforeUseAndWalksInAnyOrder) {
  RecallTask chain = task(RecallKind::chain, 64, 2);
  chain.hops = {3};
  chain.chains = 2;
  bool backwards = false;
  for (uint64_t i = 0; i < 50; ++i) {
    for (const RecallAnswer& a : make_recall_row(chain, 3, i).answers) {
      ASSERT_EQ(a.gold.size(), 3u);
      EXPECT_TRUE(std::is_sorted(a.gold.rbegin(), a.gold.rend()));  // the value was said first
    }
    for (const RecallAnswer& a : make_recall_row(walk(64, {3}, 12), 3, i).answers)
      backwards |= !std::is_sorted(a.gold.rbegin(), a.gold.rend());
  }
  EXPECT_TRUE(backwards);
}

TEST(RecallTask, LabelledWalksShareTheirNodesSoThatLabelsDecide) {
  const RecallTask t = walk(160, {1, 2}, 40, 4);
  int64_t ambiguous = 0, questions = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    const RecallRow row = make_recall_row(t, 5, i);
    const Read r = read_row(t.task, true, row.tokens);
    std::set<int32_t> labels;
    for (const auto& [key, value] : r.facts) {
      EXPECT_TRUE(is_label(key[0]));
      labels.insert(key[0]);
    }
    EXPECT_EQ(labels.size(), 4u);
    for (const Read::Asked& q : r.questions) {
      ++questions;
      for (const auto& [key, value] : r.facts) ambiguous += key[0] != q.key[0] && key[1] == q.key[1];
    }
  }
  EXPECT_GT(ambiguous, questions / 4);  // without its label, a node often has another edge
}

TEST(RecallTask, AParagraphHoldsAWholePathInAnyOrder) {
  const RecallTask t = paragraphs(256, {3}, 40, 10);
  bool backwards = false, forwards = false;
  std::set<int64_t> first;
  for (uint64_t i = 0; i < 50; ++i)
    for (const RecallAnswer& a : make_recall_row(t, 5, i).answers) {
      const auto [low, high] = std::minmax_element(a.gold.begin(), a.gold.end());
      EXPECT_LE(*high - *low, 2 * 3);  // 4 edges of 2 tokens
      first.insert(*low / 32);
      backwards |= a.gold[0] > a.gold[1];
      forwards |= a.gold[0] < a.gold[1];
    }
  EXPECT_TRUE(backwards && forwards);
  EXPECT_GE(first.size(), 7u);  // paragraphs stand anywhere
}

TEST(RecallTask, RowsDependOnSeedAndIndexAlone) {
  for (const RecallTask& t : all_tasks()) {
    const RecallRow a = make_recall_row(t, 11, 3);
    EXPECT_EQ(a.tokens, make_recall_row(t, 11, 3).tokens);
    EXPECT_NE(a.tokens, make_recall_row(t, 11, 4).tokens);
    EXPECT_NE(a.tokens, make_recall_row(t, 12, 3).tokens);
  }
}

TEST(RecallTask, AnswersAndPlacesAreSpreadEvenly) {
  const RecallTask t = walk(128, {1, 2}, 16);
  std::map<int64_t, int64_t> hops;
  std::vector<int64_t> quarter(4);
  int64_t total = 0;
  for (uint64_t i = 0; i < 500; ++i)
    for (const RecallAnswer& a : make_recall_row(t, 2, i).answers) {
      ++hops[a.hops];
      ++quarter[size_t(std::min<int64_t>(3, a.gold[0] / 29))];  // the body is 116 tokens
      ++total;
    }
  EXPECT_NEAR(double(hops[1]) / double(total), 0.5, 0.05);
  for (const int64_t n : quarter) EXPECT_NEAR(double(n) / double(total), 0.25, 0.05);
}

TEST(RecallTask, BadTasksAreNamed) {
  const auto refused = [](const RecallTask& t, const std::string& what) {
    try {
      validate_recall_task(t, "somewhere");
      ADD_FAILURE() << "accepted: " << describe(t);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::input);
      EXPECT_NE(std::string(e.what()).find("somewhere"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  };
  refused(walk(8, {1}), "no room");
  refused(walk(64, {9}), "hops");
  refused(walk(64, {}), "hops");
  refused(walk(64, {5}, 4), "shorter than 5 hops");
  refused(walk(64, {1}, 40), "no room for 40 pairs");
  refused(walk(512, {1}, 100), "symbols name");
  refused(walk(64, {3}, 4), "different questions");
  RecallTask t = task(RecallKind::mqar, 64);
  t.hops = {2};
  refused(t, "neither hops nor chains");
  refused(paragraphs(256, {1}, 64, 4), "name 60");  // 64 symbols, a node more than edges in each
  refused(paragraphs(256, {1}, 4, 64), "no room");
  t = task(RecallKind::mqar, 64);
  t.symbols = 1000;
  refused(t, "symbols");
  refused(task(RecallKind::copy, 2), "length");
  RecallTask many = task(RecallKind::chain, 64, 5);
  many.chains = 2;
  refused(many, "only 2 different questions");
}

TEST(RecallTask, ChanceIsThatOfAGuessAmongWhatCouldBe) {
  EXPECT_DOUBLE_EQ(recall_chance(walk(64, {1}, 16)), 1.0 / 16);
  EXPECT_DOUBLE_EQ(recall_chance(walk(128, {1}, 32, 4)), 1.0 / 8);
  EXPECT_DOUBLE_EQ(recall_chance(paragraphs(128, {1}, 32, 8)), 1.0 / 4);
  EXPECT_DOUBLE_EQ(recall_chance(task(RecallKind::phonebook, 64, 2)), 0.1);
  EXPECT_DOUBLE_EQ(recall_chance(task(RecallKind::mqar, 64)), 1.0 / 32);
}

}  // namespace
}  // namespace hysparse
