#include "bench_report.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "io/json_value.h"

namespace hysparse {

double BenchResult::median() const {
  std::vector<double> sorted = runs;
  std::sort(sorted.begin(), sorted.end());
  const size_t n = sorted.size();
  if (n == 0) return 0;
  return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

std::vector<double> measure_rate(const std::function<double()>& fn, int repeats, double seconds) {
  using Clock = std::chrono::steady_clock;
  fn();
  std::vector<double> rates;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    double done = 0, passed = 0;
    do {
      done += fn();
      passed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (passed < seconds);
    rates.push_back(done / passed);
  }
  return rates;
}

BenchReport::BenchReport(std::string backend, std::string dtype, int threads)
    : backend_(std::move(backend)), dtype_(std::move(dtype)), threads_(threads) {
  std::printf("%s, %s, %d threads\n", backend_.c_str(), dtype_.c_str(), threads_);
  std::fflush(stdout);
}

void BenchReport::add(BenchResult r) {
  std::string shape;
  for (const auto& [key, value] : r.shape) shape += " " + key + "=" + value;
  const auto [low, high] = std::minmax_element(r.runs.begin(), r.runs.end());
  std::printf("%-24s %12.2f %-10s (%.2f to %.2f in %zu runs)%s\n", r.name.c_str(), r.median(), r.unit.c_str(),
              r.runs.empty() ? 0 : *low, r.runs.empty() ? 0 : *high, r.runs.size(), shape.c_str());
  std::fflush(stdout);
  results_.push_back(std::move(r));
}

std::string BenchReport::json() const {
  Json out;
  out["version"] = HYSPARSE_VERSION;
  out["backend"] = backend_;
  out["dtype"] = dtype_;
  out["threads"] = threads_;
  Json& list = out["results"] = Json::array();
  for (const BenchResult& r : results_) {
    Json entry;
    entry["name"] = r.name;
    Json& shape = entry["shape"] = Json::object();
    for (const auto& [key, value] : r.shape) shape[key] = value;
    entry["unit"] = r.unit;
    entry["median"] = r.median();
    entry["runs"] = r.runs;
    list.push_back(std::move(entry));
  }
  return dump_json(out);
}

}  // namespace hysparse
