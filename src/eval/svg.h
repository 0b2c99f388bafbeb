// Small pictures for self-contained reports: SVG text, no scripts, no fonts of their own.
#pragma once

#include <string>
#include <vector>

namespace hysparse {

std::string html_escape(const std::string& text);

// The colour of the i-th of several things, the same in every picture.
std::string series_color(size_t i);

struct SvgLine {
  std::string name;
  std::vector<double> x, y;  // points with a NaN are left out
};
// Lines over a shared axis; y from 0 to 1 (accuracies, shares).
std::string svg_lines(const std::string& title, const std::string& x_name, const std::vector<SvgLine>& lines);

struct SvgStrip {
  std::string name;
  std::vector<double> points;          // single values
  double mean = 0, low = 0, high = 0;  // NaN: not drawn
};
// A row a strip: its points, its mean and interval; the axis from 0 to 1. `mark`: a dashed line there, unless
// NaN.
std::string svg_strips(const std::string& title, const std::vector<SvgStrip>& strips, double mark);

// A square of cells in [0, 1], with names of rows and columns; NaN: empty.
std::string svg_matrix(const std::string& title, const std::vector<std::string>& names,
                       const std::vector<std::vector<double>>& cells);

struct ReportTable {
  std::string title;  // "": none
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
};
std::string table_html(const ReportTable& table);
std::string table_markdown(const ReportTable& table);
std::string table_text(const ReportTable& table);  // columns side by side, for a terminal

// A page around a body of HTML.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace hysparse
