// The report of a study for people: one list of tables, written as Markdown and as HTML, and the pictures.
#include <cmath>
#include <map>

#include "base/error.h"
#include "eval/study_report.h"
#include "eval/svg.h"

namespace hysparse {
namespace {

constexpr const char* kRules =
    "A seed is the unit: an interval is the 95 % t interval over seeds, and arms are compared by the "
    "differences "
    "of runs with the same seed (the same data in the same order, the same initial values of what they "
    "share). "
    "\"A beats B\" holds where that interval lies above 0; \"A matches B\" where it lies above minus the "
    "margin. "
    "A test needs 3 seeds, and an arm that is known to be able (the gate) must have learned the task. A "
    "claim is "
    "reproduced where all its tests hold, partly where some do, contradicted where none holds and one shows "
    "the "
    "opposite, else not shown.";

using Row = std::vector<std::string>;
using Table = ReportTable;

std::string interval_text(const Interval& i) {
  if (i.n == 0) return "-";
  if (i.n == 1) return fmt::format("{:.3f}", i.mean);
  return fmt::format("{:.3f} [{:.3f}, {:.3f}]", i.mean, i.low, i.high);
}
std::string difference_text(const Interval& i) {
  if (i.n == 0) return "-";
  if (i.n == 1) return fmt::format("{:+.3f}", i.mean);
  return fmt::format("{:+.3f} [{:+.3f}, {:+.3f}]", i.mean, i.low, i.high);
}
std::string cell_name(const StudyPlan& plan, const StudyCell& c) {
  const std::string& size = plan.sizes[c.size];
  return size.empty() ? plan.arms[c.arm].name : size + " " + plan.arms[c.arm].name;
}

Table claims_table(const StudySummary& s) {
  Table t{"Claims", {"claim", "verdict", "test", "difference", "seeds", "outcome"}, {}};
  for (const StudyClaimResult& c : s.claims)
    for (size_t i = 0; i < c.tests.size(); ++i) {
      const StudyTestResult& r = c.tests[i];
      const bool beats = r.test.relation == StudyRelation::beats;
      std::string test = fmt::format("{}: {} {} {}", r.test.evaluation, r.test.arm,
                                     beats ? "beats" : "matches", r.test.other);
      if (!beats) test += fmt::format(" within {:g}", r.test.margin);
      if (!r.test.size.empty()) test = r.test.size + ", " + test;
      t.rows.push_back({i == 0 ? c.claim : "", i == 0 ? std::string(name_of(c.verdict)) : "", test,
                        difference_text(r.difference), std::to_string(r.difference.n),
                        std::string(name_of(r.outcome))});
    }
  return t;
}

Table accuracy_table(const StudyPlan& plan, const StudySummary& s) {
  Table t{"Accuracy", {"arm", "seeds"}, {}};
  for (const StudyEvaluation& e : plan.evaluations) t.head.push_back(e.name);
  for (const StudyCell& c : s.cells) {
    Row row = {cell_name(plan, c), std::to_string(c.runs.size())};
    for (const Interval& i : c.accuracy) row.push_back(interval_text(i));
    t.rows.push_back(row);
  }
  Row chance = {"chance", ""};
  for (const StudyEvaluation& e : plan.evaluations)
    chance.push_back(fmt::format("{:.3f}", recall_chance(e.task)));
  t.rows.push_back(chance);
  return t;
}

Table seeds_table(const StudyPlan& plan, const StudySummary& s) {
  Table t{"Every seed", {"arm"}, {}};
  for (const StudyEvaluation& e : plan.evaluations) t.head.push_back(e.name);
  for (const StudyCell& c : s.cells) {
    Row row = {cell_name(plan, c)};
    for (size_t e = 0; e < plan.evaluations.size(); ++e) {
      std::string points;
      for (const StudyResult& r : c.runs)
        points += fmt::format("{}{:.3f}", points.empty() ? "" : " ", r.scores[e].accuracy);
      row.push_back(points.empty() ? "-" : points);
    }
    t.rows.push_back(row);
  }
  return t;
}

Table search_table(const StudyPlan& plan, const StudySummary& s) {
  Table t{fmt::format("Learning rates, tried on seed {} (mean nats an answer; the smallest is taken)",
                      plan.search_seed),
          {"arm"},
          {}};
  for (const double lr : plan.learning_rates) t.head.push_back(fmt::format("{:g}", lr));
  t.head.push_back("taken");
  for (const StudyCell& c : s.cells) {
    Row row = {cell_name(plan, c)};
    for (const double lr : plan.learning_rates) {
      std::string text = "-";
      for (const StudyResult& r : c.search)
        if (r.run.lr == lr) text = fmt::format("{:.3f}", r.mean_nats());
      row.push_back(text);
    }
    row.push_back(c.lr ? fmt::format("{:g}", *c.lr) : "-");
    t.rows.push_back(row);
  }
  return t;
}

Table cost_table(const StudyPlan& plan, const StudySummary& s) {
  Table t{"Cost",
          {"arm", "parameters", "KV bytes a token (bf16)", "ring bytes", "tokens trained on",
           "tokens/s a run (several side by side)"},
          {}};
  for (const StudyCell& c : s.cells) {
    std::vector<const StudyResult*> all;
    for (const StudyResult& r : c.runs) all.push_back(&r);
    for (const StudyResult& r : c.search) all.push_back(&r);
    if (all.empty()) continue;
    double speed = 0;
    for (const StudyResult* r : all) speed += r->tokens_per_second / static_cast<double>(all.size());
    t.rows.push_back({cell_name(plan, c), std::to_string(all[0]->parameters),
                      std::to_string(all[0]->kv_bytes_per_token), std::to_string(all[0]->kv_ring_bytes),
                      std::to_string(all[0]->tokens), fmt::format("{:.0f}", speed)});
  }
  return t;
}

Table arms_table(const StudyPlan& plan) {
  Table t{"Arms", {"arm", "what it is"}, {}};
  for (const StudyArm& a : plan.arms) t.rows.push_back({a.name, a.about});
  return t;
}
Table tasks_table(const StudyPlan& plan) {
  Table t{"Evaluations", {"name", "task", "rows"}, {}};
  for (const StudyEvaluation& e : plan.evaluations)
    t.rows.push_back({e.name, describe(e.task), std::to_string(e.samples)});
  return t;
}

std::vector<Table> tables_of(const StudyPlan& plan, const StudySummary& s) {
  std::vector<Table> all;
  if (!s.claims.empty()) all.push_back(claims_table(s));
  all.push_back(accuracy_table(plan, s));
  all.push_back(seeds_table(plan, s));
  if (plan.searches()) all.push_back(search_table(plan, s));
  all.push_back(cost_table(plan, s));
  all.push_back(arms_table(plan));
  all.push_back(tasks_table(plan));
  return all;
}

std::string state_text(const StudyPlan& plan, const StudySummary& s) {
  std::string text = fmt::format("{} of {} runs are done, {} optimiser steps each; {} seeds are asked for.",
                                 s.runs_done, s.runs_wanted, plan.steps(), plan.seeds.size());
  if (!plan.gate_arm.empty()) text += fmt::format(" Gate: {} above {:g}.", plan.gate_arm, plan.gate_above);
  return text;
}

// The accuracy of an arm over its steps, mean over its seeds.
SvgLine curve_of(const std::string& name, const StudyCell& c, const std::string& evaluation) {
  std::map<int64_t, std::pair<double, int64_t>> sums;
  for (const StudyResult& r : c.runs)
    for (const StudyPoint& p : r.curve)
      if (const auto it = p.accuracy.find(evaluation); it != p.accuracy.end()) {
        sums[p.step].first += it->second;
        ++sums[p.step].second;
      }
  SvgLine l{name, {}, {}};
  for (const auto& [step, sum] : sums) {
    l.x.push_back(static_cast<double>(step));
    l.y.push_back(sum.first / static_cast<double>(sum.second));
  }
  return l;
}

std::string pictures(const StudyPlan& plan, const StudySummary& s) {
  std::string out;
  for (size_t size = 0; size < plan.sizes.size(); ++size)
    for (size_t e = 0; e < plan.evaluations.size(); ++e) {
      const StudyEvaluation& evaluation = plan.evaluations[e];
      std::vector<SvgStrip> strips;
      std::vector<SvgLine> lines;
      for (const StudyCell& c : s.cells) {
        if (c.size != size) continue;
        SvgStrip strip{plan.arms[c.arm].name, {}, c.accuracy[e].mean, c.accuracy[e].low, c.accuracy[e].high};
        for (const StudyResult& r : c.runs) strip.points.push_back(r.scores[e].accuracy);
        strips.push_back(strip);
        lines.push_back(curve_of(plan.arms[c.arm].name, c, evaluation.name));
      }
      const std::string name =
          plan.sizes[size].empty() ? evaluation.name : plan.sizes[size] + ", " + evaluation.name;
      out += svg_strips(name + ": accuracy (points: seeds; dashed: chance)", strips,
                        recall_chance(evaluation.task));
      if (evaluation.curve_samples > 0)
        out += svg_lines(name + ": accuracy while training (mean over seeds)", "optimiser steps", lines);
    }
  return out;
}

}  // namespace

std::string study_markdown(const StudyPlan& plan, const StudySummary& s) {
  std::string out = fmt::format("# Study: {}\n\n", plan.name);
  if (!plan.about.empty()) out += fmt::format("{}\n\n", plan.about);
  out += fmt::format("{}\n\n{}\n\n", state_text(plan, s), kRules);
  for (const Table& t : tables_of(plan, s)) out += table_markdown(t);
  return out;
}

std::string study_html(const StudyPlan& plan, const StudySummary& s) {
  std::string body = "<h1>Study: " + html_escape(plan.name) + "</h1>\n";
  if (!plan.about.empty()) body += "<p>" + html_escape(plan.about) + "</p>\n";
  body += "<p>" + html_escape(state_text(plan, s)) + "</p>\n<p>" + html_escape(kRules) + "</p>\n";
  const std::vector<Table> tables = tables_of(plan, s);
  for (size_t i = 0; i < tables.size(); ++i) {
    body += table_html(tables[i]);
    if (tables[i].title == "Accuracy") body += pictures(plan, s);
  }
  return html_page("Study: " + plan.name, body);
}

}  // namespace hysparse
