// Figures of a running server, as Prometheus reads them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "engine/engine_stats.h"

namespace hysparse {

// Counts of values up to each of a fixed list of limits.
class Histogram {
 public:
  void add(double seconds, int64_t times = 1);
  // Lines of the text format, `labels` without braces.
  std::string lines(std::string_view name, std::string_view labels = {}) const;
  int64_t count() const { return count_; }

 private:
  static constexpr std::array<double, 16> kLimits = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                     0.5,   1,      2.5,   5,    10,    30,   60,  300};
  std::array<int64_t, kLimits.size()> counts_{};
  double sum_ = 0;
  int64_t count_ = 0;
};

struct ServerMetrics {
  Histogram first_token, inter_token, request_seconds, queue_seconds;
  std::map<int, int64_t> responses;  // by status
  int64_t rejected_queue = 0, rejected_rate = 0, disconnects = 0;

  // The exposition: these, the engine's, and the connections that are open.
  std::string text(const EngineStats& engine, int64_t connections, int64_t in_flight) const;
};

}  // namespace hysparse
