// The page of a run: one file, no scripts, no assets from outside, light and dark.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/ruler/report.h"
#include "eval/svg.h"

namespace hysparse::ruler {
namespace {

constexpr std::string_view kStyle = R"css(
:root { color-scheme: light dark; --page: #fbfbfa; --ink: #1d2126; --quiet: #646b75; --line: #d9dce1;
  --cell: #eef0f3; --heat: #12649c; --on-heat: #ffffff; --warn: #a33a00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e8eaed; --quiet: #9aa2ad; --line: #343a43;
  --cell: #22272e; --heat: #5db2ee; --on-heat: #0b1016; --warn: #ff9d66; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 75rem; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; max-width: 48rem; } .quiet { color: var(--quiet); } .warn { color: var(--warn); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; } td.sum, th.sum { border-left: 2px solid var(--line); font-weight: 600; }
.panels { display: flex; flex-wrap: wrap; gap: 1.2rem 1.6rem; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .2rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
svg .in { fill: var(--ink); } svg .on { fill: var(--on-heat); }
svg .none { fill: none; stroke: var(--line); } svg .base { fill: var(--cell); } svg .heat { fill: var(--heat); }
)css";

std::string short_length(int64_t n) {
  return n >= 1024 && n % 1024 == 0 ? fmt::format("{}k", n / 1024) : std::to_string(n);
}

std::string number(const std::optional<double>& x) {
  return x ? fmt::format("{:.1f}", *x) : "–";
}

std::string table(const Report& r, bool strict) {
  std::string out = "<div class=\"scroll\"><table><tr><th>length</th>";
  for (const Task& t : tasks()) {
    if (t.name == "qa_1") out += "<th class=\"sum\">total</th>";
    out += fmt::format("<th title=\"{}\">{}</th>", t.name, t.column);
  }
  out += "<th class=\"sum\">total13</th></tr>\n";
  for (const int64_t length : r.lengths) {
    out += fmt::format("<tr><th>{}</th>", length);
    for (const Task& t : tasks()) {
      if (t.name == "qa_1")
        out += fmt::format("<td class=\"sum\">{}</td>", number(r.total(length, false, strict)));
      const auto at = r.cells.find({length, std::string(t.name)});
      if (at == r.cells.end() || at->second.samples == 0) {
        out += "<td class=\"quiet\">–</td>";
        continue;
      }
      const Cell& c = at->second;
      out +=
          fmt::format("<td title=\"{} samples, standard error {}; {} empty, {} cut\">{:.1f}</td>", c.samples,
                      std::isnan(c.standard_error) ? "unknown" : fmt::format("{:.1f}", c.standard_error),
                      c.empty, c.cut, strict ? c.strict : c.score);
    }
    out += fmt::format("<td class=\"sum\">{}</td></tr>\n", number(r.total(length, true, strict)));
  }
  return out + "</table></div>\n";
}

// Depth downwards, lengths to the right.
std::string panel(const Report& r, const std::string& caption, const std::vector<const Task*>& of) {
  constexpr int kWide = 46, kHigh = 20, kLeft = 44, kTop = 20;
  const int width = kLeft + kWide * static_cast<int>(r.lengths.size()) + 4,
            height = kTop + kHigh * kDepthBands + 4;
  std::string body;
  for (size_t x = 0; x < r.lengths.size(); ++x) {
    const int left = kLeft + kWide * static_cast<int>(x);
    body += fmt::format("<text x=\"{}\" y=\"13\" text-anchor=\"middle\">{}</text>\n", left + kWide / 2,
                        short_length(r.lengths[x]));
    for (int b = 0; b < kDepthBands; ++b) {
      Band sum;
      for (const Task* t : of) {
        const auto at = r.depths.find({r.lengths[x], std::string(t->name)});
        if (at == r.depths.end()) continue;
        sum.asked += at->second[static_cast<size_t>(b)].asked;
        sum.found += at->second[static_cast<size_t>(b)].found;
      }
      const int top = kTop + kHigh * b;
      const std::string place = fmt::format("x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", left + 1, top + 1,
                                            kWide - 2, kHigh - 2);
      const std::string where = fmt::format("{} tokens, depth {} to {} %", r.lengths[x], b * 10, b * 10 + 10);
      if (sum.asked == 0) {
        body += fmt::format("<rect class=\"none\" {}><title>{}: none asked</title></rect>\n", place, where);
        continue;
      }
      const double share = static_cast<double>(sum.found) / static_cast<double>(sum.asked);
      body += fmt::format(
          "<g><title>{}: {} of {} found</title><rect class=\"base\" {}/><rect class=\"heat\" {} "
          "fill-opacity=\"{:.3f}\"/><text class=\"{}\" x=\"{}\" y=\"{}\" "
          "text-anchor=\"middle\">{:.0f}</text></g>\n",
          where, sum.found, sum.asked, place, place, share, share > 0.55 ? "on" : "in", left + kWide / 2,
          top + 14, 100 * share);
    }
  }
  for (int b = 0; b < kDepthBands; b += 2)
    body += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} %</text>\n", kLeft - 6,
                        kTop + kHigh * b + 14, b * 10);
  return fmt::format(
      "<figure><figcaption>{}</figcaption><svg role=\"img\" aria-label=\"share found by depth and length: "
      "{}\" "
      "width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\">\n{}</svg></figure>\n",
      html_escape(caption), html_escape(caption), width, height, width, height, body);
}

std::string pictures(const Report& r) {
  std::vector<const Task*> placed, needles;
  for (const Task* t : r.tasks) {
    const bool any = std::any_of(r.lengths.begin(), r.lengths.end(), [&](int64_t length) {
      return r.depths.contains({length, std::string(t->name)});
    });
    if (!any) continue;
    placed.push_back(t);
    if (t->name.starts_with("niah")) needles.push_back(t);
  }
  if (placed.empty()) return {};
  std::string out =
      "<h2>Found, by depth and length</h2>\n<p class=\"quiet\">Percent of what was asked for that the answer "
      "names, by where in the context it stands (0 % is the beginning). A frame without colour: nothing was "
      "asked "
      "there.</p>\n<div class=\"panels\">\n";
  if (needles.size() > 1) out += panel(r, "all needles", needles);
  for (const Task* t : placed) out += panel(r, std::string(t->name), {t});
  return out + "</div>\n";
}

std::string details(const Report& r) {
  std::string out =
      "<h2>Samples</h2>\n<div "
      "class=\"scroll\"><table><tr><th>task</th><th>length</th><th>samples</th><th>score"
      "</th><th>± s.e.</th><th>strict</th><th>empty</th><th>cut</th><th>truncated</th><th>tokens asked</th>"
      "<th>tokens answered</th><th>made of</th></tr>\n";
  for (const Task* t : r.tasks)
    for (const int64_t length : r.lengths) {
      const Cell& c = r.cells.at({length, std::string(t->name)});
      if (c.samples == 0) continue;
      std::string made;
      for (const auto& [task, source] : r.source)
        if (task == t->name) made = source;
      for (const std::string& form : c.forms) made += (made.empty() ? "" : "; ") + form;
      if (c.exhausted > 0) made += fmt::format("; {} samples shorter than the length", c.exhausted);
      out += fmt::format(
          "<tr><th>{}</th><td>{}</td><td>{}</td><td>{:.1f}</td><td>{}</td><td>{:.1f}</td><td>{}</td><td>{}</"
          "td>"
          "<td{}>{}</td><td>{}–{}</td><td>{:.1f}</td><td style=\"text-align:left\">{}</td></tr>\n",
          t->name, length, c.samples, c.score,
          std::isnan(c.standard_error) ? "–" : fmt::format("{:.1f}", c.standard_error), c.strict, c.empty,
          c.cut, c.truncated > 0 ? " class=\"warn\"" : "", c.truncated, c.least_tokens, c.most_tokens,
          c.drawn, html_escape(made));
    }
  return out + "</table></div>\n";
}

}  // namespace

std::string report_html(const Report& r, const Json& settings) {
  std::string listed;
  for (const auto& [key, value] : settings.items())
    listed += fmt::format("{}{} {}", listed.empty() ? "" : " · ", key,
                          value.is_string() ? value.get<std::string>() : dump_json(value, -1));
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>RULER: {0}</title>\n<style>{1}</style></head>"
      "<body>\n<h1>RULER: {0}</h1>\n<p class=\"quiet\">{2}</p>\n",
      html_escape(r.title), kStyle, html_escape(listed));
  if (r.truncated() > 0)
    out += fmt::format("<p class=\"warn\">{} samples were truncated: this run is not sound.</p>\n",
                       r.truncated());
  out +=
      "<h2>Score</h2>\n<p class=\"quiet\">Percent of references that the answer contains, case ignored; of "
      "questions, one of them is enough. total: mean of the 11 tasks before it; total13: of all.</p>\n";
  out += table(r, false);
  out +=
      "<h2>Strict</h2>\n<p class=\"quiet\">The same where only the reference itself counts: whole words and "
      "numbers, nothing for saying the question again.</p>\n";
  out += table(r, true);
  return out + pictures(r) + details(r) + "</body></html>\n";
}

}  // namespace hysparse::ruler
