// Every task's samples: they fit their length, hold what is asked for, and differ from each other.
#include <set>

#include "base/error.h"
#include "eval/ruler/score.h"
#include "support.h"

namespace hysparse {
namespace {

using namespace tests;
using ruler::Sample;

struct Tokens {
  const char* name;
  std::shared_ptr<const Tokenizer> tokenizer;
  int64_t all_from;  // every task fits from here on
};
std::vector<Tokens> tokenizers() {
  return {{"bytes", bytes_tokenizer(), 8192},
          {"prose", prose_tokenizer(), 2048},
          {"shipped", shipped_tokenizer(), 1024}};
}

Sample fit(const ruler::Task& task, const ruler::Prompter& prompter, int64_t length, int64_t index = 0,
           int64_t answer_tokens = 0, uint64_t seed = 42) {
  return ruler::fit_sample(
      task, {.materials = stand_ins(), .prompter = prompter, .seed = seed, .length = length, .index = index},
      answer_tokens);
}

// What one more unit of the haystack costs, in tokens.
int64_t unit_cost(const ruler::Task& task, const ruler::Prompter& prompter, const Sample& s) {
  const auto draft = ruler::make_draft(
      task, {.materials = stand_ins(), .prompter = prompter, .length = s.length, .index = s.index});
  const auto tokens = [&](const ruler::Draft& d, int64_t units) {
    const ruler::Text t = d.text(units);
    return static_cast<int64_t>(prompter.prompt(t.user, t.prefix).size());
  };
  const auto cost = [&](const ruler::Draft& d) { return tokens(d, s.units + 1) - tokens(d, s.units); };
  if (draft->form() == s.form) return cost(*draft);
  return cost(*draft->smaller());
}

void expect_sound(const ruler::Task& task, const ruler::Prompter& prompter, const Sample& s) {
  const auto tokens = static_cast<int64_t>(s.prompt.size()) + s.answer_tokens;
  EXPECT_LE(tokens, s.length);
  if (!s.exhausted) {
    const int64_t unit = unit_cost(task, prompter, s);
    EXPECT_GT(tokens + std::max(unit + 2, s.length / 100), s.length)
        << s.units << " units, one costs " << unit;
  }
  // The reader sees what the model sees: the ids.
  const std::string seen = prompter.tokenizer().decode(s.prompt);
  const std::string answer = oracle(seen);
  const ruler::Score score = ruler::score_answer(s.text.references, task.any, s.text.question, answer);
  EXPECT_EQ(score.share, 1) << answer << "\n" << seen;
  EXPECT_EQ(score.strict, 1) << answer << "\n" << seen;
  EXPECT_LE(prompter.count(s.text.answer), s.answer_tokens) << "no room for the answer";
  EXPECT_EQ(ruler::score_answer(s.text.references, task.any, s.text.question, "").share, 0);
  EXPECT_EQ(ruler::score_answer(s.text.references, task.any, s.text.question, s.text.question).share, 0)
      << "saying the question again earns something";
  // Nobody finds what is not there.
  for (const std::string& r : s.text.references) EXPECT_NE(s.text.user.find(r), std::string::npos);
}

// BC-42. Any task, any length, several vocabularies: fits and is answered in full, or says what it needs.
TEST(RulerSamples, FitTheirLengthAndHoldTheirAnswers) {
  for (const Tokens& t : tokenizers()) {
    const ruler::Prompter prompter(t.tokenizer);
    for (const ruler::Task& task : ruler::tasks())
      for (const int64_t length : {128, 256, 1024, 4096, 8192})
        for (const int64_t index : {0, 1}) {
          SCOPED_TRACE(fmt::format("{} tokens, {} at {}, sample {}", t.name, task.name, length, index));
          try {
            // Budgets of the original leave no room in the shortest.
            expect_sound(task, prompter, fit(task, prompter, length, index, length < 1024 ? 16 : 0));
          } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::input);
            EXPECT_NE(std::string(e.what()).find("expected at least "), std::string::npos) << e.what();
            EXPECT_LT(length, t.all_from) << e.what();
          }
        }
  }
}

TEST(RulerSamples, ATooShortLengthSaysWhichWouldDo) {
  const ruler::Prompter prompter(shipped_tokenizer());
  for (const ruler::Task& task : ruler::tasks()) {
    SCOPED_TRACE(task.name);
    try {
      fit(task, prompter, 40);
      ADD_FAILURE() << "40 tokens did";
    } catch (const Error& e) {
      const std::string what = e.what(), says = "expected at least ";
      const size_t at = what.find(says);
      ASSERT_NE(at, std::string::npos) << what;
      const int64_t least = std::stoll(what.substr(at + says.size()));
      EXPECT_GT(least, 40);
      EXPECT_NO_THROW(fit(task, prompter, least + least / 8));  // draws are another length's: a little more
    }
  }
}

TEST(RulerSamples, ChatTemplates) {
  const ruler::Prompter prompter(shipped_tokenizer(),
                                 std::make_shared<const ChatTemplate>(ChatTemplate::builtin("plain")));
  for (const ruler::Task& task : ruler::tasks())
    for (const int64_t length : {1024, 4096}) {
      SCOPED_TRACE(fmt::format("{} at {}", task.name, length));
      const Sample s = fit(task, prompter, length);
      expect_sound(task, prompter, s);
      const std::string seen = prompter.tokenizer().decode(s.prompt);
      EXPECT_TRUE(seen.ends_with(s.text.prefix.substr(1))) << "the answer begins behind the turn's head";
      EXPECT_FALSE(seen.starts_with(s.text.user.substr(0, 40))) << "no template";
    }
}

TEST(RulerSamples, DependOnSeedLengthAndIndexAlone) {
  const ruler::Prompter prompter(shipped_tokenizer());
  for (const ruler::Task& task : ruler::tasks()) {
    SCOPED_TRACE(task.name);
    const Sample a = fit(task, prompter, 1024, 3), again = fit(task, prompter, 1024, 3);
    EXPECT_EQ(a.prompt, again.prompt);
    EXPECT_EQ(a.text.references, again.text.references);
    std::set<std::vector<int32_t>> all{a.prompt, fit(task, prompter, 1024, 4).prompt,
                                       fit(task, prompter, 1024, 3, 0, 43).prompt,
                                       fit(task, prompter, 1030, 3).prompt};
    EXPECT_EQ(all.size(), 4u);
  }
}

// The original shuffles every sample by the same seed: layouts repeat. Ours do not.
TEST(RulerSamples, LayoutsDiffer) {
  const ruler::Prompter prompter(shipped_tokenizer());
  for (const char* name : {"cwe", "fwe"}) {
    std::set<std::vector<size_t>> layouts;
    for (int64_t i = 0; i < 4; ++i) {
      const Sample s = fit(task_named(name), prompter, 4096, i);
      std::vector<size_t> places;  // the first occurrences of what is asked, in order
      for (const std::string& r : s.text.references) places.push_back(s.text.user.find(r));
      layouts.insert(places);
    }
    EXPECT_EQ(layouts.size(), 4u) << name;
  }
  for (const char* name : {"qa_1", "niah_single_1", "niah_single_2", "niah_multikey_2"}) {
    std::set<int> tenths;
    for (int64_t i = 0; i < 40; ++i)
      tenths.insert(static_cast<int>(fit(task_named(name), prompter, 1024, i, 16).text.depths.front() * 10));
    EXPECT_GE(tenths.size(), 7u) << name << ": the gold is always in the same places";
  }
}

TEST(RulerSamples, NumberAndWording) {
  const ruler::Prompter prompter(shipped_tokenizer());
  const auto text = [&](const char* name) { return fit(task_named(name), prompter, 1024).text; };
  for (const char* name :
       {"niah_single_1", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"}) {
    const ruler::Text t = text(name);
    EXPECT_EQ(t.references.size(), 1u) << name;
    EXPECT_TRUE(t.prefix.ends_with(" mentioned in the provided text is")) << t.prefix;
    EXPECT_TRUE(t.user.starts_with("A special magic ")) << t.user;
    EXPECT_NE(t.user.find("\nWhat is the special magic "), std::string::npos) << name;
  }
  for (const char* name : {"niah_multiquery", "niah_multivalue"}) {
    const ruler::Text t = text(name);
    EXPECT_EQ(t.references.size(), 4u) << name;
    EXPECT_TRUE(t.prefix.ends_with(" mentioned in the provided text are")) << t.prefix;
  }
  EXPECT_EQ(text("vt").references.size(), 5u);
  EXPECT_EQ(text("cwe").references.size(), 10u);
  EXPECT_EQ(text("fwe").references.size(), 3u);
  // Counts of a long list: 10 words 30 times, all others 3 times.
  const Sample cwe = fit(task_named("cwe"), prompter, 8192);
  std::map<std::string, int> counts;
  for (const std::string& w : words_of(between(cwe.text.user, "appear most often.\n", "\nQuestion:")))
    if (w.back() != '.') ++counts[w];
  std::map<int, int> times;
  for (const auto& [w, n] : counts) ++times[n];
  EXPECT_EQ(times.size(), 2u);
  EXPECT_EQ(times[30], 10);
  EXPECT_GT(times[3], 100);
}

// Words of an essay that goes round: longer than the text it is made of.
TEST(RulerSamples, AShortEssayGoesRound) {
  ruler::Materials m = stand_ins();
  m.essay = std::make_shared<const ruler::Essay>("One two three. Four five? Mr. Six sat. \"Seven!\" he said.",
                                                 "short");
  EXPECT_EQ(m.essay->words(), 11);
  EXPECT_EQ(m.essay->sentences(), 4);
  std::string out;
  m.essay->append(out, 9, 16);
  EXPECT_EQ(out, "he said. One two three. Four five?");
  EXPECT_EQ(m.essay->borders(3, 14), (std::vector<int64_t>{3, 5, 8, 11, 14}));
  const ruler::Prompter prompter(shipped_tokenizer());
  const Sample s = ruler::fit_sample(task_named("niah_multivalue"),
                                     {.materials = m, .prompter = prompter, .length = 2048});
  expect_sound(task_named("niah_multivalue"), prompter, s);
  EXPECT_THROW(ruler::Essay("no sentence ends here", "x"), Error);
}

TEST(RulerSamples, QuestionFiles) {
  test::TempDir dir;
  Json squad = {{"data", Json::array()}}, hotpot = Json::array();
  for (int a = 0; a < 6; ++a) {
    Json paragraphs = Json::array();
    for (int p = 0; p < 5; ++p) {
      const std::string name = fmt::format("q{}-{}", a, p);
      paragraphs.push_back(
          {{"context",
            fmt::format("Paragraph {} of article {}. The answer to {} is alpha{}{}.", p, a, name, a, p)},
           {"qas", Json::array({{{"question", fmt::format("What is the answer to {}?", name)},
                                 {"answers", Json::array({{{"text", fmt::format("alpha{}{}", a, p)}},
                                                          {{"text", "omega"}},
                                                          {{"text", "omega"}}})}},
                                {{"question", "impossible"}, {"answers", Json::array()}}})}});
    }
    squad["data"].push_back({{"title", "t"}, {"paragraphs", paragraphs}});
    Json context = Json::array();
    for (int p = 0; p < 10; ++p)
      context.push_back(
          Json::array({fmt::format("Title {}{}", a, p),
                       Json::array({"First. ", fmt::format("The answer to h{}-{} is beta{}.", a, p, p)})}));
    hotpot.push_back({{"question", fmt::format("What is the answer to h{}-3?", a)},
                      {"answer", "beta3"},
                      {"supporting_facts", Json::array({Json::array({fmt::format("Title {}3", a), 1})})},
                      {"context", context}});
  }
  test::write(dir / "squad.json", dump_json(squad));
  test::write(dir / "hotpot.json", dump_json(hotpot));
  ruler::Materials m = stand_ins();
  m.squad = std::make_shared<const ruler::QuestionSet>(ruler::read_squad(dir / "squad.json"));
  m.hotpot = std::make_shared<const ruler::QuestionSet>(ruler::read_hotpot(dir / "hotpot.json"));
  EXPECT_EQ(m.squad->items.size(), 30u);
  EXPECT_EQ(m.squad->documents.size(), 30u);
  EXPECT_EQ(m.squad->items[7].answers, (std::vector<std::string>{"alpha12", "omega"}));
  EXPECT_EQ(m.squad->items[7].near.size(), 4u);
  EXPECT_EQ(m.hotpot->items.size(), 6u);
  EXPECT_EQ(m.hotpot->items[0].gold.size(), 1u);
  EXPECT_EQ(m.hotpot->items[0].near.size(), 9u);
  const ruler::Prompter prompter(shipped_tokenizer());
  for (const char* name : {"qa_1", "qa_2"})
    for (int64_t i = 0; i < 6; ++i) {
      const Sample s = ruler::fit_sample(task_named(name),
                                         {.materials = m, .prompter = prompter, .length = 512, .index = i});
      const std::string answer = oracle(prompter.tokenizer().decode(s.prompt));
      EXPECT_EQ(ruler::score_answer(s.text.references, true, s.text.question, answer).strict, 1) << answer;
    }
  // More room than there are documents.
  const Sample all =
      ruler::fit_sample(task_named("qa_1"), {.materials = m, .prompter = prompter, .length = 4096});
  EXPECT_TRUE(all.exhausted);
  EXPECT_EQ(all.units, 30);

  const auto wrong = [&](const std::string& text, const std::string& message) {
    test::write(dir / "wrong.json", text);
    for (const bool two : {false, true}) try {
        two ? ruler::read_hotpot(dir / "wrong.json") : ruler::read_squad(dir / "wrong.json");
        ADD_FAILURE() << text;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::input);
        EXPECT_NE(std::string(e.what()).find("wrong.json"), std::string::npos) << e.what();
        if (!two) {
          EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
        }
      }
  };
  wrong("{\"data\": 3}", "expected a list");
  wrong("{\"data\": [{}]}", "\"paragraphs\" is missing");
  wrong("{\"data\": [{\"paragraphs\": [{\"context\": 7, \"qas\": []}]}]}", "expected a text");
  wrong("{\"data\": []}", "no question");
  wrong("{\"data\": [", "wrong.json");
}

TEST(RulerSamples, TaskNames) {
  EXPECT_EQ(ruler::find_tasks({}).size(), 13u);
  EXPECT_EQ(ruler::find_tasks({"vt", "niah_single_1"}).front()->name, "niah_single_1");  // the table's order
  try {
    ruler::find_tasks({"niah_singel_1"});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean niah_single_1?"), std::string::npos) << e.what();
  }
}

// Long lengths, and every sample of a run of 40.
TEST(FullRulerSamples, FitTheirLengthAndHoldTheirAnswers) {
  const ruler::Prompter prompter(shipped_tokenizer());
  for (const ruler::Task& task : ruler::tasks()) {
    for (int64_t i = 0; i < 40; ++i) expect_sound(task, prompter, fit(task, prompter, 4096, i));
    for (const int64_t length : {32768, 131072}) {
      SCOPED_TRACE(fmt::format("{} at {}", task.name, length));
      expect_sound(task, prompter, fit(task, prompter, length));
    }
  }
}

}  // namespace
}  // namespace hysparse
