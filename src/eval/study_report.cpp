#include "eval/study_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_value.h"

namespace hysparse {
namespace {

constexpr int64_t kFewestSeeds = 3;

const StudyCell& cell_of(const StudySummary& s, size_t size, size_t arm) {
  for (const StudyCell& c : s.cells)
    if (c.size == size && c.arm == arm) return c;
  throw failure("study", "an arm without a cell");
}

size_t arm_index(const StudyPlan& plan, const std::string& name) {
  for (size_t i = 0; i < plan.arms.size(); ++i)
    if (plan.arms[i].name == name) return i;
  throw failure("study", "no arm " + name);
}
size_t evaluation_index(const StudyPlan& plan, const std::string& name) {
  for (size_t i = 0; i < plan.evaluations.size(); ++i)
    if (plan.evaluations[i].name == name) return i;
  throw failure("study", "no evaluation " + name);
}

Interval paired(const StudyCell& a, const StudyCell& b, size_t evaluation) {
  std::vector<double> differences;
  for (const StudyResult& x : a.runs)
    for (const StudyResult& y : b.runs)
      if (x.run.seed == y.run.seed)
        differences.push_back(x.scores[evaluation].accuracy - y.scores[evaluation].accuracy);
  return t_interval(differences);
}

StudyTestResult decide(const StudyPlan& plan, const StudySummary& summary, const StudyTest& test,
                       size_t size) {
  StudyTestResult r;
  r.test = test;
  r.test.size = plan.sizes[size];
  const size_t e = evaluation_index(plan, test.evaluation);
  r.difference = paired(cell_of(summary, size, arm_index(plan, test.arm)),
                        cell_of(summary, size, arm_index(plan, test.other)), e);
  std::optional<double> gate;
  if (!plan.gate_arm.empty()) gate = cell_of(summary, size, arm_index(plan, plan.gate_arm)).accuracy[e].mean;
  r.outcome = judge_test(test, r.difference, gate, plan.gate_above);
  return r;
}

}  // namespace

TestOutcome judge_test(const StudyTest& test, const Interval& d, std::optional<double> gate, double above) {
  if (d.n < kFewestSeeds) return TestOutcome::too_few;
  if (gate && std::isnan(*gate)) return TestOutcome::too_few;  // its arm has no run yet
  if (gate && !(*gate > above)) return TestOutcome::not_learned;
  const double line = test.relation == StudyRelation::matches ? -test.margin : 0.0;
  if (d.low > line) return TestOutcome::holds;
  if (d.high < line) return TestOutcome::opposite;
  return TestOutcome::open;
}

Verdict judge_claim(const std::vector<TestOutcome>& tests) {
  const auto count = [&](TestOutcome o) { return std::count(tests.begin(), tests.end(), o); };
  const auto holds = count(TestOutcome::holds), opposite = count(TestOutcome::opposite),
             open = count(TestOutcome::open);
  if (holds + opposite + open == 0)
    return count(TestOutcome::not_learned) > 0 ? Verdict::not_learned : Verdict::too_few;
  if (opposite + open == 0) return Verdict::reproduced;
  if (holds > 0) return Verdict::partly;
  return opposite > 0 ? Verdict::contradicted : Verdict::not_shown;
}

std::string_view name_of(TestOutcome o) {
  switch (o) {
    case TestOutcome::holds:
      return "holds";
    case TestOutcome::opposite:
      return "the opposite";
    case TestOutcome::open:
      return "open";
    case TestOutcome::not_learned:
      return "not learned";
    default:
      return "too few seeds";
  }
}
std::string_view name_of(Verdict v) {
  switch (v) {
    case Verdict::reproduced:
      return "reproduced";
    case Verdict::partly:
      return "partly";
    case Verdict::contradicted:
      return "contradicted";
    case Verdict::not_learned:
      return "not learned";
    case Verdict::too_few:
      return "too few seeds";
    default:
      return "not shown";
  }
}

std::optional<double> chosen_rate(const StudyPlan& plan, const std::vector<StudyResult>& search) {
  if (!plan.searches()) return plan.learning_rates[0];
  if (search.size() < plan.learning_rates.size()) return {};
  const StudyResult* best = &search[0];
  for (const StudyResult& r : search) {
    const double a = r.mean_nats(), b = best->mean_nats();
    if (a < b || (a == b && r.run.lr < best->run.lr)) best = &r;
  }
  return best->run.lr;
}

StudySummary summarise_study(const StudyPlan& plan, const std::filesystem::path& out) {
  StudySummary s;
  const auto rates = static_cast<int64_t>(plan.searches() ? plan.learning_rates.size() : 0);
  s.runs_wanted = std::ssize(plan.sizes) * std::ssize(plan.arms) * (rates + std::ssize(plan.seeds));
  for (size_t size = 0; size < plan.sizes.size(); ++size)
    for (size_t arm = 0; arm < plan.arms.size(); ++arm) {
      s.cells.push_back({});
      s.cells.back().size = size;
      s.cells.back().arm = arm;
    }
  for (const StudyRun& run : plan.search_runs()) {
    if (auto r = read_study_result(plan, run, out))
      for (StudyCell& c : s.cells) {
        if (c.size == run.size && c.arm == run.arm) c.search.push_back(std::move(*r));
      }
    else
      s.left.push_back(run);
  }
  for (StudyCell& c : s.cells) {
    c.lr = chosen_rate(plan, c.search);
    s.runs_done += std::ssize(c.search);
  }
  for (const int64_t seed : plan.seeds)  // a seed of every arm before the next seed
    for (StudyCell& c : s.cells) {
      if (!c.lr) continue;
      const StudyRun run = plan.make_run(c.size, c.arm, *c.lr, seed, false);
      if (auto r = read_study_result(plan, run, out))
        c.runs.push_back(std::move(*r));
      else
        s.left.push_back(run);
    }
  for (StudyCell& c : s.cells) {
    s.runs_done += std::ssize(c.runs);
    for (size_t e = 0; e < plan.evaluations.size(); ++e) {
      std::vector<double> values;
      for (const StudyResult& r : c.runs) values.push_back(r.scores[e].accuracy);
      c.accuracy.push_back(t_interval(values));
    }
  }
  for (const StudyClaim& claim : plan.claims) {
    StudyClaimResult r;
    r.claim = claim.claim;
    std::vector<TestOutcome> outcomes;
    for (const StudyTest& test : claim.tests)
      for (size_t size = 0; size < plan.sizes.size(); ++size) {
        if (!test.size.empty() && test.size != plan.sizes[size]) continue;
        r.tests.push_back(decide(plan, s, test, size));
        outcomes.push_back(r.tests.back().outcome);
      }
    r.verdict = judge_claim(outcomes);
    s.claims.push_back(std::move(r));
  }
  return s;
}

namespace {

Json number(double x) {
  return std::isfinite(x) ? Json(x) : Json();
}
Json interval_json(const Interval& i) {
  Json j;
  j["n"] = i.n;
  j["mean"] = number(i.mean);
  j["low"] = number(i.low);
  j["high"] = number(i.high);
  return j;
}

Json result_json(const StudyPlan& plan, const StudyResult& r) {
  Json j;
  j["lr"] = r.run.lr;
  j["seed"] = r.run.seed;
  for (size_t e = 0; e < plan.evaluations.size(); ++e) {
    Json& s = j["scores"][plan.evaluations[e].name];
    s["accuracy"] = r.scores[e].accuracy;
    s["standard_error"] = r.scores[e].standard_error;
    s["nats"] = number(r.scores[e].nats);
    s["answers"] = r.scores[e].answers;
  }
  j["heldout_nats"] = number(r.train_nats);
  j["tokens"] = r.tokens;
  j["seconds"] = r.seconds;
  j["tokens_per_second"] = r.tokens_per_second;
  j["device"] = r.device;
  for (const StudyPoint& p : r.curve) {
    Json point;
    point["step"] = p.step;
    for (const auto& [name, accuracy] : p.accuracy) point["accuracy"][name] = accuracy;
    j["curve"].push_back(std::move(point));
  }
  return j;
}

}  // namespace

std::string study_json(const StudyPlan& plan, const StudySummary& s) {
  Json j;
  j["study"] = plan.name;
  j["about"] = plan.about;
  j["runs_done"] = s.runs_done;
  j["runs_wanted"] = s.runs_wanted;
  j["seeds"] = plan.seeds;
  j["learning_rates"] = plan.learning_rates;
  j["steps"] = plan.steps();
  for (const StudyEvaluation& e : plan.evaluations) {
    Json& x = j["evaluations"][e.name];
    x["task"] = describe(e.task);
    x["chance"] = recall_chance(e.task);
    x["samples"] = e.samples;
  }
  for (const StudyCell& c : s.cells) {
    Json x;
    if (!plan.sizes[c.size].empty()) x["size"] = plan.sizes[c.size];
    x["arm"] = plan.arms[c.arm].name;
    x["lr"] = c.lr ? Json(*c.lr) : Json();
    const StudyResult* any = !c.runs.empty() ? &c.runs[0] : !c.search.empty() ? &c.search[0] : nullptr;
    if (any) {
      x["parameters"] = any->parameters;
      x["kv_bytes_per_token"] = any->kv_bytes_per_token;
      x["kv_ring_bytes"] = any->kv_ring_bytes;
    }
    for (size_t e = 0; e < plan.evaluations.size(); ++e)
      x["accuracy"][plan.evaluations[e].name] = interval_json(c.accuracy[e]);
    x["runs"] = Json::array();
    for (const StudyResult& r : c.runs) x["runs"].push_back(result_json(plan, r));
    x["search"] = Json::array();
    for (const StudyResult& r : c.search) x["search"].push_back(result_json(plan, r));
    j["arms"].push_back(std::move(x));
  }
  for (const StudyClaimResult& c : s.claims) {
    Json x;
    x["claim"] = c.claim;
    x["verdict"] = name_of(c.verdict);
    for (const StudyTestResult& t : c.tests) {
      Json y;
      if (!t.test.size.empty()) y["size"] = t.test.size;
      y["evaluation"] = t.test.evaluation;
      y["arm"] = t.test.arm;
      y[t.test.relation == StudyRelation::beats ? "beats" : "matches"] = t.test.other;
      if (t.test.relation == StudyRelation::matches) y["margin"] = t.test.margin;
      y["difference"] = interval_json(t.difference);
      y["outcome"] = name_of(t.outcome);
      x["tests"].push_back(std::move(y));
    }
    j["claims"].push_back(std::move(x));
  }
  return dump_json(j);
}

}  // namespace hysparse
