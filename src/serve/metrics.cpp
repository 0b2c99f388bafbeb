#include "serve/metrics.h"

#include <fmt/format.h>

namespace hysparse {
namespace {

class Page {
 public:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    out += fmt::format("# HELP hysparse_{} {}\n# TYPE hysparse_{} {}\n", name, help, name, type);
  }
  template <class T>
  void one(std::string_view name, std::string_view type, std::string_view help, T value) {
    head(name, type, help);
    out += fmt::format("hysparse_{} {}\n", name, value);
  }
  std::string out;
};

}  // namespace

void Histogram::add(double seconds, int64_t times) {
  for (size_t i = 0; i < kLimits.size(); ++i)
    if (seconds <= kLimits[i]) counts_[i] += times;
  sum_ += seconds * static_cast<double>(times);
  count_ += times;
}

std::string Histogram::lines(std::string_view name, std::string_view labels) const {
  std::string out;
  const std::string comma = labels.empty() ? "" : ",",
                    braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  for (size_t i = 0; i < kLimits.size(); ++i)
    out += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, kLimits[i], counts_[i]);
  out += fmt::format("{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, labels, comma, count_);
  return out + fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, braces, sum_, name, braces, count_);
}

std::string ServerMetrics::text(const EngineStats& e, int64_t connections, int64_t in_flight) const {
  Page p;
  const auto histogram = [&](std::string_view name, std::string_view help, const Histogram& h) {
    p.head(name, "histogram", help);
    p.out += h.lines(fmt::format("hysparse_{}", name));
  };
  histogram("time_to_first_token_seconds", "from the request's arrival to its first token", first_token);
  histogram("inter_token_seconds", "between tokens of an answer", inter_token);
  histogram("request_seconds", "from a request's arrival to the end of its answer", request_seconds);
  histogram("queue_seconds", "from a request's submission to its first computation", queue_seconds);
  p.head("responses_total", "counter", "answers by HTTP status");
  for (const auto& [status, n] : responses)
    p.out += fmt::format("hysparse_responses_total{{status=\"{}\"}} {}\n", status, n);
  p.head("rejected_total", "counter", "requests refused for load");
  p.out += fmt::format(
      "hysparse_rejected_total{{reason=\"queue\"}} {}\nhysparse_rejected_total{{reason=\"rate\"}} {}\n",
      rejected_queue, rejected_rate);
  p.one("disconnects_total", "counter", "clients that left before their answer was complete", disconnects);
  p.one("connections", "gauge", "open connections", connections);
  p.one("choices_in_flight", "gauge", "choices admitted and not complete", in_flight);
  p.one("requests_queued", "gauge", "choices that wait for a place", e.queued);
  p.one("requests_running", "gauge", "choices with a place in the cache", e.running);
  p.one("requests_swapped", "gauge", "choices moved to host memory", e.swapped);
  p.head("requests_total", "counter", "requests of the engine by what came of them");
  p.out += fmt::format(
      "hysparse_requests_total{{result=\"finished\"}} {}\nhysparse_requests_total{{result=\"cancelled\"}} "
      "{}\nhysparse_requests_total{{result=\"failed\"}} {}\n",
      e.finished, e.cancelled, e.failed);
  p.one("prompt_tokens_total", "counter", "prompt tokens computed", e.prompt_tokens);
  p.one("cached_tokens_total", "counter", "prompt tokens taken from the prefix cache", e.cached_tokens);
  p.one("generated_tokens_total", "counter", "tokens drawn", e.generated_tokens);
  p.one("drafted_tokens_total", "counter", "tokens that speculation proposed", e.drafted);
  p.one("accepted_tokens_total", "counter", "proposed tokens that were right", e.accepted);
  p.one("kv_page_tokens", "gauge", "tokens of a page of the full layers", e.page_size);
  p.one("kv_pages", "gauge", "pages of the full layers", e.pages);
  p.one("kv_pages_used", "gauge", "pages in use", e.pages_used);
  p.one("kv_pages_cached", "gauge", "pages held by the prefix cache", e.pages_cached);
  p.one("kv_slots", "gauge", "rings of the sparse layers: one for each sequence or snapshot", e.slots);
  p.one("kv_slots_running", "gauge", "rings of running sequences", e.slots_running);
  p.one("kv_slots_snapshots", "gauge", "rings kept as snapshots", e.slots_snapshots);
  p.one("kv_swap_bytes", "gauge", "host memory of sequences moved out", e.swap_bytes);
  p.one("prefix_cache_hits_total", "counter", "prompts that began with something cached", e.cache_hits);
  p.head("prefix_cache_misses_total", "counter", "prompts that did not, by the reason");
  for (int i = 0; i < kCacheMisses; ++i)
    p.out += fmt::format("hysparse_prefix_cache_misses_total{{reason=\"{}\"}} {}\n",
                         enum_name(static_cast<CacheMiss>(i)), e.cache_misses[static_cast<size_t>(i)]);
  p.one("prefix_cache_evictions_total", "counter", "snapshots and ends that made room", e.cache_evictions);
  p.head("preemptions_total", "counter", "choices that gave their memory away for a while");
  p.out += fmt::format(
      "hysparse_preemptions_total{{how=\"swap\"}} {}\nhysparse_preemptions_total{{how=\"recompute\"}} {}\n",
      e.preempted_swap, e.preempted_recompute);
  p.one("steps_total", "counter", "forwards of the model", e.steps);
  p.one("step_seconds_total", "counter", "time of all forwards", e.step_seconds);
  return p.out;
}

}  // namespace hysparse
