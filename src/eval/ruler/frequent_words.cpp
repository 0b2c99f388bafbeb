// fwe: coded words whose numbers fall with their rank as a zeta distribution of exponent 2; the first is
// dots, asked are the next three.
#include <fmt/format.h>

#include <algorithm>

#include "eval/ruler/draw.h"
#include "eval/ruler/task.h"

namespace hysparse::ruler {
namespace {

constexpr int64_t kLetters = 6, kAsked = 3, kLeastWords = 27;  // from 27 on the fourth rank stands there
constexpr double kZeta2 = 1.6449340668482264;

class FrequentWordsDraft : public Draft {
 public:
  FrequentWordsDraft(int64_t length, Rng rng) {
    words_.emplace_back("...");
    const auto count = static_cast<size_t>(std::max<int64_t>(length / 50, 8));
    uint64_t codes = 1;
    for (int64_t i = 0; i < kLetters; ++i) codes *= 26;
    Distinct source(Rng(rng.next()), codes);
    while (words_.size() < count) {
      uint64_t code = source.next();
      std::string word;
      for (int64_t i = 0; i < kLetters; ++i, code /= 26) word += static_cast<char>('a' + code % 26);
      words_.push_back(word);
    }
    order_ = rng.next();
  }

  int64_t least() const override { return kLeastWords; }

  // A unit is a word of the text, before counts are rounded down.
  Text text(int64_t units) const override {
    std::vector<std::string_view> all;
    int64_t fourth = 0;
    for (size_t rank = 1; rank <= words_.size(); ++rank) {
      auto n = static_cast<int64_t>(static_cast<double>(units) / kZeta2 / static_cast<double>(rank * rank));
      if (rank == 1 + kAsked) fourth = n;
      if (rank > 1 + kAsked) n = std::min(n, fourth - 1);  // never as often as what is asked for
      all.insert(all.end(), static_cast<size_t>(n), words_[rank - 1]);
    }
    Rng rng(order_);
    shuffle(all, rng);
    Text t;
    t.question =
        "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
        "frequently appeared words in the above coded text?";
    t.user = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three most "
        "frequently appeared coded words. {}\n{}",
        fmt::join(all, " "), t.question);
    t.prefix = " Answer: According to the coded text above, the three most frequently appeared words are:";
    t.references.assign(words_.begin() + 1, words_.begin() + 1 + kAsked);
    t.answer = fmt::format(" {}", fmt::join(t.references, " "));
    return t;
  }

 private:
  std::vector<std::string> words_;  // by rank
  uint64_t order_ = 0;
};

}  // namespace

std::unique_ptr<Draft> frequent_words_draft(const DraftOptions& options, Rng rng) {
  return std::make_unique<FrequentWordsDraft>(options.length, rng);
}

}  // namespace hysparse::ruler
