#include "eval/ruler/task.h"

#include <algorithm>

#include "base/error.h"
#include "io/json.h"

namespace hysparse::ruler {
namespace {

using Haystack = NeedleTask::Haystack;

struct NeedleRow {
  std::string_view name;
  NeedleTask task;
};
constexpr NeedleRow kNeedles[] = {
    {"niah_single_1", {Haystack::noise, false, false, 1, 1, 1}},
    {"niah_single_2", {Haystack::essay, false, false, 1, 1, 1}},
    {"niah_single_3", {Haystack::essay, false, true, 1, 1, 1}},
    {"niah_multikey_1", {Haystack::essay, false, false, 4, 1, 1}},
    {"niah_multikey_2", {Haystack::needles, false, false, 1, 1, 1}},
    {"niah_multikey_3", {Haystack::needles, true, true, 1, 1, 1}},
    {"niah_multiquery", {Haystack::essay, false, false, 4, 1, 4}},
    {"niah_multivalue", {Haystack::essay, false, false, 1, 4, 1}},
};

uint64_t hash_name(std::string_view name) {
  uint64_t h = 0;
  for (const char c : name) h = mix64(h ^ static_cast<unsigned char>(c));
  return h;
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> list{
      {"niah_single_1", "S1", 128, false, true},
      {"niah_single_2", "S2", 128, false, true},
      {"niah_single_3", "S3", 128, false, true},
      {"niah_multikey_1", "MK1", 128, false, true},
      {"niah_multikey_2", "MK2", 128, false, true},
      {"niah_multikey_3", "MK3", 128, false, true},
      {"niah_multiquery", "MQ", 128, false, true},
      {"niah_multivalue", "MV", 128, false, true},
      {"vt", "VT", 30, false, true},
      {"cwe", "CWE", 120, false, true},
      {"fwe", "FWE", 50, false, true},
      {"qa_1", "QA1", 32, true, false},
      {"qa_2", "QA2", 32, true, false},
  };
  return list;
}

std::vector<const Task*> find_tasks(const std::vector<std::string>& names) {
  std::vector<const Task*> out;
  std::vector<std::string> valid;
  for (const Task& t : tasks()) {
    valid.emplace_back(t.name);
    if (names.empty() || std::find(names.begin(), names.end(), t.name) != names.end()) out.push_back(&t);
  }
  for (const std::string& name : names) {
    if (std::find(valid.begin(), valid.end(), name) != valid.end()) continue;
    const std::string near = nearest_name(name, valid);
    throw input_error("tasks", "there is no task " + quote_text(name),
                      near.empty() ? fmt::format("the tasks are {}", fmt::join(valid, ", "))
                                   : "did you mean " + near + "?");
  }
  return out;
}

std::unique_ptr<Draft> make_draft(const Task& task, const DraftOptions& o) {
  const Rng rng(hash_words({o.seed, hash_name(task.name), static_cast<uint64_t>(o.length)}),
                static_cast<uint64_t>(o.index));
  for (const NeedleRow& row : kNeedles)
    if (row.name == task.name) return needle_draft(row.task, o, rng);
  if (task.name == "vt") return tracing_draft(o, rng);
  if (task.name == "cwe") return common_words_draft(o, rng);
  if (task.name == "fwe") return frequent_words_draft(o, rng);
  HYSPARSE_CHECK(task.name == "qa_1" || task.name == "qa_2", "task {}", task.name);
  return questions_draft(task.name == "qa_1" ? *o.materials.squad : *o.materials.hotpot, o, rng);
}

const std::vector<std::string_view>& noise_sentences() {
  static const std::vector<std::string_view> list{"The grass is green.", "The sky is blue.",
                                                  "The sun is yellow.", "Here we go.",
                                                  "There and back again."};
  return list;
}

std::vector<std::string> noise_lines(int64_t count) {
  const auto& list = noise_sentences();
  const auto a_line = static_cast<int64_t>(list.size());
  std::vector<std::string> out;
  for (int64_t i = 0; i < count; ++i) {
    if (i % a_line == 0)
      out.emplace_back();
    else
      out.back() += ' ';
    out.back() += list[static_cast<size_t>(i % a_line)];
  }
  return out;
}

}  // namespace hysparse::ruler
