#include "text_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace hysparse {

std::string text_plot(const std::vector<PlotSeries>& series, const std::string& x_label,
                      const std::string& y_label, int width, int height) {
  double x0 = std::numeric_limits<double>::infinity(), x1 = -x0, y0 = x0, y1 = -x0;
  for (const PlotSeries& s : series)
    for (const auto& [x, y] : s.points) {
      if (!std::isfinite(y)) continue;
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
    }
  if (!(x1 >= x0)) return "(nothing to plot)\n";
  auto place = [](double value, double low, double high, int cells) {
    return high > low ? static_cast<int>(std::lround((value - low) / (high - low) * (cells - 1))) : 0;
  };
  std::vector<std::string> canvas(static_cast<size_t>(height), std::string(static_cast<size_t>(width), ' '));
  for (const PlotSeries& s : series)
    for (const auto& [x, y] : s.points) {
      if (!std::isfinite(y)) continue;
      char& cell = canvas[static_cast<size_t>(height - 1 - place(y, y0, y1, height))]
                         [static_cast<size_t>(place(x, x0, x1, width))];
      cell = cell == ' ' || cell == s.mark ? s.mark : '+';
    }
  std::string out = y_label + "\n";
  for (int row = 0; row < height; ++row) {
    const std::string label = row == 0            ? fmt::format("{:.3f}", y1)
                              : row == height - 1 ? fmt::format("{:.3f}", y0)
                                                  : "";
    out += fmt::format("{:>8} |{}\n", label, canvas[static_cast<size_t>(row)]);
  }
  out += fmt::format("{:>8} +{}\n", "", std::string(static_cast<size_t>(width), '-'));
  const std::string left = fmt::format("{:.0f}", x0), right = fmt::format("{:.0f}", x1);
  const int gap = width - static_cast<int>(left.size() + right.size());
  out += fmt::format("{:>10}{}{}{}  {}\n", "", left, std::string(static_cast<size_t>(std::max(1, gap)), ' '),
                     right, x_label);
  out += fmt::format("{:>10}", "");
  for (const PlotSeries& s : series) out += fmt::format("{} {}   ", s.mark, s.name);
  return out + "\n";
}

}  // namespace hysparse
