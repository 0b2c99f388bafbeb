// What a benchmark found: every run, the median, and what was run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace hysparse {

struct BenchResult {
  std::string name;                                        // "decode"
  std::vector<std::pair<std::string, std::string>> shape;  // what it was, {"config", "demo"}, {"T", "4096"}
  std::string unit;                                        // "tokens/s": higher is better
  std::vector<double> runs;
  double median() const;
};

// Runs `fn`, which returns units done, once to warm up; then `repeats` runs, each over calls for at least
// `seconds`. Rates in units a second.
std::vector<double> measure_rate(const std::function<double()>& fn, int repeats, double seconds);

class BenchReport {
 public:
  BenchReport(std::string backend, std::string dtype, int threads);
  // Prints a line to stdout as soon as it is known.
  void add(BenchResult result);
  std::string json() const;
  const std::vector<BenchResult>& results() const { return results_; }

 private:
  std::string backend_, dtype_;
  int threads_;
  std::vector<BenchResult> results_;
};

}  // namespace hysparse
