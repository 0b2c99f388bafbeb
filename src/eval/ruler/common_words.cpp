// cwe: a numbered list in which ten words stand more often than all others, after a worked example.
#include <fmt/format.h>

#include <algorithm>

#include "eval/ruler/draw.h"
#include "eval/ruler/task.h"

namespace hysparse::ruler {
namespace {

constexpr size_t kAsked = 10;

struct Form {
  int often, seldom;      // times that the ten and the others stand there
  size_t example_others;  // others in the example
  int example_often, example_seldom;
  std::string_view name;
};
constexpr Form kLong{30, 3, 30, 10, 3, "10 words 30 times, others 3 times"};
constexpr Form kShort{6, 1, 10, 3, 1, "10 words 6 times, others once"};
constexpr int64_t kLongFrom = 4096;

// Single words as long as there are any, then pairs.
class WordSource {
 public:
  explicit WordSource(Rng& rng) : pairs_(Rng(rng.next()), word_pairs()) {
    for (const auto* list : {&adjectives(), &nouns(), &verbs()})
      singles_.insert(singles_.end(), list->begin(), list->end());
    shuffle(singles_, rng);
  }
  std::string next() {
    return at_ < singles_.size() ? std::string(singles_[at_++]) : word_pair(pairs_.next());
  }

 private:
  std::vector<std::string_view> singles_;
  Distinct pairs_;
  size_t at_ = 0;
};

bool within(const std::string& part, const std::string& whole) {
  return whole.find(part) != std::string::npos;
}

std::string list_of(const std::vector<std::string>& often, int times_often,
                    const std::vector<std::string>& seldom, int times_seldom, Rng rng) {
  std::vector<const std::string*> all;
  for (const std::string& w : often) all.insert(all.end(), static_cast<size_t>(times_often), &w);
  for (const std::string& w : seldom) all.insert(all.end(), static_cast<size_t>(times_seldom), &w);
  shuffle(all, rng);
  std::string out;
  for (size_t i = 0; i < all.size(); ++i) out += fmt::format("{}{}. {}", i ? " " : "", i + 1, *all[i]);
  return out;
}

constexpr std::string_view kQuestion = "Question: What are the 10 most common words in the above list?";
constexpr std::string_view kPrefix = " Answer: The top 10 words that appear most often in the list are:";

std::string ask(const std::string& list) {
  return fmt::format(
      "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
      "ones that appear most often.\n{}\n{}",
      list, kQuestion);
}
std::string numbered(const std::vector<std::string>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += fmt::format(" {}. {}", i + 1, words[i]);
  return out;
}

class CommonWordsDraft : public Draft {
 public:
  CommonWordsDraft(const Form& form, Rng rng) : form_(form), rng_(rng), source_(rng) {
    // No asked word is part of another word of the list: found means found.
    const auto ten = [&](std::vector<std::string>& out) {
      while (out.size() < kAsked) {
        const std::string w = source_.next();
        if (std::none_of(out.begin(), out.end(),
                         [&](const std::string& o) { return within(o, w) || within(w, o); }))
          out.push_back(w);
      }
    };
    std::vector<std::string> shown;
    ten(shown);
    const std::vector<std::string> others = more(source_, form.example_others, shown);
    ten(common_);
    order_ = rng.next();
    example_ = fmt::format(
        "{}{}{}\n", ask(list_of(shown, form.example_often, others, form.example_seldom, Rng(rng.next()))),
        kPrefix, numbered(shown));
  }

  int64_t least() const override { return 1; }
  int64_t most() const override { return most_word_pairs(); }
  std::string form() const override { return std::string(form_.name); }
  std::unique_ptr<Draft> smaller() const override {
    return &form_ == &kLong ? std::make_unique<CommonWordsDraft>(kShort, rng_) : nullptr;
  }

  // A unit is one more of the other words.
  Text text(int64_t units) const override {
    WordSource source = source_;
    const std::vector<std::string> others = more(source, static_cast<size_t>(units), common_);
    Text t;
    t.user = example_ + ask(list_of(common_, form_.often, others, form_.seldom, Rng(order_)));
    t.prefix = kPrefix;
    t.question = kQuestion;
    t.references = common_;
    t.answer = numbered(common_);
    return t;
  }

 private:
  static std::vector<std::string> more(WordSource& source, size_t count,
                                       const std::vector<std::string>& apart_from) {
    std::vector<std::string> out;
    while (out.size() < count) {
      std::string w = source.next();
      if (std::none_of(apart_from.begin(), apart_from.end(),
                       [&](const std::string& a) { return within(a, w); }))
        out.push_back(std::move(w));
    }
    return out;
  }

  const Form& form_;
  const Rng rng_;
  WordSource source_;
  std::string example_;
  std::vector<std::string> common_;
  uint64_t order_ = 0;
};

}  // namespace

std::unique_ptr<Draft> common_words_draft(const DraftOptions& options, Rng rng) {
  return std::make_unique<CommonWordsDraft>(options.length >= kLongFrom ? kLong : kShort, rng);
}

}  // namespace hysparse::ruler
