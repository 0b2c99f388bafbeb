// Made look-up tasks whose answers are known: rows of token ids of a small vocabulary of their own.
// A row is a function of (task, seed, index) alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fields.h"

namespace hysparse {

// What a row says and asks. "[a b]" are neighbouring tokens; the body's units stand in a random order among
// filler tokens, the questions behind it. hop(h) is the question token of h hops.
//   mqar       pairs [key value];          asked [hop(1) key] -> value, many keys a row
//   copy       s1 .. sn, separator;        then s1 .. sn again, each one an answer
//   phonebook  entries [n1 n2 d1 d2 d3 d4]; asked [hop(1) n1 n2] -> d1 d2 d3 d4
//   chain      [x0 v], then [x1 x0], ...: each statement behind the one it names, so that every position can
//              be resolved when it is read; asked [hop(h) x(h-1)] -> v. Other chains are distractors
//   walk       edges [a b] of one path, in any order; asked [hop(h) a] -> the node h edges on, so that the
//              asking position must follow them by itself. chains > 1: edges [label a b] of as many paths
//              over the same nodes; asked [hop(h) label a]
//   paragraph  edges [a b] of several paths over different nodes; the edges of a path stand together, in any
//              order, so that whoever found the first has the others near by; asked [hop(h) a]
enum class RecallKind { mqar, copy, phonebook, chain, walk, paragraph };
template <>
struct EnumNames<RecallKind> {
  static const std::vector<std::pair<RecallKind, std::string_view>>& list();
};

struct RecallTask {
  RecallKind task = RecallKind::walk;
  int64_t length = 72;
  int64_t pairs = 0;
  int64_t queries = 4;
  std::vector<int64_t> hops = {1};
  int64_t chains = 1;
  int64_t symbols = 64;

  template <class V>
  static void fields(V&& visit) {
    using T = RecallTask;
    visit("task", &T::task, "mqar | copy | phonebook | chain | walk | paragraph");
    visit("length", &T::length, "tokens a row");
    visit("pairs", &T::pairs,
          "pairs (mqar), entries (phonebook), statements (chain) or edges (walk, paragraph) a row; 0: as "
          "many as "
          "fit");
    visit("queries", &T::queries, "questions a row, all different (copy: has one text)");
    visit("hops", &T::hops, "chain, walk, paragraph: how far a question asks; drawn evenly from this list");
    visit("chains", &T::chains,
          "chain, walk, paragraph: chains a row, the others being distractors; walk: labelled if > 1");
    visit("symbols", &T::symbols, "how many symbols keys, values and nodes are drawn from, at most 128");
  }
};

// The vocabulary, the same for every task.
namespace recall {
inline constexpr int32_t kEnd = 0, kSeparator = 1, kHop = 8, kLabel = 16, kSymbol = 32, kDigit = 160,
                         kFiller = 192;
inline constexpr int64_t kVocabulary = 256, kMaxHops = 8, kMaxLabels = 16, kMaxSymbols = 128, kFillers = 64;
inline constexpr int32_t hop(int64_t h) {
  return kHop + static_cast<int32_t>(h) - 1;
}
}  // namespace recall

struct RecallAnswer {
  int64_t at = 0;    // the token that answers; a model is right that predicts it at position at - 1
  int64_t hops = 1;  // of its question
  std::vector<int64_t>
      gold;  // where each hop is read, in order: the last token of the unit (copy: the symbol)
};
struct RecallRow {
  std::vector<int32_t> tokens;  // `length` of them
  std::vector<RecallAnswer> answers;
};

// Error(input) naming `where` and the key: ranges, and whether the row has room for what is asked.
void validate_recall_task(const RecallTask& task, const std::string& where);

// The pairs of a row: as said, or as many as fit. `task` is valid.
int64_t recall_pairs(const RecallTask& task);

// How often a guess among the symbols (digits) that could be the answer is right.
double recall_chance(const RecallTask& task);

RecallRow make_recall_row(const RecallTask& task, uint64_t seed, uint64_t index);

// "walk, hops 1 2, 256 tokens": for tables and messages.
std::string describe(const RecallTask& task);

}  // namespace hysparse
