// What haystacks and questions are made of: files that the user names, or stand-ins.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_value.h"

namespace hysparse::ruler {

// Running text, cut into words and sentences; reading goes on from the start behind its end.
class Essay {
 public:
  // `text`: any white space is one space. Error(input), naming `source`, for fewer than 2 sentences.
  Essay(std::string_view text, std::string source);

  int64_t words() const { return static_cast<int64_t>(starts_.size()); }
  int64_t sentences() const { return static_cast<int64_t>(sentences_.size()); }
  int64_t sentence_start(int64_t i) const { return sentences_[static_cast<size_t>(i)]; }  // a word's number
  // Words [from, to), from >= 0, one space between.
  void append(std::string& out, int64_t from, int64_t to) const;
  // Where the sentences that lie in words [from, to) may be parted: from, the starts between, to.
  std::vector<int64_t> borders(int64_t from, int64_t to) const;
  const std::string& source() const { return source_; }
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  std::string text_;
  std::vector<uint32_t> starts_;    // of words, bytes
  std::vector<int64_t> sentences_;  // words that begin one
  std::string source_;
  uint64_t fingerprint_ = 0;
};

// Texts, or JSON files with a "text" (as PaulGrahamEssays.json), one behind the other.
Essay read_essays(const std::vector<std::string>& files, const std::string& source);

struct QuestionSet {
  struct Item {
    std::string question;
    std::vector<std::string> answers;  // accepted
    std::vector<int32_t> gold;         // documents that answer it
    std::vector<int32_t> near;         // documents that look as if: the first distractors
  };
  std::vector<std::string> documents;
  std::vector<Item> items;
  std::string source;
  uint64_t fingerprint = 0;
};
// SQuAD's JSON: {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]};
// other paragraphs of the same article are near. Questions without an answer are left out.
QuestionSet read_squad(const std::string& path);
QuestionSet squad_questions(const Json& json, const std::string& source);
// HotpotQA's JSON: [{"question", "answer", "context": [[title, [sentences]]], "supporting_facts": [[title,
// n]]}]; the supporting documents are gold (all of an item's, where it names none), its others near.
QuestionSet read_hotpot(const std::string& path);
QuestionSet hotpot_questions(const Json& json, const std::string& source);
// Documents about people (and, with two hops, buildings) that do not exist.
QuestionSet invented_questions(bool two_hops, int64_t documents = 8192);

struct Materials {
  std::shared_ptr<const Essay> essay;
  std::shared_ptr<const QuestionSet> squad, hotpot;  // of qa_1 and qa_2
};

}  // namespace hysparse::ruler
