// niah_*: sentences that give a key its value, in a haystack of noise, of an essay or of other such
// sentences.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/ruler/draw.h"
#include "eval/ruler/task.h"

namespace hysparse::ruler {
namespace {

using Haystack = NeedleTask::Haystack;

constexpr int kDepths = 40;  // even steps of 0 to 100 %
constexpr uint64_t kNumbers = 9'000'000, kFirstNumber = 1'000'000;

// Keys and values, none twice.
class Source {
 public:
  explicit Source(Rng& rng)
      : words_(Rng(rng.next()), word_pairs()), numbers_(Rng(rng.next()), kNumbers), uuids_(rng.next()) {}
  std::string next(bool uuid, bool word) {
    if (uuid) {
      const uint64_t a = uuids_.next(), b = uuids_.next();
      return fmt::format("{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", a >> 32, (a >> 16) & 0xffff, a & 0xfff,
                         0x8000 | (b >> 50), b & 0xffffffffffff);
    }
    return word ? word_pair(words_.next()) : std::to_string(kFirstNumber + numbers_.next());
  }

 private:
  Distinct words_, numbers_;
  Rng uuids_;
};

std::string join_and(const std::vector<std::string>& list) {
  if (list.size() == 1) return list.front();
  return fmt::format("{}, and {}", fmt::join(list.begin(), list.end() - 1, ", "), list.back());
}

class NeedleDraft : public Draft {
 public:
  NeedleDraft(const NeedleTask& task, const DraftOptions& o, Rng rng)
      : task_(task), essay_(o.materials.essay.get()), source_(rng) {
    struct Needle {
      std::string sentence, value;
      bool asked;
    };
    std::vector<Needle> needles;
    std::vector<int> order;
    for (int k = 0; k < task.keys; ++k) order.push_back(k);
    shuffle(order, rng);
    for (int k = 0; k < task.keys; ++k) {
      const std::string key = source_.next(task.uuid_keys, true);
      const bool asked = order[static_cast<size_t>(k)] < task.queries;
      if (asked) queries_.push_back(key);
      for (int v = 0; v < task.values; ++v) {
        const std::string value = source_.next(task.uuid_values, false);
        needles.push_back({sentence(key, value), value, asked});
        if (asked) references_.push_back(value);
      }
    }
    shuffle(needles, rng);
    std::vector<int> steps;
    for (int i = 0; i < kDepths; ++i) steps.push_back(i);
    shuffle(steps, rng);
    steps.resize(needles.size());
    std::sort(steps.begin(), steps.end());
    for (size_t i = 0; i < needles.size(); ++i) {
      depths_.push_back(steps[i] / double(kDepths - 1));
      sentences_.push_back(needles[i].sentence);
      const auto at = std::find(references_.begin(), references_.end(), needles[i].value);
      reference_of_.push_back(needles[i].asked ? at - references_.begin() : -1);
    }
    if (task.haystack == Haystack::essay)
      start_ =
          essay_->sentence_start(static_cast<int64_t>(rng.below(static_cast<uint64_t>(essay_->sentences()))));
  }

  int64_t least() const override { return 1; }
  int64_t most() const override {
    return task_.haystack == Haystack::needles && !task_.uuid_keys ? most_word_pairs() : Draft::most();
  }

  Text text(int64_t units) const override {
    Text t;
    t.references = references_;
    t.depths.resize(references_.size());
    const std::string context =
        task_.haystack == Haystack::essay ? in_essay(units, t.depths) : in_lines(lines(units), t.depths);
    const bool one = references_.size() == 1;
    const std::string_view type = task_.uuid_values ? (one ? "uuid" : "uuids") : one ? "number" : "numbers";
    const std::string asked = join_and(queries_);
    t.question = fmt::format("What {} special magic {} for {} mentioned in the provided text?",
                             one ? "is the" : "are all the", type, asked);
    t.user = fmt::format(
        "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will quiz you "
        "about the {} afterwards.\n{}\n{}",
        one ? "A" : "Some", type, one ? "is" : "are", type, context, t.question);
    t.prefix = fmt::format(" The special magic {} for {} mentioned in the provided text {}", type, asked,
                           one ? "is" : "are");
    t.answer = fmt::format(" {}.", join_and(references_));
    return t;
  }

 private:
  std::string sentence(const std::string& key, const std::string& value) const {
    return fmt::format("One of the special magic {} for {} is: {}.", task_.uuid_values ? "uuids" : "numbers",
                       key, value);
  }

  void put(std::string& out, size_t needle, std::vector<double>& places) const {
    const std::ptrdiff_t reference = reference_of_[needle];
    if (reference >= 0) places[static_cast<size_t>(reference)] = static_cast<double>(out.size());
    out += sentences_[needle];
  }
  static void as_depths(std::vector<double>& places, const std::string& context) {
    for (double& p : places) p /= static_cast<double>(std::max<size_t>(1, context.size()));
  }

  std::vector<std::string> lines(int64_t units) const {
    if (task_.haystack == Haystack::noise) return noise_lines(units);
    Source more = source_;  // goes on behind the needles' own
    std::vector<std::string> out;
    for (int64_t i = 0; i < units; ++i) {
      const std::string key = more.next(task_.uuid_keys, true);
      out.push_back(sentence(key, more.next(task_.uuid_values, false)));
    }
    return out;
  }

  std::string in_lines(const std::vector<std::string>& lines, std::vector<double>& places) const {
    std::string out;
    size_t needle = 0;
    for (size_t i = 0; i <= lines.size(); ++i) {
      const auto here = [&] {
        return static_cast<size_t>(std::lround(depths_[needle] * static_cast<double>(lines.size()))) == i;
      };
      for (; needle < sentences_.size() && here(); ++needle) {
        if (!out.empty()) out += '\n';
        put(out, needle, places);
      }
      if (i == lines.size()) break;
      if (!out.empty()) out += '\n';
      out += lines[i];
    }
    as_depths(places, out);
    return out;
  }

  std::string in_essay(int64_t words, std::vector<double>& places) const {
    const std::vector<int64_t> borders = essay_->borders(start_, start_ + words);
    std::string out;
    int64_t at = start_;
    for (size_t i = 0; i < sentences_.size(); ++i) {
      const auto border =
          static_cast<size_t>(std::lround(depths_[i] * static_cast<double>(borders.size() - 1)));
      essay_->append(out, at, borders[border]);
      at = borders[border];
      if (!out.empty()) out += ' ';
      put(out, i, places);
    }
    essay_->append(out, at, start_ + words);
    as_depths(places, out);
    return out;
  }

  NeedleTask task_;
  const Essay* essay_;
  Source source_;
  std::vector<std::string> queries_, references_;
  // In the order of the text.
  std::vector<std::string> sentences_;
  std::vector<double> depths_;
  std::vector<std::ptrdiff_t> reference_of_;  // -1: nobody asks for it
  int64_t start_ = 0;                         // the essay's first word
};

}  // namespace

std::unique_ptr<Draft> needle_draft(const NeedleTask& task, const DraftOptions& options, Rng rng) {
  return std::make_unique<NeedleDraft>(task, options, rng);
}

}  // namespace hysparse::ruler
