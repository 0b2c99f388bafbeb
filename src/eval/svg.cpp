#include "eval/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace hysparse {
namespace {

constexpr double kWidth = 640, kLeft = 130, kRight = 20, kTop = 34;
constexpr const char* kColors[] = {"#1b6ca8", "#d1495b", "#2e8540", "#8a5cc2", "#c77d0a",
                                   "#4d4d4d", "#0a9396", "#b5179e", "#7f5539", "#5f8d00"};

std::string text(double x, double y, const std::string& anchor, const std::string& what,
                 const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     html_escape(what));
}
std::string line(double x1, double y1, double x2, double y2, const std::string& style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     style);
}
std::string frame(double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n{}{}</svg>\n",
      kWidth, height, html_escape(title),
      text(kLeft, 18, "start", title, " font-size=\"14\" font-weight=\"bold\""), body);
}
constexpr const char* kGrid = "stroke=\"#ddd\"";

}  // namespace

std::string html_escape(const std::string& in) {
  std::string out;
  for (const char c : in) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string series_color(size_t i) {
  return kColors[i % std::size(kColors)];
}

std::string svg_lines(const std::string& title, const std::string& x_name,
                      const std::vector<SvgLine>& lines) {
  const double plot = 240, height = kTop + plot + 44 + 16 * static_cast<double>((lines.size() + 2) / 3);
  double top_x = 1;
  for (const SvgLine& l : lines)
    for (const double x : l.x) top_x = std::max(top_x, x);
  const auto px = [&](double x) { return kLeft + x / top_x * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) { return kTop + (1 - y) * plot; };
  std::string body;
  for (int i = 0; i <= 4; ++i) {
    body += line(kLeft, py(i / 4.0), kWidth - kRight, py(i / 4.0), kGrid);
    body += text(kLeft - 6, py(i / 4.0) + 4, "end", fmt::format("{:g}", i / 4.0));
    body +=
        text(px(top_x * i / 4), kTop + plot + 16, "middle", fmt::format("{:g}", std::round(top_x * i / 4)));
  }
  body += text((kLeft + kWidth - kRight) / 2, kTop + plot + 32, "middle", x_name);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string points;
    for (size_t k = 0; k < lines[i].x.size(); ++k)
      if (std::isfinite(lines[i].x[k]) && std::isfinite(lines[i].y[k]))
        points += fmt::format("{:.1f},{:.1f} ", px(lines[i].x[k]), py(std::clamp(lines[i].y[k], 0.0, 1.0)));
    body += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                        series_color(i), points);
    const double x = kLeft + static_cast<double>(i % 3) * 165,
                 y = kTop + plot + 50 + 16 * static_cast<double>(i / 3);
    body += line(x, y - 4, x + 18, y - 4, fmt::format("stroke=\"{}\" stroke-width=\"3\"", series_color(i)));
    body += text(x + 24, y, "start", lines[i].name);
  }
  return frame(height, title, body);
}

std::string svg_strips(const std::string& title, const std::vector<SvgStrip>& strips, double mark) {
  const double row = 26, plot = row * static_cast<double>(strips.size()), height = kTop + plot + 26;
  const auto px = [&](double x) { return kLeft + std::clamp(x, 0.0, 1.0) * (kWidth - kLeft - kRight); };
  std::string body;
  for (int i = 0; i <= 4; ++i) {
    body += line(px(i / 4.0), kTop, px(i / 4.0), kTop + plot, kGrid);
    body += text(px(i / 4.0), kTop + plot + 16, "middle", fmt::format("{:g}", i / 4.0));
  }
  if (std::isfinite(mark))
    body += line(px(mark), kTop, px(mark), kTop + plot, "stroke=\"#888\" stroke-dasharray=\"4 3\"");
  for (size_t i = 0; i < strips.size(); ++i) {
    const SvgStrip& s = strips[i];
    const double y = kTop + row * (static_cast<double>(i) + 0.5);
    body += text(kLeft - 8, y + 4, "end", s.name);
    if (std::isfinite(s.low) && std::isfinite(s.high))
      body += line(px(s.low), y, px(s.high), y,
                   fmt::format("stroke=\"{}\" stroke-width=\"6\" stroke-opacity=\"0.3\"", series_color(i)));
    if (std::isfinite(s.mean))
      body += line(px(s.mean), y - 8, px(s.mean), y + 8,
                   fmt::format("stroke=\"{}\" stroke-width=\"2\"", series_color(i)));
    for (const double p : s.points)
      body +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\" fill-opacity=\"0.75\"/>\n",
                      px(p), y, series_color(i));
  }
  return frame(height, title, body);
}

std::string svg_matrix(const std::string& title, const std::vector<std::string>& names,
                       const std::vector<std::vector<double>>& cells) {
  const double side = names.empty() ? 0 : std::min(60.0, 360.0 / static_cast<double>(names.size()));
  const double height = kTop + 18 + side * static_cast<double>(names.size()) + 8;
  std::string body;
  for (size_t r = 0; r < names.size(); ++r) {
    const double y = kTop + 18 + side * static_cast<double>(r);
    body += text(kLeft - 8, y + side / 2 + 4, "end", names[r]);
    body += text(kLeft + side * (static_cast<double>(r) + 0.5), kTop + 12, "middle", names[r]);
    for (size_t c = 0; c < cells[r].size(); ++c) {
      const double v = cells[r][c], x = kLeft + side * static_cast<double>(c);
      if (!std::isfinite(v)) continue;
      const int shade = static_cast<int>(std::lround(255 - 175 * std::clamp(v, 0.0, 1.0)));
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"rgb({},{},255)\" stroke=\"#fff\"/>\n",
          x, y, side, side, shade, shade);
      body += text(x + side / 2, y + side / 2 + 4, "middle", fmt::format("{:.2f}", v));
    }
  }
  return frame(height, title, body);
}

std::string table_html(const ReportTable& t) {
  std::string out;
  if (!t.title.empty()) out += fmt::format("<h2>{}</h2>\n", html_escape(t.title));
  out += "<div class=\"scroll\"><table>\n<tr>";
  for (const std::string& h : t.head) out += fmt::format("<th>{}</th>", html_escape(h));
  out += "</tr>\n";
  for (const auto& row : t.rows) {
    out += "<tr>";
    for (const std::string& cell : row) out += fmt::format("<td>{}</td>", html_escape(cell));
    out += "</tr>\n";
  }
  out += "</table></div>\n";
  return out;
}

std::string table_markdown(const ReportTable& t) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (const std::string& cell : cells) {
      out += ' ';
      for (const char c : cell) {
        if (c == '|') out += '\\';
        out += c == '\n' ? ' ' : c;
      }
      out += " |";
    }
    return out;
  };
  std::string out;
  if (!t.title.empty()) out += fmt::format("## {}\n\n", t.title);
  out += line(t.head);
  out += "\n|";
  for (size_t i = 0; i < t.head.size(); ++i) out += i == 0 ? "---|" : "---:|";
  for (const auto& row : t.rows) out += fmt::format("\n{}", line(row));
  out += "\n\n";
  return out;
}

std::string table_text(const ReportTable& t) {
  std::vector<size_t> width(t.head.size());
  const auto widen = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  };
  widen(t.head);
  for (const auto& row : t.rows) widen(row);
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) out += fmt::format("{:<{}}", row[i], width[i] + 2);
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  };
  line(t.head);
  for (const auto& row : t.rows) line(row);
  return out;
}

std::string html_page(const std::string& title, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
         "content=\"width=device-width, initial-scale=1\">\n<title>" +
         html_escape(title) +
         "</title>\n<style>\nbody{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 "
         "1em;color:#222}"
         "\ntable{border-collapse:collapse;margin:1em 0}\nth,td{border:1px solid #ccc;padding:.25em .6em;"
         "text-align:right}\nth:first-child,td:first-child{text-align:left}\nsvg{width:100%;max-width:46em;"
         "display:block;margin:1.5em 0}\n.scroll{overflow-x:auto}\n</style>\n</head>\n<body>\n" +
         body + "</body>\n</html>\n";
}

}  // namespace hysparse
