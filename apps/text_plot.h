// A small line plot in plain characters, for a terminal or a log.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hysparse {

struct PlotSeries {
  std::string name;
  char mark = '*';
  std::vector<std::pair<double, double>> points;  // ascending x
};

// Axes are labelled with the smallest and largest values; where two series meet, `+` is drawn.
std::string text_plot(const std::vector<PlotSeries>& series, const std::string& x_label,
                      const std::string& y_label, int width = 64, int height = 14);

}  // namespace hysparse
