// vt: a value handed on from variable to variable within noise; asked is who has it. One chain of four hops,
// after a worked example with shorter names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/ruler/draw.h"
#include "eval/ruler/task.h"

namespace hysparse::ruler {
namespace {

constexpr int kHops = 4;
constexpr int64_t kExampleTokens = 500, kExampleLines = 18;

struct Chain {
  std::string value;
  std::vector<std::string> names, statements;
  std::vector<double> places;  // ascending, 0 to 1: of the statements in the noise
};

Chain make_chain(size_t name_length, Rng& rng) {
  Chain c;
  c.value = std::to_string(10'000 + rng.below(90'000));
  while (c.names.size() <= kHops) {
    std::string name;
    for (size_t i = 0; i < name_length; ++i) name += static_cast<char>('A' + rng.below(26));
    if (name != "VAR" && std::find(c.names.begin(), c.names.end(), name) == c.names.end())
      c.names.push_back(name);
  }
  c.statements.push_back(fmt::format("VAR {} = {}", c.names[0], c.value));
  for (size_t i = 1; i < c.names.size(); ++i)
    c.statements.push_back(fmt::format("VAR {} = VAR {}", c.names[i], c.names[i - 1]));
  for (size_t i = 0; i < c.statements.size(); ++i) c.places.push_back(rng.uniform());
  std::sort(c.places.begin(), c.places.end());
  return c;
}

std::string question(const Chain& c) {
  return fmt::format("Question: Find all variables that are assigned the value {} in the text above.",
                     c.value);
}
std::string answer_prefix(const Chain& c) {
  // Spelled as the original spells it.
  return fmt::format(
      " Answer: According to the chain(s) of variable assignment in the text above, {} variables are "
      "assgined "
      "the value {}, they are: ",
      c.names.size(), c.value);
}

// `sentences` of noise with the chain's statements on lines of their own.
std::string ask(const Chain& c, int64_t sentences, std::vector<double>* places = nullptr) {
  std::string out =
      "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  const size_t start = out.size();
  const std::vector<std::string> lines = noise_lines(sentences);
  size_t next = 0;
  for (size_t i = 0; i <= lines.size(); ++i) {
    while (next < c.statements.size() &&
           static_cast<size_t>(std::lround(c.places[next] * static_cast<double>(lines.size()))) == i) {
      if (places) places->push_back(static_cast<double>(out.size() - start));
      out += c.statements[next++];
      out += '\n';
    }
    if (i < lines.size()) (out += lines[i]) += '\n';
  }
  if (places)
    for (double& p : *places) p /= static_cast<double>(out.size() - start);
  return out + question(c);
}

class TracingDraft : public Draft {
 public:
  TracingDraft(const DraftOptions& o, Rng rng) {
    const Chain shown = make_chain(3, rng);
    chain_ = make_chain(5, rng);
    const auto example = [&](int64_t lines) {
      return fmt::format("{}{}{}\n\n\n\n", ask(shown, lines * 5), answer_prefix(shown),
                         fmt::join(shown.names, " "));
    };
    // As many lines of noise as a quarter of a short length, or the original's 500 tokens, have room for.
    const int64_t room = std::min(kExampleTokens, o.length / 4);
    int64_t fits = 0, not_any_more = kExampleLines + 1;
    while (fits + 1 < not_any_more) {
      const int64_t middle = (fits + not_any_more) / 2;
      (o.prompter.count(example(middle)) <= room ? fits : not_any_more) = middle;
    }
    example_ = example(fits);
  }

  int64_t least() const override { return 1; }

  Text text(int64_t units) const override {
    Text t;
    t.user = example_ + ask(chain_, units, &t.depths);
    t.prefix = answer_prefix(chain_);
    t.question = question(chain_);
    t.references = chain_.names;
    t.answer = fmt::format("{}", fmt::join(chain_.names, " "));
    return t;
  }

 private:
  std::string example_;
  Chain chain_;
};

}  // namespace

std::unique_ptr<Draft> tracing_draft(const DraftOptions& options, Rng rng) {
  return std::make_unique<TracingDraft>(options, rng);
}

}  // namespace hysparse::ruler
