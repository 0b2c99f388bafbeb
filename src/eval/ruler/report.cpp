#include "eval/ruler/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace hysparse::ruler {
namespace {

void add(Cell& c, std::vector<Band>& bands, const Record& r) {
  const int64_t tokens = r.prompt_tokens + r.answer_tokens;
  c.least_tokens = c.samples == 0 ? tokens : std::min(c.least_tokens, tokens);
  c.most_tokens = std::max(c.most_tokens, tokens);
  ++c.samples;
  c.score += 100 * r.score.share;
  c.standard_error += 100 * r.score.share * 100 * r.score.share;  // squares, so far
  c.strict += 100 * r.score.strict;
  c.drawn += static_cast<double>(r.drawn);
  c.empty += r.score.empty;
  c.cut += r.cut;
  c.truncated += r.truncated;
  c.exhausted += r.exhausted;
  if (!r.form.empty() && std::find(c.forms.begin(), c.forms.end(), r.form) == c.forms.end())
    c.forms.push_back(r.form);
  if (r.depths.empty()) return;
  bands.resize(kDepthBands);
  for (size_t i = 0; i < r.depths.size(); ++i) {
    Band& b = bands[static_cast<size_t>(
        std::clamp(static_cast<int>(r.depths[i] * kDepthBands), 0, kDepthBands - 1))];
    ++b.asked;
    b.found += r.score.found[i];
  }
}

void finish(Cell& c) {
  const auto n = static_cast<double>(c.samples);
  if (c.samples == 0) return;
  c.score /= n;
  c.strict /= n;
  c.drawn /= n;
  const double variance = std::max(0.0, c.standard_error / n - c.score * c.score);
  c.standard_error = c.samples > 1 ? std::sqrt(variance / (n - 1)) : std::numeric_limits<double>::quiet_NaN();
}

// What a task's contexts were made of.
std::string source_of(const Task& task, const Materials& m) {
  const std::string_view name = task.name;
  if (name == "qa_1") return m.squad->source;
  if (name == "qa_2") return m.hotpot->source;
  for (const char* essay :
       {"niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"})
    if (name == essay) return m.essay->source();
  return {};
}

std::string number(const std::optional<double>& x) {
  return x ? fmt::format("{:.1f}", *x) : "-";
}

}  // namespace

int64_t Report::truncated() const {
  int64_t n = 0;
  for (const auto& [key, cell] : cells) n += cell.truncated;
  return n;
}

std::optional<double> Report::total(int64_t length, bool with_questions, bool strict) const {
  double sum = 0;
  int64_t n = 0;
  for (const Task& t : ruler::tasks()) {
    if (!t.counts && !with_questions) continue;
    const auto at = cells.find({length, std::string(t.name)});
    if (at == cells.end() || at->second.samples == 0) return std::nullopt;
    sum += strict ? at->second.strict : at->second.score;
    ++n;
  }
  return sum / static_cast<double>(n);
}

Report make_report(const Results& results, const std::vector<int64_t>& lengths,
                   const std::vector<const Task*>& tasks, int64_t samples, const Materials& materials,
                   const std::string& title) {
  Report out;
  out.title = title;
  out.lengths = lengths;
  std::sort(out.lengths.begin(), out.lengths.end());
  out.lengths.erase(std::unique(out.lengths.begin(), out.lengths.end()), out.lengths.end());
  out.tasks = tasks;
  for (const Task* t : tasks) {
    if (std::string source = source_of(*t, materials); !source.empty())
      out.source.emplace_back(t->name, std::move(source));
    for (const int64_t length : out.lengths) {
      const std::pair key{length, std::string(t->name)};
      Cell& cell = out.cells[key];
      std::vector<Band> bands;
      for (int64_t i = 0; i < samples; ++i) {
        const auto at = results.records().find({std::string(t->name), length, i});
        if (at != results.records().end()) add(cell, bands, at->second);
      }
      finish(cell);
      if (!bands.empty()) out.depths[key] = std::move(bands);
    }
  }
  return out;
}

std::string report_table(const Report& r) {
  std::string out = fmt::format("{:>8}", "length");
  std::vector<std::string> heads;
  for (const Task& t : tasks()) {
    if (t.name == "qa_1") heads.emplace_back("total");
    heads.emplace_back(t.column);
  }
  heads.emplace_back("total13");
  for (const std::string& h : heads) out += fmt::format(" {:>7}", h);
  int64_t empty = 0, cut = 0, samples = 0;
  for (const bool strict : {false, true}) {
    out += strict ? "\nstrict\n" : "\n";
    for (const int64_t length : r.lengths) {
      out += fmt::format("{:>8}", length);
      for (const Task& t : tasks()) {
        if (t.name == "qa_1") out += fmt::format(" {:>7}", number(r.total(length, false, strict)));
        const auto at = r.cells.find({length, std::string(t.name)});
        std::optional<double> x;
        if (at != r.cells.end() && at->second.samples > 0) x = strict ? at->second.strict : at->second.score;
        out += fmt::format(" {:>7}", number(x));
      }
      out += fmt::format(" {:>7}\n", number(r.total(length, true, strict)));
    }
  }
  for (const auto& [key, c] : r.cells) {
    empty += c.empty;
    cut += c.cut;
    samples += c.samples;
  }
  out += fmt::format("{} samples: {} empty answers, {} cut by their budget, {} truncated\n", samples, empty,
                     cut, r.truncated());
  std::map<std::string, std::vector<std::string>> by_source;
  for (const auto& [task, source] : r.source) by_source[source].push_back(task);
  for (const auto& [source, names] : by_source)
    out += fmt::format("{}: {}\n", fmt::join(names, ", "), source);
  for (const auto& [key, c] : r.cells) {
    if (c.exhausted > 0)
      out += fmt::format("{} at {}: {} of {} samples are shorter than that, the materials have no more\n",
                         key.second, key.first, c.exhausted, c.samples);
    if (!c.forms.empty())
      out += fmt::format("{} at {}: {}\n", key.second, key.first, fmt::join(c.forms, "; "));
  }
  return out;
}

Json report_json(const Report& r, const Json& settings) {
  const auto number = [](const std::optional<double>& x) {
    return x && !std::isnan(*x) ? Json(*x) : Json(nullptr);
  };
  Json tasks = Json::array(), totals = Json::array(), depths = Json::array();
  for (const int64_t length : r.lengths) {
    for (const Task* t : r.tasks) {
      const Cell& c = r.cells.at({length, std::string(t->name)});
      if (c.samples == 0) continue;
      Json one = {{"task", t->name},
                  {"column", t->column},
                  {"length", length},
                  {"samples", c.samples},
                  {"score", c.score},
                  {"standard_error", number(c.standard_error)},
                  {"strict", c.strict},
                  {"empty", c.empty},
                  {"cut", c.cut},
                  {"truncated", c.truncated},
                  {"exhausted", c.exhausted},
                  {"least_tokens", c.least_tokens},
                  {"most_tokens", c.most_tokens},
                  {"answer_tokens", c.drawn}};
      if (!c.forms.empty()) one["forms"] = c.forms;
      for (const auto& [task, source] : r.source)
        if (task == t->name) one["source"] = source;
      tasks.push_back(std::move(one));
    }
    totals.push_back({{"length", length},
                      {"total", number(r.total(length, false))},
                      {"total13", number(r.total(length, true))},
                      {"strict_total", number(r.total(length, false, true))},
                      {"strict_total13", number(r.total(length, true, true))}});
  }
  for (const auto& [key, bands] : r.depths)
    for (size_t b = 0; b < bands.size(); ++b)
      depths.push_back({{"task", key.second},
                        {"length", key.first},
                        {"from", static_cast<double>(b) / kDepthBands},
                        {"to", static_cast<double>(b + 1) / kDepthBands},
                        {"asked", bands[b].asked},
                        {"found", bands[b].found}});
  return {{"model", r.title},
          {"settings", settings},
          {"tasks", std::move(tasks)},
          {"totals", std::move(totals)},
          {"depths", std::move(depths)},
          {"truncated", r.truncated()}};
}

}  // namespace hysparse::ruler
