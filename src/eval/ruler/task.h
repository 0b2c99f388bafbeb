// The 13 tasks of RULER (arXiv 2404.06654), as docs/evaluation.md describes them, and what a sample of one is
// before it becomes tokens.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "eval/ruler/materials.h"
#include "eval/ruler/prompter.h"

namespace hysparse::ruler {

struct Task {
  std::string_view name;    // "niah_single_1"
  std::string_view column;  // of tables: "S1"
  int64_t answer_tokens;    // an answer's budget, unless the reference answer needs more
  bool any;                 // one of the references is enough (questions); else each counts its share
  bool counts;              // among the 11 of `total`
};
// In the order of the paper's table: 11 that `total` is the mean of, then the two of questions.
const std::vector<Task>& tasks();
// Those named, in that order; no names: all. Error(input) for an unknown name, with the nearest.
std::vector<const Task*> find_tasks(const std::vector<std::string>& names);

struct Text {
  std::string user;      // instructions, context and question
  std::string prefix;    // how the answer begins, with its leading space: part of the prompt
  std::string question;  // of `user`, the part that asks
  std::vector<std::string> references;
  std::string answer;  // how a reader that knows everything goes on behind the prefix
  std::vector<double>
      depths;  // of each reference: where it stands in the context, 0 to 1; empty: no one place
};

// A sample of any size: all draws are made, only the number of units (sentences, words, documents, ...) is
// open. The same units give the same text.
class Draft {
 public:
  virtual ~Draft() = default;
  virtual int64_t least() const = 0;
  virtual int64_t most() const { return std::numeric_limits<int32_t>::max(); }
  virtual Text text(int64_t units) const = 0;
  // The same task in a form for lengths that this one does not fit in; null: there is none.
  virtual std::unique_ptr<Draft> smaller() const { return nullptr; }
  virtual std::string form() const { return {}; }  // which form it is, where there are several
};

struct DraftOptions {
  const Materials& materials;
  const Prompter& prompter;
  uint64_t seed = 42;
  int64_t length = 4096;  // tokens of prompt and answer
  int64_t index = 0;      // of the sample
};
// What it draws depends on the task's name and seed, length and index alone. Keeps references.
std::unique_ptr<Draft> make_draft(const Task& task, const DraftOptions& options);

// ---- the families, a file each

struct NeedleTask {
  enum class Haystack { noise, essay, needles };
  Haystack haystack;
  bool uuid_keys, uuid_values;
  int keys, values, queries;  // queries of the keys are asked for; each key has so many values
};
std::unique_ptr<Draft> needle_draft(const NeedleTask& task, const DraftOptions& options, Rng rng);
std::unique_ptr<Draft> tracing_draft(const DraftOptions& options, Rng rng);
std::unique_ptr<Draft> common_words_draft(const DraftOptions& options, Rng rng);
std::unique_ptr<Draft> frequent_words_draft(const DraftOptions& options, Rng rng);
std::unique_ptr<Draft> questions_draft(const QuestionSet& set, const DraftOptions& options, Rng rng);

// The five sentences that make up noise, in order.
const std::vector<std::string_view>& noise_sentences();
// The first `count` of them, over and over, a line each five.
std::vector<std::string> noise_lines(int64_t count);

}  // namespace hysparse::ruler
