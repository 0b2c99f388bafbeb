// qa_*: a question, the documents that answer it, and others.
#include <fmt/format.h>

#include <algorithm>

#include "eval/ruler/draw.h"
#include "eval/ruler/task.h"

namespace hysparse::ruler {
namespace {

constexpr std::string_view kInstruction =
    "Answer the question based on the given documents. Only give me the answer and do not output any other "
    "words.";

class QuestionsDraft : public Draft {
 public:
  QuestionsDraft(const QuestionSet& set, int64_t index, Rng rng) : set_(set) {
    // Samples go through the items in the order of their file.
    const size_t items = set.items.size();
    item_ = &set.items[static_cast<size_t>(index) % items];
    for (const int32_t d : item_->gold) documents_.push_back({d, rng.uniform()});
    std::vector<int32_t> near = item_->near, far;
    std::vector<uint8_t> taken(set.documents.size());
    for (const auto* list : {&item_->gold, &item_->near})
      for (const int32_t d : *list) taken[static_cast<size_t>(d)] = 1;
    for (size_t d = 0; d < set.documents.size(); ++d)
      if (!taken[d]) far.push_back(static_cast<int32_t>(d));
    shuffle(near, rng);
    shuffle(far, rng);
    for (const auto* list : {&near, &far})
      for (const int32_t d : *list) documents_.push_back({d, rng.uniform()});
  }

  int64_t least() const override { return static_cast<int64_t>(item_->gold.size()); }
  int64_t most() const override { return static_cast<int64_t>(documents_.size()); }

  // A unit is a document.
  Text text(int64_t units) const override {
    std::vector<Placed> chosen(documents_.begin(), documents_.begin() + units);
    std::sort(chosen.begin(), chosen.end(),
              [](const Placed& a, const Placed& b) { return a.place < b.place; });
    Text t;
    std::string context;
    std::vector<double> places;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i > 0) context += "\n\n";
      const int32_t d = chosen[i].document;
      if (std::find(item_->gold.begin(), item_->gold.end(), d) != item_->gold.end())
        places.push_back(static_cast<double>(context.size()));
      context += fmt::format("Document {}:\n{}", i + 1, set_.documents[static_cast<size_t>(d)]);
    }
    t.references = item_->answers;
    // One place for all accepted answers: of the last document that is needed.
    t.depths.assign(t.references.size(), places.back() / static_cast<double>(context.size()));
    t.question = fmt::format("Question: {}", item_->question);
    t.user = fmt::format("{}\n\nThe following are given documents.\n\n{}\n\n{}\n\n{}", kInstruction, context,
                         kInstruction, t.question);
    t.prefix = " Answer:";
    t.answer = " " + item_->answers.front();
    return t;
  }

 private:
  struct Placed {
    int32_t document;
    double place;  // its order in the text
  };
  const QuestionSet& set_;
  const QuestionSet::Item* item_;
  std::vector<Placed> documents_;  // gold first, then near, then the others
};

}  // namespace

std::unique_ptr<Draft> questions_draft(const QuestionSet& set, const DraftOptions& options, Rng rng) {
  return std::make_unique<QuestionsDraft>(set, options.index, rng);
}

}  // namespace hysparse::ruler
