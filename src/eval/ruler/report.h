// What the answers of a run come to: table, JSON, a page.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eval/ruler/results.h"
#include "io/json_value.h"

namespace hysparse::ruler {

// A task at a length. Scores in percent.
struct Cell {
  int64_t samples = 0;
  double score = 0, strict = 0;  // means
  double standard_error = 0;     // of score; NaN for one sample
  int64_t empty = 0, cut = 0, truncated = 0, exhausted = 0;
  int64_t least_tokens = 0, most_tokens = 0;  // of prompt and budget, of all samples
  double drawn = 0;                           // mean tokens of an answer
  std::vector<std::string> forms;
};

constexpr int kDepthBands = 10;
struct Band {  // references whose place is in a tenth of the context
  int64_t asked = 0, found = 0;
};

struct Report {
  std::string title;                                                    // the model, for people
  std::vector<std::pair<std::string, std::string>> source;              // task, what it was made of
  std::vector<int64_t> lengths;                                         // ascending
  std::vector<const Task*> tasks;                                       // in the table's order
  std::map<std::pair<int64_t, std::string>, Cell> cells;                // length, task
  std::map<std::pair<int64_t, std::string>, std::vector<Band>> depths;  // where references have a place

  int64_t truncated() const;
  // Of 11 tasks, of 13; nothing where one of them was not run.
  std::optional<double> total(int64_t length, bool with_questions, bool strict = false) const;
};

// Of the records that `lengths` and `tasks` name, samples 0 to `samples` - 1.
Report make_report(const Results& results, const std::vector<int64_t>& lengths,
                   const std::vector<const Task*>& tasks, int64_t samples, const Materials& materials,
                   const std::string& title);

std::string report_table(const Report& report);
// `settings`: what the run was made with, an object.
Json report_json(const Report& report, const Json& settings);
std::string report_html(const Report& report, const Json& settings);

}  // namespace hysparse::ruler
