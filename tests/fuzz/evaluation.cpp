// Files that evaluations and studies read, behind a line that names the reader.
#include <nlohmann/json.hpp>
#include <set>

#include "eval/choice.h"
#include "eval/ruler/materials.h"
#include "eval/ruler/results.h"
#include "eval/ruler/score.h"
#include "eval/study_plan.h"
#include "io/json_value.h"
#include "target.h"
#include "unit/eval/study_examples.h"

namespace hysparse::fuzz {
namespace {

void check_choices(std::string_view text) {
  for (const ChoiceItem& item : parse_choice_items(text, "fuzz"))
    require(item.choices.size() >= 2 && item.gold >= 0 && item.gold < std::ssize(item.choices),
            "gold is a choice");
}

void check_questions(const ruler::QuestionSet& set) {
  const auto are_documents = [&](const std::vector<int32_t>& list) {
    for (const int32_t d : list) require(d >= 0 && d < std::ssize(set.documents), "numbers of documents");
  };
  require(!set.items.empty(), "a set has questions");
  for (const ruler::QuestionSet::Item& item : set.items) {
    require(!item.answers.empty() && !item.gold.empty(), "a question has an answer and where it stands");
    are_documents(item.gold);
    are_documents(item.near);
    for (const std::string& text :
         {item.answers.front(), item.question + " " + item.answers.front(), std::string("  ")}) {
      const ruler::Score s = ruler::score_answer(item.answers, true, item.question, text);
      require(s.share >= 0 && s.share <= 1 && s.strict >= 0 && s.strict <= 1, "scores are shares");
    }
  }
}

void check_study(const std::string& text) {
  const StudyPlan plan = parse_study(text, "fuzz");
  std::set<std::string> ids;
  size_t runs = 0;
  const auto add = [&](const StudyRun& run) {
    require(run.id.find('/') == std::string::npos && run.id[0] != '.', "a run's id is a folder's name");
    ids.insert(run.id);
    ++runs;
  };
  for (const StudyRun& run : plan.search_runs()) add(run);
  for (size_t s = 0; s < plan.sizes.size(); ++s)
    for (size_t a = 0; a < plan.arms.size(); ++a)
      for (const double lr : plan.learning_rates)
        for (const int64_t seed : plan.seeds) add(plan.make_run(s, a, lr, seed, false));
  require(ids.size() == runs, "every run has a folder of its own");
  require(plan.steps() > 0, "steps are counted");
  require(!run_description(plan, plan.make_run(0, 0, plan.learning_rates[0], plan.seeds[0], false)).empty(),
          "a run can be described");
}

void check_record(std::string_view text) {
  const Json once = ruler::record_json(ruler::record_of(parse_json(text, "fuzz"), "fuzz"));
  require(ruler::record_json(ruler::record_of(once, "again")) == once, "a record reads back");
}

}  // namespace

bool run_input(std::string_view input) {
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string_view reader = input.substr(0, line),
                         text = input.substr(std::min(line + 1, input.size()));
  return accepted([&] {
    if (reader == "choice") return check_choices(text);
    if (reader == "squad") return check_questions(ruler::squad_questions(parse_json(text, "fuzz"), "fuzz"));
    if (reader == "hotpot") return check_questions(ruler::hotpot_questions(parse_json(text, "fuzz"), "fuzz"));
    if (reader == "record") return check_record(text);
    check_study(std::string(text));
  });
}

std::vector<std::string> seeds() {
  ruler::Record record;
  record.task = "qa_1";
  record.references = {"blue"};
  record.score.found = {1};
  record.depths = {0.5};
  return {
      "choice\n{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 1, \"id\": 7}\n\n{\"context\": "
      "\"\", \"choices\": "
      "[\"\", \"c\", \"d\"], \"gold\": 0}\n",
      "squad\n{\"data\": [{\"paragraphs\": [{\"context\": \"c\", \"qas\": [{\"question\": \"Question: q\", "
      "\"answers\": [{\"text\": "
      "\"The q.\"}, {\"text\": \"1,000\"}]}, {\"question\": \" \", \"answers\": []}]}, {\"context\": \"d\", "
      "\"qas\": []}]}]}",
      "hotpot\n[{\"question\": \"q\", \"answer\": \"y\", \"context\": [[\"t\", [\"s1\", \"s2\"]], [\"u\", "
      "[]]], "
      "\"supporting_facts\": [[\"t\", 0]]}, {\"question\": \"r\", \"answer\": \"z\", \"context\": [[\"t\", "
      "[\"s\"]]]}]",
      "record\n" + dump_json(ruler::record_json(record), -1), "study\n" + tests::small_study()};
}

std::vector<std::string> dictionary() {
  return {"choice\n",
          "squad\n",
          "hotpot\n",
          "record\n",
          "study\n",
          "\"gold\": -1, ",
          "\"gold\": 18446744073709551615, ",
          "\"choices\": [], ",
          "\"answers\": [], ",
          "\"text\": \"\", ",
          "\"question\": \" \", ",
          "\"context\": [], ",
          "\"length\": 1e300, ",
          "\"length\": 9223372036854775807, ",
          "\"name\": \"a b\", ",
          "\"name\": \"a_b\", ",
          "\"name\": \"..\", ",
          "\"seeds\": [9223372036854775807], ",
          "\"rows\": 9223372036854775807, ",
          "\"steps\": 9223372036854775807, ",
          "\"global_batch_size\": 9223372036854775807, ",
          "\"learning_rates\": [1e-300], ",
          "\"sizes\": [{\"name\": \"s\"}, {\"name\": \"s-a\"}], ",
          "\"weight\": 9223372036854775807, ",
          "\"hops\": [], ",
          "\"found\": [256], ",
          "\"depths\": [1e400], ",
          "\"score\": true, ",
          "\"index\": 1.5, ",
          "null",
          "true",
          "[]",
          "{}",
          "\xff",
          "\xe2\x84\xaa",
          "\\u0130",
          "1e308",
          "-1"};
}

}  // namespace hysparse::fuzz
